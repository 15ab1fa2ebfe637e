"""KIP-848 groups: the coordinator computes who should have what, and leads every member there, one step at a time.

    Empty ──────── the first member joins ────────────────────────────▶ Assigning
    Assigning ──── the target for the group's epoch is computed ──────▶ Reconciling
    Reconciling ── every member is in that epoch and has its target ──▶ Stable
    any but Empty ── a member comes, goes, is silent or wants something else; topics change ──▶ Assigning
    any ────────── the last member goes ──────────────────────────────▶ Empty

A small group is Assigning for no time at all: the target comes with the change. Three epochs tell how far things are:
the group's (what is wanted), the target's (what was computed), each member's (what it has heard of). One member's way
is in `reconciliation.py`, classic members on their way from one protocol to the other are in `consumer_classic.py`.

Behaves as Apache Kafka 4.3's coordinator does. On purpose we differ in this:
- A member that brings a regular expression is let in when it was resolved (`patterns.py`), so its first target has
  all topics.
- A new target is computed when its reason comes up, not at the next heartbeat that happens to arrive.
- A static member that joins again under its own member id is let in: its first answer may have been lost.
- A member that claims a partition which another one has is fenced, whatever its epoch.
- The heartbeat interval depends on what is going on, and on how long a member's answers take to reach it, unless it
  was set.
- An assignment is repeated in every answer until the member has confirmed it, by reporting that it owns just that.
- A member that comes with its last epoch and does not say what it owns, owns what it reported last: it is not fenced.

Must stay true:
- Any answer may be lost: the next heartbeat is told everything again that the member has not confirmed.
- No partition is ever in two members' hands: a member hears of a partition only after everybody else has reported
  not to own it, or has gone. A member that is silent for the session timeout counts as gone.
- A member's epoch, and what it has in it, is durable before it hears of either. Deadlines are memory only: after a
  restart sessions begin anew, and so do the deadlines of members that have to let go of something.
"""

import base64

from headrace.groups import consumer_classic
from headrace.groups.assignors import ASSIGNORS
from headrace.groups.consumer_core import GroupCore
from headrace.groups.consumer_members import Member
from headrace.groups.consumer_records import ConsumerMemberRecord, MemberState
from headrace.groups.consumer_refusals import Refused, unknown_member
from headrace.groups.consumer_subscriptions import Wish
from headrace.groups.protocol import (
    JOINING_EPOCH,
    LEAVING_EPOCH,
    STATIC_LEAVING_EPOCH,
    Beat,
    CommitClaim,
    ConfigChanged,
    ConsumerBeat,
    ConsumerBeatReply,
    ConsumerMember,
    Effect,
    Event,
    GroupConfig,
    GroupDescription,
    GroupLimits,
    Join,
    Leave,
    LimitsChanged,
    Moment,
    Pace,
    Partitions,
    Reply,
    Sync,
    Tick,
    TopicsChanged,
    TopicsImage,
)
from headrace.groups.reconciliation import partitions_of
from headrace.groups.records import GroupHead, Loaded
from headrace.groups.regexes import InvalidPattern
from headrace.model.error_codes import ErrorCode
from headrace.model.topics import TopicId
from headrace.runtime.rng import Rng

UNCHANGED_TIMEOUT_MS = -1
ID_BYTES = 16


