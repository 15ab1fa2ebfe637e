"""Topics on their way to the groups of a broker, and who is served meanwhile."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

import pytest

from headrace.groups.coordinator import GroupCoordinator
from headrace.groups.images import TopicImages
from headrace.groups.machine import GroupMachine
from headrace.groups.meters import GroupMetrics
from headrace.groups.patterns import Patterns
from headrace.groups.protocol import ConsumerBeat, ConsumerBeatReply, GroupConfig, Moment
from headrace.groups.records import Loaded
from headrace.groups.topic_news import MAX_UNUSED_PATTERNS, TopicNews
from headrace.model.error_codes import ErrorCode
from headrace.runtime.executor import InlineExecutor
from headrace.runtime.metrics import Metrics
from headrace.runtime.rng import seeded_rng
from headrace.testing.clock import ManualClock
from headrace.topics.admin import NewTopic, TopicAdmin
from headrace.topics.configs import TopicDefaults
from headrace.topics.directory import TopicDirectory
from tests.unit.groups.consumer_desk import FixedPace, heartbeat
from tests.unit.groups.office import KEYS, LIMITS, FlakyMetadata, Office, open_office

T = TypeVar("T")


class HoldingExecutor:
    """Keeps work until the test lets it go."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.waiting = 0

    async def run(self, work: Callable[[], T]) -> T:
        self.waiting += 1
        await self.gate.wait()
        self.waiting -= 1
        return await InlineExecutor().run(work)

    def close(self) -> None:
        return None


class Bench:
    """A broker's group side with patterns and news, wired as the composition root does."""

    def __init__(self, store: FlakyMetadata, clock: ManualClock) -> None:
        self.store, self.clock = store, clock
        self.executor = HoldingExecutor()

    async def open(self) -> None:
        topics = TopicDirectory(self.store, defaults=TopicDefaults(), clock=self.clock)
        images = TopicImages(topics)
        self.topics = topics
        self.patterns = Patterns(names=lambda: images.current().by_name, executor=self.executor, worked_s=lambda: 0.0)
        images.match_by(self.patterns.matching)

        def make_machine(loaded: Loaded, now: Moment) -> GroupMachine:
            return GroupMachine(
                loaded,
                limits=LIMITS,
                rng=seeded_rng(1),
                now=now,
                image=images.current(),
                config=GroupConfig(session_timeout_ms=45_000, heartbeat_interval_ms=None),
                pace=FixedPace(),
            )

        self.office: Office = await open_office(
            self.store, self.clock, make_machine=make_machine, patterns=self.patterns, before_load=topics.refresh
        )
        self.news = TopicNews(images=images, patterns=self.patterns, seats=self.office.seats, clock=self.clock)
        topics.on_change(self.news.changed)
        self.coordinator = GroupCoordinator(
            node_id=1,
            store=self.store,
            keys=KEYS,
            cluster=self.office.cluster,
            topics=topics,
            seats=self.office.seats,
            metrics=GroupMetrics(Metrics()),
            patterns=self.patterns,
        )
        self.running = asyncio.create_task(self.news.run())

    async def close(self) -> None:
        self.running.cancel()
        await self.office.close()

    async def create(self, *names: str) -> None:
        admin = TopicAdmin(
            store=self.store,
            keys=KEYS,
            directory=self.topics,
            clock=self.clock,
            rng=seeded_rng(" ".join(names)),
            defaults=TopicDefaults(),
            default_partition_count=1,
        )
        for name in names:
            await admin.create(NewTopic(name=name))
        await self.topics.refresh()

    async def beat(self, group_id: str, event: ConsumerBeat) -> ConsumerBeatReply:
        reply = await self.coordinator.call(group_id, event)
        assert isinstance(reply, ConsumerBeatReply)
        return reply

    async def join(
        self, group_id: str, *, regex: str | None = None, topics: tuple[str, ...] | None = None
    ) -> ConsumerBeatReply:
        return await self.beat(group_id, heartbeat("m", 0, regex=regex, topics=topics, rebalance_ms=60_000, owned={}))

    def subscribed(self, group_id: str) -> set[str]:
        seat = self.office.seats.held(group_id)
        assert seat is not None
        return set(seat.machine.subscribed() or ())


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench(FlakyMetadata(), ManualClock())
    await made.open()
    yield made
    await made.close()


async def test_first_join_waits_for_its_pattern_and_others_are_served_meanwhile(bench: Bench) -> None:
    await bench.create("orders", "bills")
    bench.executor.gate.clear()
    joining = asyncio.create_task(bench.join("slow", regex="orders.*"))
    await bench.clock.settle()
    assert bench.executor.waiting == 1 and not joining.done()
    reply = await bench.join("quick", topics=("bills",))
    assert reply.error is ErrorCode.NONE and reply.assignment, "no other request waits for the pattern"
    assert not joining.done()
    bench.executor.gate.set()
    reply = await joining
    assert reply.error is ErrorCode.NONE and reply.assignment is not None and len(reply.assignment) == 1


async def test_groups_keep_what_they_have_until_new_names_were_matched_and_heartbeats_are_answered(
    bench: Bench,
) -> None:
    await bench.create("orders-1")
    first = await bench.join("g", regex="orders.*")
    bench.executor.gate.clear()
    await bench.create("orders-2")
    await bench.clock.settle()
    reply = await bench.beat("g", heartbeat("m", first.member_epoch))
    assert reply.member_epoch == first.member_epoch and bench.subscribed("g") == {"orders-1"}
    bench.executor.gate.set()
    await bench.clock.settle()
    assert bench.subscribed("g") == {"orders-1", "orders-2"}


async def test_many_groups_share_the_matching_and_changes_are_told_together(bench: Bench) -> None:
    await bench.create("orders-1", "bills")
    for number in range(30):
        await bench.join(f"g{number}", regex="orders.*")
    assert bench.patterns.matched_names == 2
    await bench.create("orders-2", "orders-3")
    await bench.clock.settle()
    await bench.clock.advance(0)
    assert all(bench.subscribed(f"g{number}") == {"orders-1", "orders-2", "orders-3"} for number in range(30))
    assert bench.patterns.matched_names == 4, "each new name was matched once, for all groups"


async def test_pattern_that_is_invalid_is_refused_and_leaves_no_member(bench: Bench) -> None:
    reply = await bench.join("g", regex="(")
    assert reply.error is ErrorCode.INVALID_REGULAR_EXPRESSION and "is invalid" in str(reply.error_message)
    assert await bench.coordinator.describe("g") is None


async def test_group_that_is_loaded_again_knows_what_its_patterns_stand_for(bench: Bench) -> None:
    await bench.create("orders-1", "bills")
    await bench.join("g", regex="orders.*")
    await bench.office.seats.drain()
    await bench.close()
    again = Bench(bench.store, bench.clock)
    await again.open()
    await again.coordinator.describe("g")
    assert again.subscribed("g") == {"orders-1"} and again.patterns.matched_names == 2
    await again.close()


async def test_patterns_that_members_no_longer_use_are_forgotten(bench: Bench) -> None:
    await bench.create("orders")
    await bench.join("g", regex="orders")
    for number in range(MAX_UNUSED_PATTERNS + 5):
        async with bench.patterns.held([f"unused{number}"], is_new=True):
            pass
    await bench.news.tick()
    await bench.clock.settle()
    assert len(bench.patterns) == 1 and bench.subscribed("g") == {"orders"}
