"""A broker without a pipeline keeps its WAL in proportion to what it holds; clients that read on notice nothing."""

import asyncio
import io
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from headrace.broker.storage import DOMAIN, assemble_runtime, opened_storage
from headrace.index.objects import is_packed, wal_objects_of
from headrace.index.values import INDEX_ENTRY
from headrace.metadata.keys import DomainKeys, prefix_range
from headrace.settings import load_settings
from headrace.topics.configs import TopicDefaults
from headrace.topics.directory import TopicDirectory
from tests.integration.clients.librdkafka import Librdkafka, admin, create_topic, quiet
from tests.integration.clients.messages import CALL_LIMIT_SECONDS, Message
from tests.integration.clients.waiting import eventually
from tests.servers.headrace import running_headrace
from tests.servers.seaweedfs import running_seaweedfs

BUCKET = "repacking"
QUICK = {
    "wal.repack.min.age.ms": "1000",
    "wal.repack.entry.bytes": "65536",
    "wal.repack.object.bytes": "1048576",
    "wal.segment.max.age.ms": "1000",
    "wal.sealed.grace.ms": "1000",
    "index.fold.lag.records": "0",
    "fetch.tail.cache.max.bytes": str(1024 * 1024),
}
LARGE = ("clicks", "orders", "views")
SMALL = "kept"
ROUNDS = 250
MAX_ENTRIES = 10_000
KEYS = DomainKeys(DOMAIN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a broker keeps its bytes."""

    data_dir: Path
    options: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


@pytest.fixture(params=["disk", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    if request.param == "disk":
        yield Place(data_dir=tmp_path / "data")
        return
    with running_seaweedfs(tmp_path) as server:
        server.create_bucket(BUCKET)
        environment = {
            "AWS_ENDPOINT": server.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "any",
            "AWS_SECRET_ACCESS_KEY": "any",
        }
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        options = [f"--objects=s3://{BUCKET}/wal?listing=levels"]
        yield Place(data_dir=tmp_path / "data", options=options, environment=environment)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What is in the stores: entries of all topics, those of them in shared objects, WAL objects and their bytes."""

    entries: int
    loose: int
    objects: int
    size_bytes: int


def measure(place: Place) -> Sizes:
    """Look into the stores beside the broker."""
    return asyncio.run(_measure(place))


async def _measure(place: Place) -> Sizes:
    pairs = [f"data.dir={place.data_dir}"]
    pairs += [option.removeprefix("--").replace("objects=", "objects.url=") for option in place.options]
    settings = load_settings(pairs=pairs).tree
    runtime = assemble_runtime(settings, environment={}, log_to=io.StringIO())
    async with opened_storage(settings, runtime) as storage:
        topics = TopicDirectory(storage.metadata, defaults=TopicDefaults(), clock=runtime.clock)
        await topics.refresh()
        extents = [
            INDEX_ENTRY.decode(item.value, item.key).extent
            for topic in topics.known()
            for stream in topic.streams
            for item in await storage.metadata.range(prefix_range(KEYS.index_prefix(stream), limit=MAX_ENTRIES))
        ]
        infos = [info async for info in storage.objects.list("wal/")]
    return Sizes(
        entries=len(extents),
        loose=sum(not is_packed(one) for extent in extents for one in wal_objects_of([extent])),
        objects=len(infos),
        size_bytes=sum(info.size_bytes for info in infos),
    )


class Reader:
    """Reads topics from their beginning for as long as the test lasts; every record must be the next one."""

    def __init__(self, bootstrap: str, topics: Sequence[str]) -> None:
        self.counts = dict.fromkeys(topics, 0)
        self.problems: list[str] = []
        self._stopping = threading.Event()
        config = {"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False}
        self._consumer = Consumer(quiet(config))
        self._consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING) for topic in topics])
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Reader":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(CALL_LIMIT_SECONDS)
        self._consumer.close()

    def _run(self) -> None:
        while not self._stopping.is_set():
            for found in self._consumer.consume(500, timeout=0.1):
                topic, value = found.topic(), found.value()
                if found.error() is not None or topic is None:
                    self.problems.append(str(found.error()))
                    continue
                number = self.counts[topic]
                if found.offset() != number or value != value_of(topic, number):
                    self.problems.append(f"{topic} {found.offset()} where {number} was due")
                self.counts[topic] = number + 1


