"""What reading from a table costs a Kafka consumer, beside the same records in the WAL, in one run.

To a consumer: librdkafka reads a partition of a broker process from its start to its end. The broker was started
anew, so its caches are empty; the files lie in the page cache. First the records lie in WAL objects, then in Parquet.

Inside of the broker: the same without network and client, in answers of 1 MiB, so that what is left is reading,
checking, opening, rebuilding. A pause is the longest that the event loop came too late meanwhile. Last, one group is
asked for by many readers at once.
"""

import asyncio
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks import fetch
from benchmarks.fetch import KEYS, MIB, SWITCH_INTERVAL_S, Broker, Figures
from headrace.fetch.catchup import CatchUp, CatchUpLimits
from headrace.fetch.fetcher import Fetcher
from headrace.fetch.reader import LogReader
from headrace.fetch.row_groups import RowGroupCache
from headrace.fetch.table_reads import GroupKey, TableReader
from headrace.index.cache import IndexCache
from headrace.index.fold import fold_records, plan_fold
from headrace.index.values import INDEX_ENTRY, IndexEntry
from headrace.metadata import keys as all_keys
from headrace.metadata.leases import take
from headrace.model.extents import WalExtent
from headrace.model.ids import StreamId
from headrace.pipeline.plans import FilePlan, Slice, WalPiece, WriteTask
from headrace.pipeline.swapping import Swapper
from headrace.pipeline.writing import write_file
from headrace.records.batch import Codec
from headrace.records.encoder import BatchEncoder
from headrace.records.record import Record, columns_of
from headrace.runtime.crash_points import NoCrashes
from headrace.runtime.executor import ThreadExecutor
from headrace.tables.columns import COLUMNS
from headrace.tables.format import Bucket, Partitioning, TableFormat
from tests.integration.tables.moving import move_to_table
from tests.servers.headrace import running_headrace

NAME = "fetch_from_table"

LOG_BYTES = 192 * MIB
CLIENT_LOG_BYTES = 128 * MIB
FRAME_BYTES = MIB
FILE_BYTES = 64 * MIB
ENTRIES_PER_STEP = 300
SESSION_MS = 3_600_000
ROUNDS = 3
PARTITION = 0
CLIENT_LIMIT_SECONDS = 60.0
READ_AT_ONCE = 10_000
READERS = 8
AIM = 0.5

