"""Each fault does to a request what its name says, and one seed replays one history."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import Exists, Fenced, Invalid, Missing, OutcomeUnknown, Retryable, Throttled
from headrace.metadata.keys import DomainKeys
from headrace.metadata.memory import MemoryMetadata
from headrace.metadata.port import Decision, MetadataStore, Reads, Seen
from headrace.model.ids import DomainId, ObjectKey
from headrace.objects.memory import MemoryObjects
from headrace.objects.port import ByteRange, ObjectStore
from headrace.runtime.clock import Clock
from headrace.runtime.crash_points import CrashPoint, CrashPoints
from headrace.testing.simulation.faults import LIST_PAGE_OBJECTS, FaultyMetadata, FaultyObjects
from headrace.testing.simulation.loop import SimLoop, run_simulation
from headrace.testing.simulation.plan import FaultKind, FaultPlan, FaultRates
from headrace.testing.simulation.process import SimClock, SimCrashPoints, SimProcess

ROOT = Path(__file__).parents[3]
KEY = ObjectKey("wal/1")
KEYS = DomainKeys(DomainId(0))


class World:
    """One process, its faulty stores, and the stores themselves."""

    def __init__(self, loop: SimLoop, rates: FaultRates) -> None:
        self.loop = loop
        self.plan = FaultPlan(loop.rng("faults"), rates)
        self.stored = MemoryObjects(SimClock(loop))
        self.facts = MemoryMetadata(loop.rng("metadata"))
        self.process = SimProcess("broker", loop)
        self.objects = FaultyObjects(self.stored, self.process, self.plan)
        self.metadata = FaultyMetadata(self.facts, self.process, self.plan)

    async def has(self, key: ObjectKey) -> bool:
        try:
            await self.stored.head(key)
        except Missing:
            return False
        return True

    async def add_one(self) -> int:
        """Add one to a counter in the metadata store, through the faulty handle."""

        def decide(seen: Seen) -> Decision[int]:
            value = int(seen.get(KEYS.state) or b"0") + 1
            return Decision(result=value, puts={KEYS.state: str(value).encode()})

        return (await self.metadata.transact([KEYS.unit], Reads(keys=[KEYS.state]), decide)).result

    async def counter(self) -> int:
        found = await self.facts.get(KEYS.state)
        return 0 if found is None else int(found.value)


def simulate(rates: FaultRates, body: Callable[[World], Coroutine[Any, Any, None]], *, seed: int = 1) -> None:
    async def main(loop: SimLoop) -> None:
        world = World(loop, rates)
        await world.process.call(body(world))

    run_simulation(seed, main)


@pytest.mark.parametrize(
    ("rates", "error", "is_there"),
    [
        (FaultRates(retryable=1.0), Retryable, False),
        (FaultRates(throttled=1.0), Throttled, False),
        (FaultRates(reset=1.0), OutcomeUnknown, False),
        (FaultRates(lost_answer=1.0), OutcomeUnknown, True),
        (FaultRates(own_exists=1.0), Exists, True),
    ],
)
def test_a_put_fails_before_or_after_its_effect(rates: FaultRates, error: type[Exception], is_there: bool) -> None:
    async def body(world: World) -> None:
        with pytest.raises(error):
            await world.objects.put_if_absent(KEY, [b"bytes"])
        assert await world.has(KEY) is is_there
        assert sum(world.plan.injected.values()) == 1

    simulate(rates, body)


@pytest.mark.parametrize(
    ("rates", "error", "counted"),
    [
        (FaultRates(retryable=1.0), Retryable, 0),
        (FaultRates(reset=1.0), OutcomeUnknown, 0),
        (FaultRates(lost_answer=1.0), OutcomeUnknown, 1),
    ],
)
def test_a_transaction_fails_before_or_after_its_effect(
    rates: FaultRates, error: type[Exception], counted: int
) -> None:
    async def body(world: World) -> None:
        with pytest.raises(error):
            await world.add_one()
        assert await world.counter() == counted

    simulate(rates, body)


def test_a_late_effect_comes_after_the_caller_was_told_that_the_outcome_is_unknown() -> None:
    async def body(world: World) -> None:
        data = bytearray(b"first")
        with pytest.raises(OutcomeUnknown):
            await world.objects.put(KEY, [data])
        assert not await world.has(KEY)
        data[:] = b"later"
        await world.process.clock.sleep(5)
        assert await world.stored.get(KEY) == b"first"

    simulate(FaultRates(late_effect=1.0, max_delay_ms=4000.0), body)


@pytest.mark.parametrize("seed", range(4))
def test_a_delay_makes_a_request_slow_and_leaves_it_whole(seed: int) -> None:
    async def body(world: World) -> None:
        began = world.loop.time()
        await world.objects.put(KEY, [b"bytes"])
        assert await world.objects.get(KEY) == b"bytes"
        assert world.loop.time() - began > 0.01
        assert world.plan.injected[FaultKind.DELAY] == 2

    simulate(FaultRates(delay=1.0, max_delay_ms=10_000.0), body, seed=seed)


def test_reads_never_have_an_unknown_outcome() -> None:
    async def body(world: World) -> None:
        await world.stored.put(KEY, [b"bytes"])
        assert await world.objects.get(KEY) == b"bytes"
        assert await world.objects.get_ranges(KEY, [ByteRange(start_byte=1, size_bytes=2)]) == [b"yt"]
        assert (await world.objects.head(KEY)).size_bytes == 5
        assert await world.metadata.get(KEYS.state) is None
        assert await world.metadata.sessions() == []

    simulate(FaultRates(lost_answer=1.0, reset=1.0, late_effect=1.0, own_exists=1.0), body)


def test_the_ports_work_as_ever_when_nothing_goes_wrong() -> None:
    async def body(world: World) -> None:
        names = [ObjectKey(f"many/{number:04d}") for number in range(LIST_PAGE_OBJECTS * 2)]
        for name in names:
            await world.objects.put(name, [name.encode()])
        assert [info.key async for info in world.objects.list("many/", start_after=names[4])] == names[5:]
        await world.objects.delete(names)
        assert [info async for info in world.objects.list("")] == []
        upload = await world.objects.upload(KEY)
        await upload.write(b"two ")
        await upload.write(b"pieces")
        await upload.complete()
        assert await world.objects.get(KEY) == b"two pieces"
        await (await world.objects.upload(KEY)).abort()
        assert [await world.add_one() for _ in range(3)] == [1, 2, 3]
        with pytest.raises(Missing):
            await world.objects.get(ObjectKey("nothing"))
        session = await world.metadata.open_session(timeout_ms=1000)
        await world.metadata.renew_session(session)
        (seen,) = await world.metadata.sessions()
        assert await world.metadata.expire_session(seen)
        await world.metadata.end_session(session)
        await world.objects.close()
        await world.metadata.close()
        assert await world.counter() == 3

    simulate(FaultRates.calm(), body)


def test_a_listing_can_fail_in_the_middle() -> None:
    async def main(loop: SimLoop) -> tuple[int, bool]:
        world = World(loop, FaultRates(retryable=0.5))
        for number in range(LIST_PAGE_OBJECTS * 3):
            await world.stored.put(ObjectKey(f"many/{number:04d}"), [b""])
        count = 0
        try:
            async for _ in world.objects.list("many/"):
                count += 1
        except Retryable:
            return count, False
        return count, True

    ends = {run_simulation(seed, main) for seed in range(40)}
    assert (LIST_PAGE_OBJECTS, False) in ends
    assert (0, False) in ends
    assert (LIST_PAGE_OBJECTS * 3, True) in ends


def test_a_decision_can_be_computed_twice_and_counts_once() -> None:
    async def body(world: World) -> None:
        calls = 0

        def decide(seen: Seen) -> Decision[int]:
            nonlocal calls
            calls += 1
            return Decision(result=calls, puts={KEYS.state: b"x"})

        assert (await world.metadata.transact([KEYS.unit], Reads(), decide)).result == 2

    simulate(FaultRates(decided_twice=1.0), body)


def test_a_session_ends_just_before_it_is_used() -> None:
    async def body(world: World) -> None:
        for use_it in ("renew", "transact"):
            session = await world.metadata.open_session(timeout_ms=1000)
            with pytest.raises(Fenced):
                if use_it == "renew":
                    await world.metadata.renew_session(session)
                else:
                    await world.metadata.transact(
                        [KEYS.unit], Reads(), lambda _: Decision(result=None), session=session
                    )
            assert await world.facts.sessions() == []

    simulate(FaultRates(session_expiry=1.0), body)


@pytest.mark.parametrize(
    ("rates", "error", "written"),
    [
        (FaultRates(retryable=1.0), Retryable, range(1)),
        (FaultRates(reset=1.0), OutcomeUnknown, range(1)),
        (FaultRates(lost_answer=1.0), OutcomeUnknown, range(6, 7)),
        (FaultRates(torn=1.0), OutcomeUnknown, range(6)),
    ],
)
def test_an_append_is_whole_torn_or_nothing_and_ends_its_segment(
    rates: FaultRates, error: type[Exception], written: range
) -> None:
    async def main(loop: SimLoop) -> int:
        world = World(loop, FaultRates.calm())
        assert world.objects.segments is not None
        segment = await world.objects.segments.create_segment(KEY, capacity_bytes=1000)
        world.plan.change(rates)
        with pytest.raises(error):
            await segment.append([b"abc", b"def"])
        world.plan.quiesce()
        with pytest.raises(Invalid, match="takes no more appends"):
            await segment.append([b"more"])
        await segment.seal()
        stored = bytes(await world.stored.get(KEY))
        assert b"abcdef".startswith(stored)
        return len(stored)

    sizes = {run_simulation(seed, main) for seed in range(30)}
    assert sizes <= set(written)
    assert len(sizes) > 1 or len(written) == 1


def test_appends_under_way_at_once_land_in_any_order_each_at_its_own_place() -> None:
    async def body(world: World) -> None:
        assert world.objects.segments is not None
        segment = await world.objects.segments.create_segment(KEY, capacity_bytes=1000)
        positions = await asyncio.gather(*[segment.append([b"%d" % number]) for number in range(10)])
        assert sorted(positions) == list(range(10))
        assert positions != list(range(10)), "the delays of this seed change the order"
        assert segment.size_bytes == 10
        await segment.seal()
        stored = bytes(await world.objects.get(KEY))
        assert [stored[position] - ord("0") for position in positions] == list(range(10))
        await world.objects.segments.seal_segment(KEY, size_bytes=5)
        assert await world.objects.get(KEY) == stored[:5]

    simulate(FaultRates.calm(), body)


def test_a_lost_signal_is_followed_by_one_that_says_so() -> None:
    async def body(world: World) -> None:
        watch = world.metadata.watch(KEYS.unit)
        assert (await watch.wait()).revision == 0
        assert not world.plan.injected
        began = world.loop.time()
        await world.add_one()
        assert (await watch.wait()).revision == 0
        assert world.loop.time() - began >= 30
        assert world.plan.injected[FaultKind.LOST_SIGNAL] == 1

    simulate(FaultRates(lost_signal=1.0, resync_ms=30_000.0), body)


def test_a_cancelled_wait_loses_no_signal() -> None:
    async def body(world: World) -> None:
        watch = world.metadata.watch(KEYS.unit)
        await watch.wait()
        await world.add_one()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(watch.wait(), 0.000_1)
        assert (await watch.wait()).revision == 1

    simulate(FaultRates(late_signal=1.0, max_latency_ms=50.0), body)


@pytest.mark.parametrize("is_late", [False, True])
def test_a_closed_watch_wakes_its_waiter(is_late: bool) -> None:
    async def body(world: World) -> None:
        watch = world.metadata.watch(KEYS.unit)
        await watch.wait()
        waiting = asyncio.ensure_future(watch.wait())
        await world.process.clock.sleep(1)
        if is_late:
            await world.add_one()
            await world.process.clock.sleep(0.1)
        await world.metadata.close()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not world.process.requests

    simulate(FaultRates(lost_signal=1.0), body)


def test_what_a_killed_process_had_sent_lands_or_not() -> None:
    async def main(loop: SimLoop) -> tuple[bool, bool]:
        world = World(loop, FaultRates.calm())
        second = ObjectKey("wal/second")

        async def write() -> None:
            try:
                await world.objects.put(KEY, [b"bytes"])
            finally:
                await world.objects.put(second, [b"never"])

        world.process.spawn(write())
        await asyncio.sleep(0.0005)
        world.process.crash()
        await asyncio.sleep(10)
        return await world.has(KEY), await world.has(second)

    ends = {run_simulation(seed, main) for seed in range(60)}
    assert (False, False) in ends
    assert (True, False) in ends
    # Where the answer had arrived before the crash, the second request may be in flight, too.
    assert ends <= {(False, False), (True, False), (True, True)}


def test_unwinding_code_of_a_killed_process_reaches_no_store() -> None:
    async def main(loop: SimLoop) -> bool:
        world = World(loop, FaultRates.calm())

        async def work() -> None:
            try:
                world.process.crash()
            finally:
                await world.objects.put(KEY, [b"never"])

        world.process.spawn(work())
        await asyncio.sleep(10)
        return await world.has(KEY)

    assert not run_simulation(1, main)


def test_orphans_are_dropped_land_or_tear() -> None:
    async def main(loop: SimLoop) -> tuple[int, dict[FaultKind, int]]:
        world = World(loop, FaultRates.calm())
        assert world.objects.segments is not None
        segment = await world.objects.segments.create_segment(KEY, capacity_bytes=1000)

        world.process.spawn(segment.append([b"abcdef"]))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        world.process.crash()
        await asyncio.sleep(1)
        stored = bytes(await world.stored.get(KEY)).rstrip(b"\0")
        assert b"abcdef".startswith(stored)
        return len(stored), dict(world.plan.injected)

    ends = [run_simulation(seed, main) for seed in range(60)]
    assert {size for size, injected in ends if FaultKind.DROPPED_BY_CRASH in injected} == {0}
    assert {size for size, injected in ends if FaultKind.LANDED_AFTER_CRASH in injected} == {6}
    assert {size for size, injected in ends if FaultKind.TORN_BY_CRASH in injected} <= set(range(6))
    assert {kind for _, injected in ends for kind in injected} == {
        FaultKind.DROPPED_BY_CRASH,
        FaultKind.LANDED_AFTER_CRASH,
        FaultKind.TORN_BY_CRASH,
    }


def test_a_request_of_a_paused_process_takes_effect_and_its_answer_waits() -> None:
    async def main(loop: SimLoop) -> None:
        world = World(loop, FaultRates.calm())
        seen: list[str] = []

        async def write() -> None:
            await world.objects.put(KEY, [b"bytes"])
            seen.append("answered")

        world.process.spawn(write())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        world.process.pause()
        await asyncio.sleep(10)
        assert await world.has(KEY)
        assert seen == []
        world.process.resume()
        await asyncio.sleep(1)
        assert seen == ["answered"]

    run_simulation(1, main)


def test_a_store_that_waits_inside_is_not_held_by_a_dead_process() -> None:
    class SlowObjects(MemoryObjects):
        """Takes a lock and waits with it, as a store with a connection would."""

        lock = asyncio.Lock()

        async def put(self, key: ObjectKey, data: Any) -> None:
            async with self.lock:
                await asyncio.sleep(1)
                await super().put(key, data)

    async def main(loop: SimLoop) -> None:
        stored, plan = SlowObjects(SimClock(loop)), FaultPlan(loop.rng("faults"), FaultRates.calm())
        first, second = (SimProcess(name, loop) for name in ("first", "second"))
        first.spawn(FaultyObjects(stored, first, plan).put(KEY, [b"first"]))
        await asyncio.sleep(0.5)
        first.crash()
        await second.call(FaultyObjects(stored, second, plan).put(ObjectKey("other"), [b"second"]))
        assert await stored.get(KEY) == b"first"
        assert await stored.get(ObjectKey("other")) == b"second"

    run_simulation(1, main)


def busy_history(seed: int) -> tuple[int, dict[FaultKind, int]]:
    """Run three processes under every fault, with a crash and a pause; return digest and counters."""

    async def work(world: World, name: str) -> None:
        metadata, clock = world.metadata, world.process.clock
        assert world.objects.segments is not None
        for number in range(40):
            try:
                session = await metadata.open_session(timeout_ms=1000)
                await metadata.renew_session(session)
                await world.objects.put_if_absent(ObjectKey(f"{name}/{number}"), [b"bytes"])
                segment = await world.objects.segments.create_segment(
                    ObjectKey(f"{name}/s/{number}"), capacity_bytes=100
                )
                await segment.append([b"abc"])
                await segment.append([b"def"])
                await segment.seal()
                await world.add_one()
            except (Retryable, OutcomeUnknown, Exists, Fenced):
                await clock.sleep(0.01)

    async def follow(world: World) -> None:
        watch = world.metadata.watch(KEYS.unit)
        while True:
            await watch.wait()

    async def main(loop: SimLoop) -> tuple[int, dict[FaultKind, int]]:
        worlds = [World(loop, FaultRates.rough()) for _ in range(3)]
        for number, world in enumerate(worlds):
            world.process.name = f"broker-{number}"
            world.process.spawn(work(world, f"w{number}"))
            world.process.spawn(follow(world))
            world.process.spawn(work(world, f"x{number}"))
        await asyncio.sleep(0.2)
        worlds[0].process.crash()
        worlds[1].process.pause()
        await asyncio.sleep(1)
        worlds[1].process.resume()
        await asyncio.sleep(60)
        total: dict[FaultKind, int] = {}
        for world in worlds:
            for kind, count in world.plan.injected.items():
                total[kind] = total.get(kind, 0) + count
        return loop.trace_digest, total

    return run_simulation(seed, main)


def test_one_seed_gives_one_history_and_another_seed_another() -> None:
    assert busy_history(5) == busy_history(5)
    assert busy_history(5)[0] != busy_history(6)[0]


def test_every_kind_of_fault_happens_in_a_rough_world() -> None:
    happened = {kind for seed in range(40) for kind in busy_history(seed)[1]}
    assert happened == set(FaultKind)


def test_a_history_depends_on_neither_the_hash_seed_nor_the_process() -> None:
    script = f"from {__name__} import busy_history; print(busy_history(5)[0])"
    digests = set()
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
        )
        digests.add(int(done.stdout))
    assert digests == {busy_history(5)[0]}


def test_the_faulty_stores_are_stores() -> None:
    async def main(loop: SimLoop) -> None:
        world = World(loop, FaultRates.calm())
        # The types are the test: mypy holds these against the ports.
        objects: ObjectStore = world.objects
        metadata: MetadataStore = world.metadata
        clock: Clock = world.process.clock
        crash_points: CrashPoints = SimCrashPoints(world.process)
        crash_points.reach(CrashPoint.FOLD_AFTER_READ)
        assert objects.segments is not None
        assert clock.now_ms() > 0
        assert await metadata.sessions() == []

    run_simulation(1, main)
