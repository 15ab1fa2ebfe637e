"""What brokers do for groups, as handlers ask for it: find the coordinator, serve members, keep offsets, tell admins.

Any broker can coordinate any group; the lease in the group's own keys says which one does. Whoever is asked for a
group that nobody holds takes it. So two brokers with different views of the cluster may send a client to and fro at
most until one of them was asked for real.

Must stay true: for every group at most one process answers, the one that holds its lease in a living session. A
process that was paused or cut off finds out before it answers (`Seat.require_alive`) or by its journal. A question
about a group that does not exist leaves nothing behind.
"""

from collections.abc import Mapping, Sequence

from headrace.cluster.view import BrokerInfo, ClusterView
from headrace.errors import OutcomeUnknown, Retryable
from headrace.groups.listing import GroupListing, listing_of, listing_of_head
from headrace.groups.meters import GroupMetrics
from headrace.groups.patterns import Patterns
from headrace.groups.problems import GroupRefused, loading
from headrace.groups.protocol import (
    JOINING_EPOCH,
    AnyReply,
    CommitClaim,
    ConsumerBeat,
    ConsumerBeatReply,
    Event,
    GroupDescription,
)
from headrace.groups.records import OffsetRecord
from headrace.groups.regexes import InvalidPattern
from headrace.groups.seat import Seat
from headrace.groups.seats import Seats
from headrace.groups.store import GroupFacts, Partition, read_head, read_holder, read_offsets, walk_all
from headrace.metadata.keys import DomainKeys
from headrace.metadata.port import MetadataStore
from headrace.model.error_codes import ErrorCode
from headrace.topics.directory import TopicDirectory

GROUPS_PER_READ = 1_000


class GroupCoordinator:
    """Serves groups on one broker."""

    def __init__(
        self,
        *,
        node_id: int,
        store: MetadataStore,
        keys: DomainKeys,
        cluster: ClusterView,
        topics: TopicDirectory,
        seats: Seats,
        metrics: GroupMetrics,
        patterns: Patterns | None = None,
    ) -> None:
        """Take the parts. Without `patterns`, machines match regular expressions by themselves."""
        self._node_id = node_id
        self._store = store
        self._keys = keys
        self._cluster = cluster
        self._topics = topics
        self._seats = seats
        self._metrics = metrics
        self._patterns = patterns

    async def find(self, key: str, *, is_group: bool) -> BrokerInfo | None:
        """Return the broker to ask for a group, or for whatever else has a coordinator; `None` if nobody lives."""
        if is_group:
            if self._seats.held(key) is not None:
                return self._cluster.broker(self._node_id)
            holder = await self._holder(key)
            if holder is not None:
                return holder
        return self._cluster.coordinator_of(key)

    async def call(self, group_id: str, event: Event) -> AnyReply:
        """Let a group take a member's request and return its reply, at once or much later. Raises `GroupRefused`."""
        seat = await self._seats.take(group_id)
        if type(event) is not ConsumerBeat or not event.regex or event.member_epoch < JOINING_EPOCH:
            return await seat.call(event)
        if self._patterns is None:
            return await seat.call(event)
        try:
            async with self._patterns.held([event.regex], is_new=True):
                return await seat.call(event)
        except InvalidPattern as error:
            return ConsumerBeatReply(error=ErrorCode.INVALID_REGULAR_EXPRESSION, error_message=str(error))

    async def commit(self, group_id: str, claim: CommitClaim, offsets: Mapping[Partition, OffsetRecord]) -> ErrorCode:
        """Commit offsets; they are durable when this returns `NONE`. Raises `GroupRefused`."""
        seat = await self._seats.take(group_id)
        code = await seat.commit(claim, offsets)
        if code is ErrorCode.NONE:
            self._metrics.committed(len(offsets))
        return code

    async def fetch(
        self, group_id: str, claim: CommitClaim | None, wanted: Sequence[Partition] | None
    ) -> Mapping[Partition, OffsetRecord]:
        """Return committed offsets of some partitions, or of all; what was never committed is absent.

        Raises `GroupRefused`, also where the claim to be a member does not hold.
        """
        seat = await self._existing(group_id)
        if seat is None:
            return {}
        seat.require_alive()
        if claim is not None:
            seat.check_fetch(claim)
        # A commit that is being written counts: whoever takes a partition over reads what was committed before.
        await seat.settled()
        try:
            found = await read_offsets(self._store, seat.keys, wanted)
        except (Retryable, OutcomeUnknown) as error:
            raise loading(group_id) from error
        seat.require_alive()
        return found

    async def delete_offsets(self, group_id: str, partitions: Sequence[Partition]) -> Mapping[Partition, ErrorCode]:
        """Delete committed offsets and say what became of each. Raises `GroupRefused`."""
        seat = await self._existing(group_id)
        if seat is None:
            raise GroupRefused(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group '{group_id}'")

        def name_of(partition: Partition) -> str | None:
            topic = self._topics.get_by_id(partition[0])
            return None if topic is None else topic.name

        return await seat.delete_offsets(partitions, name_of)

    async def describe(self, group_id: str) -> GroupDescription | None:
        """Return what admin clients see of a group; `None` if there is no such group. Raises `GroupRefused`."""
        seat = await self._existing(group_id)
        if seat is None:
            return None
        seat.require_alive()
        return seat.describe()

    async def delete(self, group_id: str) -> ErrorCode:
        """Delete a group that has no members, with all its offsets. Raises `GroupRefused`."""
        seat = await self._existing(group_id)
        if seat is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        seat.require_alive()
        if seat.has_members:
            return ErrorCode.NON_EMPTY_GROUP
        await self._seats.delete(seat)
        return ErrorCode.NONE

    async def listed(self) -> list[GroupListing]:
        """Return the groups that this broker answers for: each group of the cluster is listed by one broker."""
        await self._cluster.refresh()
        lines = [listing_of(seat.machine) for seat in self._seats if seat.exists]
        known = {line.group_id for line in lines}
        async for facts in walk_all(self._store, self._keys, per_read=GROUPS_PER_READ):
            if facts.head is not None and facts.head.group_id not in known and self.answers_for(facts):
                lines.append(listing_of_head(facts.head))
        return lines

    def answers_for(self, facts: GroupFacts) -> bool:
        """Say whether a group is this broker's business: held here, or by nobody and first asked for here."""
        assert facts.head is not None, "only groups that exist are anybody's business"
        holder = None if facts.lease is None or facts.lease.session is None else facts.lease.session
        broker = None if holder is None else self._cluster.broker_of_session(holder)
        broker = broker or self._cluster.coordinator_of(facts.head.group_id)
        return broker is not None and broker.node_id == self._node_id

    async def _holder(self, group_id: str) -> BrokerInfo | None:
        """Return the living broker that holds a group's lease, as brokers are now: what is named will be believed."""
        try:
            session = await read_holder(self._store, self._keys.group(group_id))
            await self._cluster.refresh()
        except (Retryable, OutcomeUnknown) as error:
            raise loading(group_id) from error
        return None if session is None else self._cluster.broker_of_session(session)

    async def _existing(self, group_id: str) -> Seat | None:
        """Return the seat of a group that exists; one that does not is not taken, so that a question costs no key."""
        seat = self._seats.held(group_id)
        if seat is None:
            try:
                if await read_head(self._store, self._keys.group(group_id)) is None:
                    return None
            except (Retryable, OutcomeUnknown) as error:
                raise loading(group_id) from error
            seat = await self._seats.take(group_id)
        return seat if seat.exists else None