class ConsumerGroup:
    """One group under KIP-848: a `Machine`."""

    def __init__(
        self,
        loaded: Loaded,
        *,
        limits: GroupLimits,
        rng: Rng,
        now: Moment,
        image: TopicsImage,
        config: GroupConfig,
        pace: Pace,
    ) -> None:
        self._core = GroupCore(loaded, now=now, image=image, config=config, pace=pace)
        self._limits = limits
        self._rng = rng

    # What others ask

    @property
    def head(self) -> GroupHead:
        return self._core.head

    @property
    def state(self) -> str:
        return self._core.state

    @property
    def member_count(self) -> int:
        return len(self._core.roster)

    @property
    def next_deadline_ms(self) -> int | None:
        return self._core.next_deadline_ms

    @property
    def has_only_classic_members(self) -> bool:
        """Whether there are members and none of them speaks KIP-848: the group can become a classic one."""
        return 0 < len(self._core.roster) == self._core.roster.classic_count

    def member_records(self) -> list[ConsumerMemberRecord]:
        """Return all members as they are stored, for whoever turns this group into a classic one."""
        return [member.record() for member in self._core.roster]

    def check_commit(self, claim: CommitClaim, now: Moment) -> ErrorCode:
        if claim.epoch < 0 and not len(self._core.roster):
            return ErrorCode.NONE
        member = self._core.roster.get(claim.member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if member.classic is None and not claim.knows_epochs:
            return ErrorCode.UNSUPPORTED_VERSION
        return ErrorCode.NONE if claim.epoch == member.standing.epoch else _wrong_epoch(member)

    def check_late_commit(self, claim: CommitClaim, topic_id: TopicId, partition: int) -> ErrorCode:
        """Say whether a member may commit one partition with an epoch that it has left in the meantime (KIP-1251).

        It may if it has had the partition since then: nobody else can have committed. To be asked where
        `check_commit` says that the epoch is not the member's.
        """
        member = self._core.roster.get(claim.member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        standing = member.standing
        since = standing.assigned.get(topic_id, {}).get(partition)
        if since is None:
            since = standing.revoking.get(topic_id, {}).get(partition)
        is_valid = since is not None and since <= claim.epoch <= standing.epoch
        return ErrorCode.NONE if is_valid else _wrong_epoch(member)

    def check_fetch(self, claim: CommitClaim) -> ErrorCode:
        if claim.epoch < 0 and not claim.member_id:
            return ErrorCode.NONE
        member = self._core.roster.get(claim.member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if claim.epoch == member.standing.epoch else _wrong_epoch(member)

    def subscribed(self) -> frozenset[str] | None:
        return self._core.subscriptions.names()

    def describe(self) -> GroupDescription:
        core = self._core
        return GroupDescription(
            head=core.head,
            state=core.state,
            protocol=core.assignor,
            consumer_members=tuple(_described(member, core.target_of(member)) for member in core.roster),
        )

    # What happens

    def handle(self, event: Event, token: int, now: Moment) -> list[Effect]:
        core = self._core
        if type(event) is ConsumerBeat:
            rest_reply = self._rest_reply(event, now)
            if rest_reply is not None:
                return [Reply(token, rest_reply)]
            core.begin(now)
            return core.finish(token, self._consumer_beat(event))
        core.begin(now)
        match event:
            case Join():
                return core.finish(token, consumer_classic.join(core, event, self._limits, self._new_id))
            case Sync():
                return core.finish(token, consumer_classic.sync(core, event))
            case Beat():
                return core.finish(token, consumer_classic.beat(core, event))
            case Leave():
                return core.finish(token, consumer_classic.leave(core, event))
            case Tick():
                core.expire()
            case TopicsChanged():
                core.subscriptions.turn_to(event.image)
                core.bump_if_topics_changed()
            case ConfigChanged():
                core.config = event.config
            case LimitsChanged():
                self._limits = event.limits
        return core.finish()

    def _rest_reply(self, event: ConsumerBeat, now: Moment) -> ConsumerBeatReply | None:
        """Answer a heartbeat that says nothing new to a group in which nothing happens; `None` for any other.

        Nearly all requests are of this kind, so nothing is built, and nothing is looked at that need not be.
        """
        core = self._core
        member = core.roster.get(event.member_id)
        if member is None or core.assign_at_ms is not None:
            return None
        standing = member.standing
        if (
            event.member_epoch != standing.epoch
            or standing.epoch != core.head.target_epoch
            or standing.state is not MemberState.STABLE
            or member.repeats_left
            or event.topics is not None
            or event.owned is not None
            or event.regex is not None
            or event.rebalance_timeout_ms != UNCHANGED_TIMEOUT_MS
            or event.assignor is not None
            or event.rack is not None
            or event.instance_id != member.instance_id
            or member.classic is not None
            or event.client != member.client
            or (event.turn_ms != member.greeted_ms and event.turn_ms is not None)
        ):
            return None
        core.now = now
        core.touch(member)
        reply = member.rest_reply
        interval_ms = core.interval_of(member)
        if reply is None or reply.heartbeat_interval_ms != interval_ms:
            reply = member.rest_reply = ConsumerBeatReply(
                member_id=member.id, member_epoch=standing.epoch, heartbeat_interval_ms=interval_ms
            )
        return reply

    def _consumer_beat(self, event: ConsumerBeat) -> ConsumerBeatReply:
        try:
            if event.member_epoch in (LEAVING_EPOCH, STATIC_LEAVING_EPOCH):
                return self._leave(event)
            self._check(event)
            return self._step(self._member_for(event), event)
        except Refused as refused:
            return ConsumerBeatReply(error=refused.code, error_message=str(refused))

    def _step(self, member: Member, event: ConsumerBeat) -> ConsumerBeatReply:
        """Take down what a member says, let it go on, and tell it where it stands."""
        core = self._core
        timeout_ms = event.rebalance_timeout_ms
        has_new_wishes = core.roster.describe(
            member,
            client=event.client,
            instance_id=member.instance_id if event.instance_id is None else event.instance_id,
            rack=member.rack if event.rack is None else event.rack,
            rebalance_timeout_ms=member.rebalance_timeout_ms if timeout_ms == UNCHANGED_TIMEOUT_MS else timeout_ms,
            wish=_wish(event, member.wish),
            assignor=member.assignor if event.assignor is None else event.assignor,
            classic=None,
        )
        core.see_to_target(has_new_wishes=has_new_wishes)
        core.reconcile(member, event.owned, has_new_wishes=has_new_wishes)
        core.touch(member)
        if event.owned is not None:
            core.roster.hear(member, event.owned, core.now.monotonic_ms)
        core.roster.greet(member, event.turn_ms)
        standing = member.standing
        is_complete = (
            timeout_ms != UNCHANGED_TIMEOUT_MS
            and (event.topics is not None or event.regex is not None)
            and event.owned is not None
        )
        is_told = event.member_epoch == JOINING_EPOCH or is_complete or member.repeats_left > 0
        if is_told:
            core.roster.told(member, core.now.monotonic_ms)
        return ConsumerBeatReply(
            member_id=member.id,
            member_epoch=standing.epoch,
            heartbeat_interval_ms=core.interval_of(member),
            assignment=partitions_of(standing.assigned) if is_told else None,
        )

    def _leave(self, event: ConsumerBeat) -> ConsumerBeatReply:
        core = self._core
        if event.instance_id is None:
            member = core.roster.get(event.member_id)
            if member is None:
                raise unknown_member(event.member_id)
        else:
            member = self._static_member(event.instance_id, event.member_id)
        if event.member_epoch == STATIC_LEAVING_EPOCH:
            core.send_away(member)
        else:
            core.remove(member)
        return ConsumerBeatReply(member_id=member.id, member_epoch=event.member_epoch)

    # Who it is

    def _member_for(self, event: ConsumerBeat) -> Member:
        """Return the member that a heartbeat is from, a new one if it joins; raise `Refused` if there is none."""
        is_joining = event.member_epoch == JOINING_EPOCH
        if is_joining and event.instance_id is not None:
            static = self._core.roster.static(event.instance_id)
            if static is not None and static.id != event.member_id:
                return self._return_of_static(static, event)
        member = self._core.roster.get(event.member_id)
        if is_joining:
            return member or self._new_member(event.member_id)
        if event.instance_id is not None:
            member = self._static_member(event.instance_id, event.member_id)
        if member is None:
            raise unknown_member(event.member_id)
        self._check_epoch(member, event)
        return member

    def _static_member(self, instance_id: str, member_id: str) -> Member:
        member = self._core.roster.static(instance_id)
        if member is None:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"instance id {instance_id} is not known in this group")
        if member.id != member_id:
            raise Refused(
                ErrorCode.FENCED_INSTANCE_ID,
                f"instance id {instance_id} is member {member.id}'s now, not {member_id}'s",
            )
        return member

    def _return_of_static(self, old: Member, event: ConsumerBeat) -> Member:
        core = self._core
        if old.classic is None and not old.is_away:
            raise Refused(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"member {event.member_id} cannot have instance id {event.instance_id} while member {old.id} has it",
            )
        if core.roster.get(event.member_id) is not None:
            raise Refused(ErrorCode.INVALID_REQUEST, f"member id {event.member_id} is another instance's")
        return core.replace(old, event.member_id or self._new_id())

    def _new_member(self, member_id: str) -> Member:
        if len(self._core.roster) >= self._limits.max_members:
            raise Refused(ErrorCode.GROUP_MAX_SIZE_REACHED, f"the group has {len(self._core.roster)} members already")
        member = Member(member_id or self._new_id())
        self._core.add(member)
        return member

    def _new_id(self) -> str:
        """Return an id of the form that Kafka's own clients use."""
        raw = self._rng.getrandbits(ID_BYTES * 8).to_bytes(ID_BYTES, "big")
        return base64.urlsafe_b64encode(raw).decode().rstrip("=")

    # What may be refused

    def _check(self, event: ConsumerBeat) -> None:
        """Raise `Refused` for a heartbeat that no member may send. Handlers have looked at its form."""
        if event.assignor is not None and event.assignor not in ASSIGNORS:
            raise Refused(
                ErrorCode.UNSUPPORTED_ASSIGNOR, f"there is no assignor {event.assignor}, but {', '.join(ASSIGNORS)}"
            )
        if event.topics is not None:
            self._check_topics(event.topics)
        if event.regex:
            try:
                self._core.subscriptions.image.matching(event.regex, ())
            except InvalidPattern as error:
                raise Refused(ErrorCode.INVALID_REGULAR_EXPRESSION, str(error)) from error

    def _check_topics(self, topics: tuple[str, ...]) -> None:
        if len(topics) > self._limits.max_subscribed_topics:
            raise Refused(
                ErrorCode.INVALID_REQUEST,
                f"{len(topics)} topics are too many: {self._limits.max_subscribed_topics} may be subscribed to",
            )
        size_bytes = sum(len(name.encode()) for name in topics)
        if size_bytes > self._limits.max_metadata_bytes:
            raise Refused(
                ErrorCode.INVALID_REQUEST,
                f"names of {size_bytes} bytes are too many: {self._limits.max_metadata_bytes} are allowed",
            )

    def _check_epoch(self, member: Member, event: ConsumerBeat) -> None:
        standing, epoch = member.standing, event.member_epoch
        if epoch != standing.epoch:
            # Whoever has not heard the last answer still has the epoch before. What it owns it must have been given
            # in that one, and kept since. librdkafka does not repeat what it owns after a lost answer: then what it
            # said last counts.
            is_late = epoch == standing.previous_epoch and epoch < standing.epoch
            owned = member.reported if event.owned is None else event.owned
            if not (is_late and _is_within(owned, partitions_of(standing.assigned))):
                raise Refused(
                    ErrorCode.FENCED_MEMBER_EPOCH,
                    f"member {member.id} comes with epoch {epoch} and is in {standing.epoch}: it has to join again",
                )
        elif event.owned is not None:
            taken = self._taken(member, event.owned)
            if taken is not None:
                raise Refused(
                    ErrorCode.FENCED_MEMBER_EPOCH,
                    f"member {member.id} claims partition {taken[1]} of topic {taken[0].hex()}, which another member "
                    "has: it has to join again",
                )

    def _taken(self, member: Member, owned: Partitions) -> tuple[TopicId, int] | None:
        """Return a partition that the member claims to own and another one has, if there is one."""
        assigned = member.standing.assigned
        for topic_id, partitions in owned.items():
            for partition in partitions.difference(assigned.get(topic_id, ())):
                holder = self._core.roster.holder(topic_id, partition)
                if holder is not None and holder != member.id:
                    return topic_id, partition
        return None


def _is_within(owned: Partitions | None, assigned: Partitions) -> bool:
    return owned is not None and all(
        partitions <= assigned.get(topic_id, frozenset()) for topic_id, partitions in owned.items()
    )


def _wish(event: ConsumerBeat, old: Wish) -> Wish:
    topics = old.topics if event.topics is None else tuple(sorted(set(event.topics)))
    return Wish(topics, old.regex if event.regex is None else event.regex or None)


def _wrong_epoch(member: Member) -> ErrorCode:
    return ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION


def _described(member: Member, target: Partitions) -> ConsumerMember:
    return ConsumerMember(
        member_id=member.id,
        instance_id=member.instance_id,
        rack=member.rack,
        member_epoch=member.standing.epoch,
        client=member.client,
        topics=member.wish.topics,
        regex=member.wish.regex,
        assigned=partitions_of(member.standing.assigned),
        target=target,
        is_classic=member.classic is not None,
    )
