"""Silent producers are forgotten, a few streams per tick, and those that still send are kept."""

from headrace.gc.expiring import ProducerExpirer
from headrace.metadata.keys import prefix_range
from headrace.model.ids import StreamId
from headrace.testing.clock import ManualClock
from tests.log_kit import EXPIRATION_MS, LogKit, batch


async def producers_of(log: LogKit, stream: StreamId) -> int:
    return len(await log.store.range(prefix_range(log.keys.producers_prefix(stream), limit=100)))


def expirer(
    log: LogKit, streams: list[StreamId], *, streams_per_tick: int, producers_per_step: int
) -> ProducerExpirer:
    return ProducerExpirer(
        keys=log.keys,
        metadata=log.store,
        clock=ManualClock(now_ms=log.now_ms),
        streams=lambda: streams,
        expiration_ms=EXPIRATION_MS,
        streams_per_tick=streams_per_tick,
        producers_per_step=producers_per_step,
    )


async def test_round_after_round_every_stream_loses_its_silent_producers_only() -> None:
    log = LogKit()
    streams = await log.streams(3)
    await log.writer()
    for stream in streams:
        for producer in range(5):
            await log.commit((stream, [batch(producer=producer, sequence=0)]))
    log.now_ms += EXPIRATION_MS
    await log.commit((streams[1], [batch(producer=3, sequence=0)]))
    keeper = expirer(log, streams, streams_per_tick=2, producers_per_step=2)
    forgotten = [await keeper.tick() for _ in range(6)]
    assert sum(forgotten) == 14 and max(forgotten) <= 4, "bounded work per tick"
    assert [await producers_of(log, stream) for stream in streams] == [0, 1, 0]


async def test_nothing_happens_where_there_are_no_streams() -> None:
    log = LogKit()
    assert await expirer(log, [], streams_per_tick=2, producers_per_step=2).tick() == 0
