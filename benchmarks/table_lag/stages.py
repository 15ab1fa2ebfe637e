"""What is measured of tables that are watched: their lag at a steady rate, and what producers notice meanwhile."""

import asyncio
import contextlib
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.table_lag.lags import RowsDiffer, Sighting, check, lags_ms
from benchmarks.table_lag.pacing import Ack, Pace, write_steadily
from tests.servers.headrace import HeadraceProcess

ROOT = Path(__file__).parents[2]
ADMIN_LIMIT_SECONDS = 60.0
WATCH_END_SECONDS = 30.0
CATCH_UP_LIMIT_SECONDS = 180.0
PAUSE_SECONDS = 0.2
WARM_UP_SECONDS = 5.0
"""Of each stage: the first looks at a table that does not exist yet, and connections that open, do not count."""

TARGET_LAG = "headrace.table.target.lag.ms"
TABLE_ENABLE = "headrace.table.enable"

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """One topic that is written to while its table is watched."""

    pace: Pace
    target_lag_ms: int

    @property
    def title(self) -> str:
        return f"{self.pace.records_per_second:,} records/s, target {self.target_lag_ms / 1000:g} s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lagged:
    """What came of a stream: lags of all batches that count, latencies of their acknowledgements, and the rate."""

    stream: Stream
    lags_ms: Sequence[float]
    latencies_ms: Sequence[float]
    records_per_second: float
    commits: int


def create_topic(broker: HeadraceProcess, partitions: int, **config: str) -> str:
    """Create a topic and return its name."""
    name = f"lag-{next(_numbers)}"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    new = NewTopic(name, num_partitions=partitions, replication_factor=1, config=config)
    admin.create_topics([new])[name].result(ADMIN_LIMIT_SECONDS)
    return name


def measure_lag(broker: HeadraceProcess, streams: Sequence[Stream], *, seconds: float) -> list[Lagged]:
    """Write to all streams at once for so long, watch their tables, and return what came of each."""
    topics = {
        create_topic(broker, each.pace.partitions, **{TARGET_LAG: str(each.target_lag_ms)}): each for each in streams
    }
    with watching(broker.data_dir / "catalog.db", list(topics)) as looks:
        acks = asyncio.run(_write_all(broker.bootstrap, topics, WARM_UP_SECONDS + seconds))
        _wait_until_seen(acks, looks)
        sightings = looks.by_topic()
    return [_lagged(each, acks[topic], sightings[topic], seconds) for topic, each in topics.items()]


async def _write_all(bootstrap: str, topics: Mapping[str, Stream], seconds: float) -> dict[str, list[Ack]]:
    until = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, until.set)
    acks = await asyncio.gather(
        *(write_steadily(bootstrap, topic, each.pace, until=until) for topic, each in topics.items())
    )
    return dict(zip(topics, acks, strict=True))


def _wait_until_seen(acks: Mapping[str, Sequence[Ack]], looks: "Looks") -> None:
    """Wait until the tables show the last record of every topic."""
    deadline = time.monotonic() + CATCH_UP_LIMIT_SECONDS
    while True:
        seen = {topic: found[-1].rows for topic, found in looks.by_topic().items() if found}
        behind = {
            topic: sum(ack.records for ack in parts) - seen.get(topic, 0)
            for topic, parts in acks.items()
            if seen.get(topic, 0) < sum(ack.records for ack in parts)
        }
        if not behind:
            return
        if time.monotonic() > deadline:
            raise RowsDiffer(f"{CATCH_UP_LIMIT_SECONDS:.0f} s after the last record, tables lack {behind}")
        time.sleep(PAUSE_SECONDS)


def _lagged(stream: Stream, acks: Sequence[Ack], sightings: Sequence[Sighting], seconds: float) -> Lagged:
    check(sightings)
    counted = [ack for ack in acks if ack.sent_ns >= acks[0].sent_ns + WARM_UP_SECONDS * 1e9]
    return Lagged(
        stream=stream,
        lags_ms=lags_ms(counted, sightings),
        latencies_ms=[ack.latency_ms for ack in counted],
        records_per_second=sum(ack.records for ack in counted) / seconds,
        commits=len({sighting.rows for sighting in sightings}),
    )


def measure_latency(broker: HeadraceProcess, topic: str, pace: Pace, *, seconds: float) -> list[Ack]:
    """Write for so long and return the acknowledgements that count."""
    acks = asyncio.run(_write_one(broker.bootstrap, topic, pace, WARM_UP_SECONDS + seconds))
    return [ack for ack in acks if ack.sent_ns >= acks[0].sent_ns + WARM_UP_SECONDS * 1e9]


async def _write_one(bootstrap: str, topic: str, pace: Pace, seconds: float) -> list[Ack]:
    until = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, until.set)
    return await write_steadily(bootstrap, topic, pace, until=until)


class Looks:
    """What the watcher has said so far; it writes into a file, so that nobody has to listen."""

    def __init__(self, path: Path, topics: Sequence[str]) -> None:
        self._path = path
        self._topics = topics
        self._taken_bytes = 0
        self._found: dict[str, list[Sighting]] = {topic: [] for topic in topics}

    def by_topic(self) -> dict[str, list[Sighting]]:
        """Return the looks at each table, in order."""
        with self._path.open("rb") as file:
            file.seek(self._taken_bytes)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._taken_bytes += len(line)
                if line.startswith(b"{"):
                    self._take(json.loads(line))
        return self._found

    def _take(self, look: dict[str, object]) -> None:
        ends, rows, seen_ns = look["ends"], look["rows"], look["seen_ns"]
        assert isinstance(ends, dict)
        assert isinstance(rows, int)
        assert isinstance(seen_ns, int)
        by_partition = {int(partition): int(end) for partition, end in ends.items()}
        self._found[str(look["topic"])].append(Sighting(seen_ns=seen_ns, ends=by_partition, rows=rows))


@contextlib.contextmanager
def watching(database: Path, topics: Sequence[str]) -> Iterator[Looks]:
    """Let another process look at the tables until the block ends."""
    with tempfile.TemporaryDirectory() as directory:
        told = Path(directory) / "looks"
        with told.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.table_lag.watcher"],
                stdin=subprocess.PIPE,
                stdout=output,
                text=True,
                cwd=ROOT,
            )
        assert process.stdin is not None
        process.stdin.write(json.dumps({"database": str(database), "topics": list(topics)}) + "\n")
        process.stdin.flush()
        looks = Looks(told, topics)
        try:
            yield looks
            process.communicate(timeout=WATCH_END_SECONDS)  # closes its input, at which it ends
            if process.returncode != 0:
                raise RuntimeError("the watcher of the tables failed")
        finally:
            process.kill()
            process.wait()
