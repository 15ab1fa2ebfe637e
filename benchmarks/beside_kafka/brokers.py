"""The two contestants, each as one process on the same disk, and what is asked of both in the same way."""

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.beside_kafka import process_cost
from tests.servers.apache_kafka import (
    copy_storage,
    format_storage,
    free_ports,
    start_apache_kafka,
    wait_until_served,
)
from tests.servers.headrace import start_headrace

ADMIN_LIMIT_SECONDS = 60.0
SETTLE_SECONDS = 0.3
REST_SECONDS = 2.0

_topic_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A started broker: where it is, and how long it took until it answered."""

    bootstrap: str
    pid: int
    ready_after_seconds: float
    stop: Callable[[], None]


class Contestant:
    """One of the two, while it runs. A turn of a scenario is given one and treats both alike."""

    def __init__(self, name: str, running: Running, start_another: Callable[[], Running]) -> None:
        self.name = name
        self.bootstrap = running.bootstrap
        self.pid = running.pid
        self._start_another = start_another
        # Its complaints when the broker is stopped would only disturb the table.
        self._admin = AdminClient({"bootstrap.servers": running.bootstrap, "log_level": 0})

    @contextlib.contextmanager
    def topic(self, partitions: int) -> Iterator[str]:
        """Create a topic with a name of its own, and delete it in the end."""
        name = self.create_topic(partitions)
        try:
            yield name
        finally:
            self._admin.delete_topics([name])[name].result(ADMIN_LIMIT_SECONDS)

    def create_topic(self, partitions: int) -> str:
        """Create a topic that stays, and return its name."""
        name = f"beside-kafka-{next(_topic_numbers)}"
        new = NewTopic(name, num_partitions=partitions, replication_factor=1)
        self._admin.create_topics([new])[name].result(ADMIN_LIMIT_SECONDS)
        return name

    def start_another(self) -> "Rested":
        """Start one more of the same kind on empty storage, leave it alone for a while, and stop it."""
        running = self._start_another()
        try:
            time.sleep(REST_SECONDS)
            memory = process_cost.memory(running.pid)
        finally:
            running.stop()
        return Rested(ready_after_seconds=running.ready_after_seconds, memory=memory)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rested:
    """How soon a fresh broker answered, and its memory when nobody had asked anything of it."""

    ready_after_seconds: float
    memory: process_cost.Memory


class CostOfWork:
    """Takes the broker's CPU seconds and peak memory over a `with` block.

    Dirty pages of whoever was measured before are written out first: Apache Kafka leaves them to the kernel, which
    would write them while Headrace waits for its own. After the work the broker gets a moment to finish what it put
    off, so that this counts, too.
    """

    def __init__(self, contestant: Contestant) -> None:
        self._pid = contestant.pid
        self._peak = process_cost.PeakMemory(contestant.pid)
        self.cpu_seconds = 0.0
        self.memory = process_cost.Memory(rss_bytes=0, pss_bytes=0)

    def __enter__(self) -> "CostOfWork":
        os.sync()
        self._peak.__enter__()
        self._cpu_began = process_cost.cpu_seconds(self._pid)
        return self

    def __exit__(self, *failure: object) -> None:
        now = process_cost.memory(self._pid)
        time.sleep(SETTLE_SECONDS)
        self.cpu_seconds = process_cost.cpu_seconds(self._pid) - self._cpu_began
        self._peak.__exit__(*failure)
        rss_bytes = max(now.rss_bytes, self._peak.rss_bytes)
        self.memory = process_cost.Memory(rss_bytes=rss_bytes, pss_bytes=now.pss_bytes)


class Stable:
    """Starts brokers in folders of their own below one folder."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._numbers = itertools.count(1)
        self._formatted = directory / "kafka-formatted"

    def start_headrace(self) -> Running:
        """Start `headrace serve` with its defaults on an empty data directory."""
        (port,) = free_ports(1)
        has_ended = threading.Event()
        served_at: list[float] = []
        data_dir = self._directory / f"headrace-{next(self._numbers)}"

        def probe() -> None:
            with contextlib.suppress(RuntimeError):  # `start_headrace` raises it, with the log
                served_at.append(wait_until_served("127.0.0.1", port, has_ended=has_ended.is_set))

        prober = threading.Thread(target=probe)
        prober.start()
        began = time.monotonic()
        try:
            broker = start_headrace(data_dir, kafka_port=port)
        except BaseException:
            has_ended.set()
            raise
        prober.join()
        return Running(
            bootstrap=broker.bootstrap,
            pid=broker.process.pid,
            ready_after_seconds=served_at[0] - began,
            stop=broker.kill,
        )

    def start_kafka(self) -> Running:
        """Start Apache Kafka with its defaults on storage that was formatted before."""
        if not self._formatted.exists():
            format_storage(self._formatted)
        directory = self._directory / f"kafka-{next(self._numbers)}"
        copy_storage(self._formatted, directory)
        server = start_apache_kafka(directory)
        return Running(
            bootstrap=server.bootstrap,
            pid=server.process.pid,
            ready_after_seconds=server.ready_after_seconds,
            stop=server.stop,
        )


@contextlib.contextmanager
def running_pair(directory: Path, *, is_null_run: bool) -> Iterator[tuple[Contestant, Contestant]]:
    """Start both and yield (Headrace, Apache Kafka). In a null run Apache Kafka plays both parts."""
    stable = Stable(directory)
    start_ours = stable.start_kafka if is_null_run else stable.start_headrace
    with contextlib.ExitStack() as stack:
        pair = []
        for name, start in (("Headrace", start_ours), ("Apache Kafka", stable.start_kafka)):
            running = start()
            stack.callback(running.stop)
            pair.append(Contestant(name, running, start))
        yield pair[0], pair[1]
