"""A broker in which topics come and go for long remembers those that are there, and no others."""

import asyncio
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from headrace.cluster.view import ClusterView
from headrace.fetch.fetcher import Fetcher
from headrace.gc.repacking import Repacker
from headrace.gc.retaining import Retainer
from headrace.gc.trimming import LogTrimmer
from headrace.groups.keeping import GroupKeeper
from headrace.groups.lag import LagMeter
from headrace.handlers.all_topics import AllTopics
from headrace.index.cache import IndexView
from headrace.pipeline.meters import TableMeter
from headrace.runtime.services import Ticker
from headrace.testing.batches import make_batch
from headrace.topics.directory import TopicDirectory
from headrace.wire.messages import CreateTopicsRequest, DeleteTopicsRequest, FetchRequest, ProduceRequest
from tests.unit.broker.test_serving import CREATE_TOPICS, PATIENCE_S, PRODUCE, Client, Kit, restored_root_logger

__all__ = ["restored_root_logger"]

FETCH, DELETE_TOPICS = 1, 20
ROUNDS = 20
TOPICS_PER_ROUND = 50
TICK_MS = 20
LEFT = 20
"""How many things anybody may remember when all topics are gone: the number of metrics, say."""

REMEMBERING = (
    IndexView,
    TopicDirectory,
    ClusterView,
    Fetcher,
    AllTopics,
    Repacker,
    Retainer,
    LogTrimmer,
    GroupKeeper,
    LagMeter,
    TableMeter,
)
"""Who keeps maps by topic or stream. The tail cache is bounded by its bytes, the memory of keys by its number."""

Container = dict | OrderedDict | defaultdict | deque | list | set  # type: ignore[type-arg]


def made_of(monkeypatch: pytest.MonkeyPatch, kinds: Iterable[type[Any]]) -> list[Any]:
    """Return a list in which every object of these kinds appears when it is made."""
    made: list[Any] = []

    def noting(init: Callable[..., None]) -> Callable[..., None]:
        def note(self: object, *positional: Any, **named: Any) -> None:
            made.append(self)
            init(self, *positional, **named)

        return note

    for kind in kinds:
        monkeypatch.setattr(kind, "__init__", noting(kind.__init__))
    return made


def sizes_of(made: Iterable[Any]) -> dict[str, int]:
    return {
        f"{type(one).__name__}.{name}": len(value)
        for one in made
        for name, value in vars(one).items()
        if isinstance(value, Container)
    }


async def test_a_thousand_topics_that_came_and_went_leave_nothing_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = made_of(monkeypatch, REMEMBERING)
    make_ticker = Ticker.__init__

    def ticker(self: Ticker, name: str, tick: Callable[[], Any], **others: Any) -> None:
        make_ticker(self, name, tick, **{**others, "interval_ms": TICK_MS})

    monkeypatch.setattr(Ticker, "__init__", ticker)
    kit = Kit(tmp_path)
    async with kit.serving() as client:
        met: set[str] = set()
        for number in range(ROUNDS):
            names = [f"t-{number}-{one}" for one in range(TOPICS_PER_ROUND)]
            await use(client, names)
            met |= {name for name, size in sizes_of(made).items() if size >= TOPICS_PER_ROUND}
            request = DeleteTopicsRequest(
                topics=[DeleteTopicsRequest.DeleteTopicState(name=name) for name in names], timeout_ms=30_000
            )
            answer = await client.ask(DELETE_TOPICS, 6, request)
            assert [one.error_code for one in answer.responses] == [0] * len(names)
        assert {"IndexView._heads", "TopicDirectory._by_stream"} <= met, "what is looked at does grow"
        async with asyncio.timeout(PATIENCE_S):
            while max(sizes_of(made).values()) > LEFT:
                await asyncio.sleep(0.05)


async def use(client: Client, names: list[str]) -> None:
    """Create topics, produce a record to each, and read it."""
    new = [CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names]
    created = await client.ask(CREATE_TOPICS, 7, CreateTopicsRequest(topics=new, timeout_ms=30_000))
    assert [one.error_code for one in created.topics] == [0] * len(names)
    records = memoryview(make_batch([b"a"]))
    partition = ProduceRequest.PartitionProduceData(index=0, records=records)
    sent = [ProduceRequest.TopicProduceData(name=name, partition_data=[partition]) for name in names]
    produced = await client.ask(PRODUCE, 9, ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=sent))
    assert [one.partition_responses[0].error_code for one in produced.responses] == [0] * len(names)
    asked = [
        FetchRequest.FetchTopic(
            topic=name,
            partitions=[FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1_000)],
        )
        for name in names
    ]
    fetched = await client.ask(FETCH, 12, FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, topics=asked))
    assert [one.partitions[0].high_watermark for one in fetched.responses] == [1] * len(names)