FORMAT = TableFormat(
    field_ids={column.name: number for number, column in enumerate(COLUMNS, start=1)},
    schema_id=0,
    spec_id=0,
    partitioning=Partitioning(bucket=Bucket.NONE),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is in the log."""

    name: str
    value_bytes: int
    codec: Codec

    @property
    def topic(self) -> str:
        return f"load-{self.value_bytes}-{self.codec.name.lower()}"

    def frame(self) -> bytes:
        """Return batches of about a mebibyte, with keys, and values half of which is chance."""
        half = self.value_bytes // 2
        count = 64 * 1024 // self.value_bytes
        batch = b""
        while len(batch) < FRAME_BYTES:
            records = [
                Record(offset=n, timestamp_ms=n, key=b"key-%08d" % n, value=os.urandom(half) + b"v" * half)
                for n in range(count)
            ]
            batch += bytes(BatchEncoder(codec=self.codec).encode(columns_of(records)))
        return batch


LOADS = (
    Load(name="1 KiB records", value_bytes=1024, codec=Codec.NONE),
    Load(name="1 KiB records, zstd", value_bytes=1024, codec=Codec.ZSTD),
    Load(name="100 B records", value_bytes=100, codec=Codec.NONE),
)


class TableBroker(Broker):
    """A log of which the older part lies in Parquet files."""

    async def fill(self, load: Load) -> int:
        """Append the load and return how many bytes it has in the log."""
        frame = load.frame()
        count = LOG_BYTES // len(frame)
        for _ in range(count):
            await self.append(self.streams[0], frame)
        return count * len(frame)

    async def to_table(self) -> None:
        """Write everything to Parquet and swap the index."""
        (stream,) = self.streams
        while records := await plan_fold(self.metadata, KEYS, max_records=1000, lag_records=0):
            await fold_records(KEYS, records, now_ms=0).apply(self.metadata)
        swapper = Swapper(
            store=self.metadata,
            keys=KEYS,
            clock=self.clock,
            crash_points=NoCrashes(),
            max_entries=ENTRIES_PER_STEP,
        )
        session = await self.metadata.open_session(timeout_ms=SESSION_MS)
        lease = await take(self.metadata, all_keys.lease("moving"), session)
        for number, pieces in enumerate(await self._pieces(stream)):
            plan = FilePlan(number, None, None, (Slice(0, stream, tuple(pieces)),))
            task = WriteTask(saga_id="5a6a", epoch=1, data_prefix="tables/t/data/", format=FORMAT, file=plan)
            file = await write_file(task, self.objects, attempt="0")
            await swapper.swap(lease, file, file.slices[0])

    async def _pieces(self, stream: StreamId) -> list[list[WalPiece]]:
        found = await self.metadata.range(KEYS.entries(stream, after_offset=0, limit=10_000))
        files: list[list[WalPiece]] = []
        left_bytes = 0
        for entry in (INDEX_ENTRY.decode(item.value, item.key) for item in found):
            if left_bytes <= 0:
                files.append([])
                left_bytes = FILE_BYTES
            piece = _piece(entry)
            files[-1].append(piece)
            left_bytes -= piece.extent.size_bytes
        return files

    def forget(self) -> RowGroupCache[GroupKey]:
        """Begin to read as a broker does that has just been started."""
        self.catch_up.close()
        self.index = IndexCache(self.metadata, KEYS, max_folded_entries=10_000)
        cache = RowGroupCache[GroupKey]()
        tables = TableReader(objects=self.objects, executor=self.table_threads, cache=cache)
        reader = LogReader(
            domain=KEYS.domain, cache=self.index, objects=self.objects, executor=self.threads[1], tables=tables
        )
        self.catch_up = CatchUp(
            reader=reader, view=self.index.view, tail=self.tail, clock=self.clock, limits=CatchUpLimits(far_reads=2)
        )
        self.fetcher = Fetcher(
            index=self.index, tail=self.tail, catch_up=self.catch_up, clock=self.clock, log=self.fetcher._log
        )
        return cache

    @property
    def table_threads(self) -> ThreadExecutor:
        if len(self.threads) == 2:
            self.threads.append(ThreadExecutor("tables", threads=2))
        return self.threads[2]


def _piece(entry: IndexEntry) -> WalPiece:
    assert isinstance(entry.extent, WalExtent), "nothing was swapped yet"
    return WalPiece(entry.start_offset, entry.end_offset, entry.append_time_ms, entry.extent)


async def read_all(broker: TableBroker) -> tuple[float, float, float]:
    """Read the log once; return seconds, seconds of CPU, and the longest pause in milliseconds."""
    broker.forget()
    pauses: list[float] = [0.0]
    watching = asyncio.create_task(fetch._watch_pauses(pauses))
    began, cpu_began = time.perf_counter(), time.process_time()
    await fetch.read_all(broker, broker.streams[0])
    took, cpu_s = time.perf_counter() - began, time.process_time() - cpu_began
    watching.cancel()
    return took, cpu_s, max(pauses) * 1000


async def best_of(broker: TableBroker) -> tuple[float, float, float]:
    """Return the round of several that was disturbed least by others on this machine."""
    return min([await read_all(broker) for _ in range(ROUNDS)])


async def measure_load(directory: Path, load: Load) -> Figures:
    broker = TableBroker(directory, tail_bytes=0, limits=CatchUpLimits())
    await broker.start(1)
    size_bytes = await broker.fill(load)
    wal_s, wal_cpu_s, _ = await best_of(broker)
    await broker.to_table()
    table_s, table_cpu_s, pause_ms = await best_of(broker)
    cache = broker.forget()
    await asyncio.gather(*(fetch.read_from(broker, broker.streams[0], 100 * n) for n in range(READERS)))
    loads = cache.loads
    await broker.close()
    gigabytes = size_bytes / 1e9
    return [
        (f"{load.name}, inside, from the WAL", size_bytes / wal_s / 1e6, "MB/s", None),
        (f"{load.name}, inside, from Parquet", size_bytes / table_s / 1e6, "MB/s", None),
        (f"{load.name}, inside, Parquet : WAL", wal_s / table_s, "×", None),
        (f"{load.name}, inside, from the WAL, CPU per GB", wal_cpu_s / gigabytes, "s", None),
        (f"{load.name}, inside, from Parquet, CPU per GB", table_cpu_s / gigabytes, "s", None),
        (f"{load.name}, inside, from Parquet, longest pause", pause_ms, "ms", None),
        (f"{load.name}, inside, rebuilt for {READERS} readers of one group", float(loads), "groups", None),
    ]


def measure_client(directory: Path, load: Load) -> Figures:
    """Return how fast a consumer reads from a broker, from either place."""
    with running_headrace(directory) as broker:
        count = _produce(broker.bootstrap, load)
        broker.terminate()
    size_bytes = count * load.value_bytes
    wal_s = _consume_anew(directory, load, count)
    move_to_table(directory, load.topic)
    table_s = _consume_anew(directory, load, count)
    return [
        (f"{load.name}, to a consumer, from the WAL", size_bytes / wal_s / 1e6, "MB/s", None),
        (f"{load.name}, to a consumer, from Parquet", size_bytes / table_s / 1e6, "MB/s", None),
        (f"{load.name}, to a consumer, Parquet : WAL", wal_s / table_s, "×", AIM),
    ]


def _produce(bootstrap: str, load: Load) -> int:
    """Fill one partition and return how many records it has."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    topic = NewTopic(load.topic, num_partitions=1, replication_factor=1)
    admin.create_topics([topic])[load.topic].result(CLIENT_LIMIT_SECONDS)
    codec = load.codec.name.lower()
    config = {"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 20, "log_level": 0}
    producer = Producer(config)
    half = load.value_bytes // 2
    values = [os.urandom(half) + b"v" * half for _ in range(4096)]
    count = CLIENT_LOG_BYTES // load.value_bytes
    for n in range(count):
        while True:
            try:
                producer.produce(load.topic, values[n % len(values)], b"key-%08d" % n, PARTITION)
                break
            except BufferError:
                producer.poll(0.05)
    assert producer.flush(CLIENT_LIMIT_SECONDS) == 0, "records were never answered"
    return count


def _consume_anew(directory: Path, load: Load, count: int) -> float:
    """Start a broker and read everything; return the seconds of the best of several rounds."""
    return min(_consume(directory, load, count) for _ in range(ROUNDS))


def _consume(directory: Path, load: Load, count: int) -> float:
    with running_headrace(directory) as broker:
        config = {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            "fetch.queue.backoff.ms": 10,
            "log_level": 0,
        }
        consumer = Consumer(config)
        consumer.list_topics(load.topic, timeout=CLIENT_LIMIT_SECONDS)
        began = time.perf_counter()
        consumer.assign([TopicPartition(load.topic, PARTITION, OFFSET_BEGINNING)])
        read = 0
        while read < count and time.perf_counter() - began < CLIENT_LIMIT_SECONDS:
            read += len(consumer.consume(READ_AT_ONCE, timeout=0.05))
        took = time.perf_counter() - began
        consumer.close()
        assert read == count, f"{read} records came instead of {count}"
        broker.terminate()
    return took


def measure() -> Figures:
    figures: Figures = []
    with tempfile.TemporaryDirectory() as directory:
        for number, load in enumerate(LOADS):
            figures += measure_client(Path(directory) / f"client{number}", load)
        for number, load in enumerate(LOADS):
            figures += asyncio.run(measure_load(Path(directory) / str(number), load))
    return figures


def run() -> Figures:
    """Run the measurements; see the module's text."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        return measure()
    finally:
        sys.setswitchinterval(before)
