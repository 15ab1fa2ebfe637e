"""Brokers that coordinate groups over one store in memory, on a clock that the test moves."""

import asyncio
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from headrace.cluster.membership import Membership, Place
from headrace.cluster.view import ClusterView
from headrace.groups.classic import ClassicGroup
from headrace.groups.coordinator import GroupCoordinator
from headrace.groups.meters import GroupMetrics
from headrace.groups.pace import BrokerPace
from headrace.groups.protocol import Client, CommitClaim, GroupLimits, Join, JoinReply, Moment, Sync, SyncReply
from headrace.groups.records import Loaded, OffsetRecord
from headrace.groups.seats import Seats
from headrace.metadata.keys import DomainKeys
from headrace.metadata.memory import MemoryMetadata
from headrace.metadata.port import Committed, Decision, Reads, Seen, Unit
from headrace.model.ids import DomainId, SessionId
from headrace.model.topics import TopicId
from headrace.runtime.crash_points import NoCrashes
from headrace.runtime.logs import open_log
from headrace.runtime.metrics import Metrics
from headrace.runtime.rng import seeded_rng
from headrace.testing.clock import ManualClock
from headrace.topics.configs import TopicDefaults
from headrace.topics.directory import TopicDirectory

T = TypeVar("T")

KEYS = DomainKeys(DomainId(0))
TOPIC = TopicId(bytes(range(16)))
NOBODY = CommitClaim(member_id="", instance_id=None, epoch=-1, knows_epochs=True)
LIMITS = GroupLimits(
    max_members=100,
    min_session_timeout_ms=1_000,
    max_session_timeout_ms=60_000,
    initial_rebalance_delay_ms=0,
    max_metadata_bytes=10_000,
    max_subscribed_topics=100,
)
SESSION_MS = 5_000
IDLE_S = 60.0


class FlakyMetadata(MemoryMetadata):
    """A store that fails when the test wishes, before or after the effect."""

    def __init__(self) -> None:
        super().__init__(seeded_rng("store"))
        self.before: Exception | None = None
        self.after: Exception | None = None
        self.hold: asyncio.Event | None = None
        self.transactions = 0

    async def transact(
        self,
        units: Sequence[Unit],
        reads: Reads,
        decide: Callable[[Seen], Decision[T]],
        *,
        session: SessionId | None = None,
    ) -> Committed[T]:
        if self.hold is not None:
            await self.hold.wait()
        if self.before is not None:
            raise self.before
        done = await super().transact(units, reads, decide, session=session)
        self.transactions += 1
        if self.after is not None:
            raise self.after
        return done


@dataclass(frozen=True, slots=True, kw_only=True)
class Office:
    """One broker's group side."""

    node_id: int
    membership: Membership
    seats: Seats
    coordinator: GroupCoordinator
    cluster: ClusterView
    topics: TopicDirectory
    alarms: "asyncio.Task[None]"

    async def close(self) -> None:
        self.alarms.cancel()
        self.seats.end()
        await self.membership.leave()


async def open_office(store: MemoryMetadata, clock: ManualClock, node_id: int = 1, **seats: Any) -> Office:
    """Start a broker's group side."""
    log = open_log(io.StringIO(), clock=clock)
    rng = seeded_rng(f"office {node_id}")
    topics = TopicDirectory(store, defaults=TopicDefaults(), clock=clock)
    cluster = ClusterView(store, cluster_id="cluster", clock=clock)
    metrics = GroupMetrics(Metrics())

    def make_machine(loaded: Loaded, now: Moment) -> ClassicGroup:
        return ClassicGroup(loaded, limits=LIMITS, rng=rng, now=now)

    made = Seats(
        store=store,
        keys=KEYS,
        make_machine=seats.get("make_machine", make_machine),
        before_load=seats.get("before_load", topics.refresh),
        clock=clock,
        crash_points=NoCrashes(),
        log=log,
        metrics=metrics,
        pace=BrokerPace(beats_per_second=1_000),
        max_groups=seats.get("max_groups", 100),
        idle_s=IDLE_S,
        patterns=seats.get("patterns"),
    )
    membership = await Membership.join(
        store,
        Place(node_id=node_id, host="host", port=9000 + node_id, rack=None, lock=f"lock {node_id}"),
        session_timeout_ms=SESSION_MS,
        clock=clock,
        rng=rng,
        log=log,
    )
    cluster.count_self(membership.record, membership.is_present)
    made.begin(membership)
    coordinator = GroupCoordinator(
        node_id=node_id, store=store, keys=KEYS, cluster=cluster, topics=topics, seats=made, metrics=metrics
    )
    await cluster.refresh()
    return Office(
        node_id=node_id,
        membership=membership,
        seats=made,
        coordinator=coordinator,
        cluster=cluster,
        topics=topics,
        alarms=asyncio.create_task(made.alarms.run()),
    )


def join(member_id: str = "", **changes: Any) -> Join:
    """Return the join of a member that speaks an old version, so that it is let in at once."""
    values: dict[str, Any] = {
        "member_id": member_id,
        "instance_id": None,
        "protocol_type": "consumer",
        "protocols": (("range", b"\0\0\0\0\0\0\0\0\0\0"),),
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 10_000,
        "client": Client("client", "/host"),
        "needs_member_id": False,
    }
    return Join(**(values | changes))


async def joined(office: Office, group_id: str) -> JoinReply:
    """Join as the only member of a group and sync; return what the member was told."""
    reply = await office.coordinator.call(group_id, join())
    assert isinstance(reply, JoinReply) and not reply.error, reply
    synced = await office.coordinator.call(
        group_id,
        Sync(
            member_id=reply.member_id,
            instance_id=None,
            generation=reply.generation,
            assignments=((reply.member_id, b"all"),),
        ),
    )
    assert synced == SyncReply(protocol_type="consumer", protocol="range", assignment=b"all")
    return reply


def offset(value: int, *, at_ms: int = 0) -> OffsetRecord:
    return OffsetRecord(value, -1, "", at_ms)
