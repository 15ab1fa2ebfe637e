"""Everything that can happen to a log, against a list: every fetch returns the very bytes that were produced."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.fetch.catchup import CatchUpLimits
from headrace.fetch.fetcher import Fetched, Outcome
from headrace.fetch.tail import RUN_OVERHEAD_BYTES
from headrace.index.fold import plan_fold
from headrace.index.streams import advance_log_start
from headrace.model.ids import StreamId
from headrace.records.batch import LENGTH_END, iter_batches
from headrace.records.stamping import NO_LEADER_EPOCH, stamp_offset
from headrace.testing.batches import make_batch
from tests.unit.fetch.kit import FetchKit
from tests.unit.gc.folded import fold_all

STREAMS = 2
BROKERS = 2
LIMITS = CatchUpLimits(read_bytes=600, held_bytes=1500, far_bytes=2000, near_bytes=2000, near_distance_bytes=400)


@dataclass
class Model:
    """One stream as it must look: its batches with their offsets, and where it begins."""

    batches: list[tuple[int, int, bytes]] = field(default_factory=list)
    log_start: int = 0

    @property
    def high_watermark(self) -> int:
        return self.batches[-1][1] if self.batches else 0

    def append(self, produced: bytes) -> None:
        for view in iter_batches(memoryview(produced)):
            data = bytearray(view.data)
            start = self.high_watermark
            stamp_offset(memoryview(data), base_offset=start, leader_epoch=NO_LEADER_EPOCH)
            self.batches.append((start, start + view.record_count, bytes(data)))

    def check(self, offset: int, found: Fetched) -> None:
        if not self.log_start <= offset <= self.high_watermark:
            assert found.outcome is Outcome.OUT_OF_RANGE
            return
        assert (found.outcome, found.log_start) == (Outcome.FOUND, self.log_start)
        data = b"".join(found.records)
        assert len(data) == found.size_bytes
        expected = b"".join(batch for _, end, batch in self.batches if end > offset)
        assert expected.startswith(data), "other bytes than those that were produced"
        assert not data or found.end_offset in [end for _, end, _ in self.batches], "half a batch"


class World:
    """A log, two brokers that read it, and what must come out."""

    def __init__(self) -> None:
        self.kit = FetchKit(tail_bytes=3 * (200 + RUN_OVERHEAD_BYTES), limits=LIMITS, segment_max_bytes=1500)
        self.brokers = [self.kit.fetcher, self.kit.another()]
        self.streams: list[StreamId] = []
        self.models = [Model() for _ in range(STREAMS)]
        self.positions = [[0] * STREAMS for _ in range(BROKERS)]

    async def append(self, stream: int, sizes: list[int], is_here: bool) -> None:
        """Append batches in one request, here or as another broker would: no cache hears of it."""
        produced = b"".join(make_batch([b"%d" % n * (1 + n % 7) for n in range(size)]) for size in sizes)
        self.kit.writer._tail = self.kit.tail if is_here else None
        self.kit.writer._cache = self.kit.cache if is_here else None
        await self.kit.put_batch(self.streams[stream], produced)
        self.models[stream].append(produced)

    async def trim(self, stream: int, share: float) -> None:
        model = self.models[stream]
        log_start = model.log_start + int((model.high_watermark - model.log_start) * share)
        if log_start > model.log_start:
            rule = advance_log_start(self.kit.keys, self.streams[stream], log_start, now_ms=0)
            await rule.apply(self.kit.metadata)
            model.log_start = log_start
            # A broker may go on serving what it knows until it hears of the trim; here all of them have.
            for broker in self.brokers:
                await broker._index.refresh()

    async def fetch(self, broker: int, shares: list[float], max_bytes: int, partition_bytes: int) -> None:
        wanted = [int(model.high_watermark * share) for model, share in zip(self.models, shares, strict=True)]
        await self._fetch(broker, wanted, max_bytes, partition_bytes)

    async def read_on(self, broker: int, max_bytes: int, partition_bytes: int) -> None:
        """Read on where this broker's reader stopped."""
        positions = self.positions[broker]
        for stream, model in enumerate(self.models):
            positions[stream] = max(positions[stream], model.log_start)
        found = await self._fetch(broker, positions, max_bytes, partition_bytes)
        for stream, one in enumerate(found):
            if one.records:
                positions[stream] = one.end_offset

    async def _fetch(self, broker: int, offsets: list[int], max_bytes: int, partition_bytes: int) -> list[Fetched]:
        found = await self.kit.fetch(
            *zip(self.streams, offsets, strict=True),
            fetcher=self.brokers[broker],
            max_bytes=max_bytes,
            partition_bytes=partition_bytes,
        )
        for model, offset, one in zip(self.models, offsets, found, strict=True):
            model.check(offset, one)
        answered = [one for one in found if one.records]
        if answered:
            # The first batch is whole; beside it the limits hold.
            spare_bytes = _first_batch_bytes(answered[0])
            assert sum(one.size_bytes for one in found) <= max_bytes + spare_bytes
            assert answered[0].size_bytes <= max(partition_bytes, spare_bytes)
            assert all(one.size_bytes <= partition_bytes for one in answered[1:])
        has_data = [m.log_start <= o < m.high_watermark for m, o in zip(self.models, offsets, strict=True)]
        assert answered or not any(has_data), "nothing was found where something is"
        return found

    async def perform(self, step: tuple[object, ...]) -> None:
        name, *arguments = step
        match name:
            case "fold":
                if await plan_fold(self.kit.metadata, self.kit.keys, max_records=1, lag_records=0):
                    await fold_all(self.kit)
            case "evict":
                self.kit.tail.evict(300)
            case "settle":
                await self.kit.clock.settle()
            case _:
                await getattr(self, str(name))(*arguments)


def _first_batch_bytes(found: Fetched) -> int:
    return int.from_bytes(bytes(found.records[0][8:LENGTH_END]), "big") + LENGTH_END


STREAM = st.integers(0, STREAMS - 1)
BROKER = st.integers(0, BROKERS - 1)
BYTES = st.sampled_from([0, 1, 100, 250, 600, 100_000])
SHARES = st.lists(st.floats(0, 1.2), min_size=STREAMS, max_size=STREAMS)
APPEND = st.tuples(st.just("append"), STREAM, st.lists(st.integers(1, 5), min_size=1, max_size=5), st.booleans())
READ_ON = st.tuples(st.just("read_on"), BROKER, BYTES, BYTES)
STEPS = st.one_of(
    APPEND,
    APPEND,
    READ_ON,
    READ_ON,
    st.tuples(st.just("fetch"), BROKER, SHARES, BYTES, BYTES),
    st.tuples(st.just("trim"), STREAM, st.floats(0, 1)),
    st.sampled_from([("fold",), ("evict",), ("settle",)]),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(STEPS, min_size=1, max_size=40))
async def test_every_fetch_returns_what_was_produced(steps: list[tuple[object, ...]]) -> None:
    world = World()
    world.streams = await world.kit.start(STREAMS)
    try:
        for step in steps:
            await world.perform(step)
        for broker in range(BROKERS):
            while any(p < m.high_watermark for p, m in zip(world.positions[broker], world.models, strict=True)):
                await world.read_on(broker, 100_000, 400)
    finally:
        for fetcher in world.brokers:
            fetcher._catch_up.close()
        await world.kit.clock.settle()
        assert world.kit.writer._flusher is not None
        world.kit.writer._flusher.cancel()
