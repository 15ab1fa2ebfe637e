"""Tables as metrics: from what the store says, by topic, a bounded number of names."""

import pytest

from headrace.index.cache import IndexCache
from headrace.metadata.port import Decision, Reads
from headrace.model.ids import StreamId
from headrace.model.topics import Topic, TopicId, TopicRules
from headrace.pipeline import meters
from headrace.pipeline.meters import TableMeter
from headrace.pipeline.records import TABLE_STATE, TableState, TableStatus
from headrace.pipeline.sagas import Sagas
from headrace.runtime.metrics import Metrics
from headrace.testing.clock import ManualClock
from tests.log_kit import LogKit


class Topics:
    """Knows the topics it is given."""

    def __init__(self, *topics: Topic) -> None:
        self.topics = list(topics)

    def known(self) -> list[Topic]:
        return self.topics


def topic_of(number: int, stream: StreamId, **overrides: str) -> Topic:
    rules = TopicRules(max_message_bytes=1)
    named = {name.replace("_", "."): value for name, value in overrides.items()}
    return Topic(
        id=TopicId(number.to_bytes(16)), name=f"topic-{number}", streams=(stream,), rules=rules, overrides=named
    )


def shown(metrics: Metrics, name: str) -> dict[str, float]:
    """Return a metric's values by topic."""
    values = {}
    for line in metrics.render().decode().splitlines():
        if line.startswith(f"headrace_{name}{{"):
            label, _, value = line.partition("{")[2].rpartition(" ")
            values[label.split('"')[1]] = float(value)
    return values


async def put_state(kit: LogKit, topic: Topic, state: TableState) -> None:
    puts = {kit.keys.table(topic.id): TABLE_STATE.encode(state)}
    await kit.store.transact([kit.keys.unit], Reads(), lambda _: Decision(result=None, puts=puts))


def meter_of(kit: LogKit, metrics: Metrics, topics: Topics) -> TableMeter:
    index = IndexCache(kit.store, kit.keys, max_folded_entries=100)
    return TableMeter(
        metrics,
        sagas=Sagas(kit.store, kit.keys),
        topics=topics,  # type: ignore[arg-type]
        index=index,
        clock=ManualClock(now_ms=kit.now_ms + 2000),
        file_target_bytes=60,
    )


async def test_metrics_show_what_the_pipeline_left_in_the_store_and_how_far_it_is_behind() -> None:
    kit, metrics = LogKit(), Metrics()
    first, second, third = await kit.streams(3)
    await kit.writer()
    for stream in (first, second, third):
        await kit.append(stream, 5)
    topics = Topics(topic_of(1, first), topic_of(2, second), topic_of(3, third, headrace_table_enable="false"))
    state = TableState(
        "topic-1",
        ends={0: 5},
        runs=7,
        failures=2,
        last_run_ms=1500,
        held_back_batches=3,
        dead_letters=4,
        status=TableStatus.FAILING,
    )
    await put_state(kit, topics.topics[0], state)
    meter = meter_of(kit, metrics, topics)
    await meter.tick()
    assert shown(metrics, "table_lag_records") == {"topic-1": 0, "topic-2": 5}, "a table that is off is not behind"
    assert shown(metrics, "table_lag_seconds") == {"topic-1": 0, "topic-2": 2}
    assert shown(metrics, "table_backlog_bytes") == {"topic-1": 0, "topic-2": 100}
    assert shown(metrics, "table_backlog_files") == {"topic-1": 0, "topic-2": 2}
    assert shown(metrics, "table_runs")["topic-1"] == 7
    assert shown(metrics, "table_run_failures")["topic-1"] == 2
    assert shown(metrics, "table_last_run_seconds")["topic-1"] == 1.5
    assert shown(metrics, "table_held_back_batches")["topic-1"] == 3
    assert shown(metrics, "table_dead_letters")["topic-1"] == 4
    assert shown(metrics, "table_status") == {"topic-1": 2, "topic-2": 0}


async def test_topic_that_is_gone_counts_as_not_behind() -> None:
    kit, metrics = LogKit(), Metrics()
    (stream,) = await kit.streams(1)
    await kit.writer()
    await kit.append(stream, 5)
    topics = Topics(topic_of(1, stream))
    meter = meter_of(kit, metrics, topics)
    await meter.tick()
    assert shown(metrics, "table_lag_records") == {"topic-1": 5}
    topics.topics.clear()
    await meter.tick()
    assert shown(metrics, "table_lag_records") == {"topic-1": 0}


async def test_topics_beyond_the_limit_of_names_are_shown_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meters, "MAX_TOPICS_BY_NAME", 1)
    kit, metrics = LogKit(), Metrics()
    streams = await kit.streams(3)
    await kit.writer()
    for stream in streams:
        await kit.append(stream, 5)
    topics = Topics(*(topic_of(n, stream) for n, stream in enumerate(streams)))
    await put_state(kit, topics.topics[2], TableState("topic-2", status=TableStatus.FOREIGN))
    await meter_of(kit, metrics, topics).tick()
    assert shown(metrics, "table_lag_records") == {"topic-0": 5, "other": 10}
    assert shown(metrics, "table_lag_seconds")["other"] == 2, "the oldest of all"
    assert shown(metrics, "table_status")["other"] == 1


async def test_a_round_over_many_partitions_takes_several_ticks_and_is_shown_when_it_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(meters, "PARTITIONS_PER_TICK", 2)
    kit, metrics = LogKit(), Metrics()
    streams = await kit.streams(5)
    await kit.writer()
    for stream in streams:
        await kit.append(stream, 5)
    meter = meter_of(kit, metrics, Topics(*(topic_of(n, stream) for n, stream in enumerate(streams))))
    for _ in range(2):
        await meter.tick()
        assert shown(metrics, "table_lag_records") == {}
    await meter.tick()
    assert shown(metrics, "table_lag_records") == {f"topic-{n}": 5 for n in range(5)}