def value_of(topic: str, number: int) -> bytes:
    return f"{topic}/{number}/".encode() + bytes([number % 251]) * (20 if topic == SMALL else 2_000)


def produce_all(bootstrap: str) -> dict[str, int]:
    """Send many small batches of all topics side by side, so that every frame holds several streams."""
    producer = Producer(quiet({"bootstrap.servers": bootstrap, "linger.ms": 0, "acks": "all"}))
    counts = dict.fromkeys((*LARGE, SMALL), 0)
    for _ in range(ROUNDS):
        for topic, number in counts.items():
            producer.produce(topic, value_of(topic, number), partition=0)
            counts[topic] = number + 1
        assert producer.flush(CALL_LIMIT_SECONDS) == 0
    return counts


def read_all(bootstrap: str, topic: str, count: int) -> list[Message]:
    rows = Librdkafka().read(bootstrap, topic, {0: count})[0]
    assert [row.offset for row in rows] == list(range(count))
    return [row.message for row in rows]


def settled(what: str, place: Place, is_done: Callable[[Sizes], bool]) -> Sizes:
    def look() -> Sizes | None:
        sizes = measure(place)
        time.sleep(0.2)
        return sizes if is_done(sizes) else None

    found = eventually(what, look, limit_seconds=CALL_LIMIT_SECONDS)
    assert found is not None
    return found


def test_wal_shrinks_to_what_is_kept_while_consumers_read_every_record_once(place: Place) -> None:
    with running_headrace(
        place.data_dir, settings=QUICK, options=place.options, environment=place.environment
    ) as broker:
        for topic in (*LARGE, SMALL):
            create_topic(broker.bootstrap, topic, headrace_table_enable="false")
        with Reader(broker.bootstrap, (*LARGE, SMALL)) as reader:
            counts = produce_all(broker.bootstrap)
            before = {topic: read_all(broker.bootstrap, topic, count) for topic, count in counts.items()}
            total_bytes = sum(len(message.value or b"") for messages in before.values() for message in messages)
            # One entry per 64 KiB and two at the end, for each topic, and twice as many if an hour ends meanwhile.
            entry_bound = 2 * (2 * total_bytes // 65_536 + 2 * len(counts))
            sizes = settled(
                "nothing old shares an object", place, lambda now: now.loose == 0 and now.entries <= entry_bound
            )
            assert sizes.entries <= entry_bound < 4 * ROUNDS / 5
            object_bound = 8 * len(counts) + 2 * total_bytes // 1_048_576 + 20
            settled("shared objects are collected", place, lambda now: now.objects <= object_bound)
            eventually("the reader has all", lambda: reader.counts == counts)
            after = {topic: read_all(broker.bootstrap, topic, count) for topic, count in counts.items()}
        assert reader.problems == []
        assert after == before, "byte for byte, and every time"
        kept_bytes = sum(len(message.value or b"") for message in after[SMALL])
        client = admin(broker.bootstrap)
        for deleted in client.delete_topics(list(LARGE)).values():
            deleted.result(CALL_LIMIT_SECONDS)
        # Each record of the small topic is a batch of its own, with a head of 61 bytes and a few more per record.
        bound = 4 * (kept_bytes + counts[SMALL] * 80)
        settled("only the small topic is left", place, lambda now: now.size_bytes <= bound < total_bytes / 5)
        assert read_all(broker.bootstrap, SMALL, counts[SMALL]) == before[SMALL]
        assert broker.terminate() == 0
        assert not [line for line in broker.log if '"level": "error"' in line]
