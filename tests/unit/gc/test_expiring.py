"""Silent producers are forgotten, a few streams per tick, and those that still send are kept."""

from collections.abc import Callable

import pytest

from headrace.errors import Corrupt, Retryable
from headrace.gc.expiring import ProducerExpirer, SinkExpirer, SinkMetrics
from headrace.index.sinks import SinkCommit, begin_write, commit_batch
from headrace.metadata.keys import prefix_range
from headrace.metadata.port import Decision, Reads
from headrace.model.ids import ProducerId, StreamId, WriterId
from headrace.runtime.metrics import Metrics
from tests.log_kit import EXPIRATION_MS, LogKit, batch


async def producers_of(log: LogKit, stream: StreamId) -> int:
    return len(await log.store.range(prefix_range(log.keys.producers_prefix(stream), limit=100)))


def expirer(
    log: LogKit,
    streams: list[StreamId],
    *,
    streams_per_tick: int,
    producers_per_step: int,
    agreed: Callable[[], int | None] | None = None,
) -> ProducerExpirer:
    async def agreed_ms() -> int | None:
        return log.now_ms if agreed is None else agreed()

    return ProducerExpirer(
        keys=log.keys,
        metadata=log.store,
        agreed_ms=agreed_ms,
        streams=lambda: streams,
        expiration_ms=EXPIRATION_MS,
        streams_per_tick=streams_per_tick,
        producers_per_step=producers_per_step,
    )


async def test_producers_are_forgotten_by_the_clock_that_all_brokers_agree_on_only() -> None:
    log = LogKit()
    streams = await log.streams(1)
    await log.writer()
    await log.commit((streams[0], [batch(producer=1, sequence=0)]))
    began_ms = log.now_ms
    log.now_ms += 2 * EXPIRATION_MS  # this broker's own clock is far ahead
    agreed: list[int | None] = [None]
    keeper = expirer(log, streams, streams_per_tick=1, producers_per_step=9, agreed=lambda: agreed[-1])
    assert await keeper.tick() == 0, "while brokers do not agree, nothing is forgotten"
    agreed.append(began_ms + EXPIRATION_MS - 1)
    assert await keeper.tick() == 0 and await producers_of(log, streams[0]) == 1
    agreed.append(began_ms + EXPIRATION_MS + 1)
    assert await keeper.tick() == 1 and await producers_of(log, streams[0]) == 0


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
    forgotten = [await keeper.tick()]
    while not keeper.is_round_over:
        forgotten.append(await keeper.tick())
    assert sum(forgotten) == 14 and max(forgotten) <= 2, "bounded work per tick"
    assert [await producers_of(log, stream) for stream in streams] == [0, 1, 0], "one round sees all of them"


async def test_a_round_over_streams_without_silent_producers_makes_no_transaction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = LogKit()
    streams = await log.streams(7)
    await log.writer()
    await log.commit((streams[3], [batch(producer=1, sequence=0)]))
    agreed: list[int] = []

    def agree() -> int:
        agreed.append(log.now_ms)
        return log.now_ms

    keeper = expirer(log, streams, streams_per_tick=3, producers_per_step=5, agreed=agree)
    monkeypatch.setattr(log.store, "transact", None)
    for steps in (1, 2, 3):
        assert await keeper.tick() == 0
        assert keeper.is_round_over == (steps == 3)
    assert len(agreed) == 1, "brokers agree on a time once per round"


async def test_a_step_that_fails_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    log = LogKit()
    streams = await log.streams(2)
    await log.writer()
    await log.commit(*((stream, [batch(producer=1, sequence=0)]) for stream in streams))
    log.now_ms += EXPIRATION_MS
    keeper = expirer(log, streams, streams_per_tick=2, producers_per_step=5)

    async def fail(*_: object, **__: object) -> None:
        raise Retryable("the store is away")

    with monkeypatch.context() as patch, pytest.raises(Retryable):
        patch.setattr(log.store, "transact", fail)
        await keeper.tick()
    assert not keeper.is_round_over
    assert await keeper.tick() == 2 and keeper.is_round_over


async def test_damaged_producer_holds_up_no_other_stream() -> None:
    log = LogKit()
    streams = await log.streams(2)
    await log.writer()
    for stream in streams:
        await log.commit((stream, [batch(producer=1, sequence=0)]))
    puts = {log.keys.producer(streams[0], ProducerId(1)): b"\x01junk"}
    await log.store.transact([log.keys.unit], Reads(), lambda _: Decision(result=None, puts=puts))
    log.now_ms += EXPIRATION_MS
    keeper = expirer(log, streams, streams_per_tick=2, producers_per_step=2)
    with pytest.raises(Corrupt):
        await keeper.tick()
    assert [await producers_of(log, stream) for stream in streams] == [1, 0]


async def test_nothing_happens_where_there_are_no_streams() -> None:
    log = LogKit()
    assert await expirer(log, [], streams_per_tick=2, producers_per_step=2).tick() == 0


async def test_sinks_and_their_writes_are_walked_a_page_at_a_time() -> None:
    log = LogKit()
    for number in range(3):
        write = WriterId(f"{number:032x}")
        await begin_write(log.keys, write, now_ms=log.now_ms, max_age_ms=1000).apply(log.store)
        commit = SinkCommit(sink_id=f"{number}", batch_id=0, query="", write=write, frames=[])
        await commit_batch(log.keys, commit, now_ms=log.now_ms).apply(log.store)
        await begin_write(log.keys, write, now_ms=log.now_ms, max_age_ms=1000).apply(log.store)
    agreed_ms: int | None = log.now_ms + 500
    metrics = Metrics()

    async def look() -> int | None:
        return agreed_ms

    sinks = SinkExpirer(
        keys=log.keys,
        metadata=log.store,
        agreed_ms=look,
        expiration_ms=5000,
        sinks_per_step=2,
        metrics=SinkMetrics(metrics),
    )
    assert [(await sinks.tick(), sinks.is_round_over) for _ in range(2)] == [(0, False), (0, True)]
    assert shown(metrics) == {"writes_live": 3, "writes_oldest_age_seconds": 0.5}
    agreed_ms = log.now_ms + 1000
    assert [await sinks.tick() for _ in range(3)] == [2, 1, 0]
    assert shown(metrics) == {"writes_expired_total": 3}
    agreed_ms = None
    assert [await sinks.tick() for _ in range(3)] == [0, 0, 0], "without a time to trust nothing is forgotten"
    agreed_ms = log.now_ms + 5000
    assert sorted([await sinks.tick() for _ in range(3)]) == [0, 1, 2]
    assert shown(metrics) == {"writes_expired_total": 3, "s_forgotten_total": 3}


def shown(metrics: Metrics) -> dict[str, float]:
    """Return what is shown of sinks and is not zero."""
    lines = metrics.render().decode().splitlines()
    found = (line.removeprefix("headrace_sink").split() for line in lines if line.startswith("headrace_sink"))
    return {name.removeprefix("_"): float(value) for name, value in found if float(value)}
