"""The brokers, each as one process with its defaults, but for the delay before an empty group's first rebalance.

Apache Kafka waits three seconds for more members before it lets a new classic group begin. That is a setting and not
a property of either program, so all scenarios but one run without it, on both sides.
"""

import contextlib
import functools
import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.beside_kafka.brokers import Contestant, Running
from tests.servers.apache_kafka import format_storage, start_apache_kafka
from tests.servers.headrace import start_headrace

HEADRACE = "Headrace"
KAFKA = "Apache Kafka"
NAMES = (HEADRACE, KAFKA)

INITIAL_DELAY = "group.initial.rebalance.delay.ms"
WITHOUT_DELAY: Mapping[str, str] = {INITIAL_DELAY: "0"}
WITH_DEFAULTS: Mapping[str, str] = {}


@dataclass(slots=True)
class Yard:
    """Starts brokers in folders of their own below one folder."""

    directory: Path
    numbers: Iterator[int]

    def start_headrace(self, settings: Mapping[str, str]) -> Running:
        """Start `headrace serve` on an empty data directory."""
        began = time.monotonic()
        broker = start_headrace(self.directory / f"headrace-{next(self.numbers)}", settings=settings)
        return Running(
            bootstrap=broker.bootstrap,
            pid=broker.process.pid,
            ready_after_seconds=time.monotonic() - began,
            stop=broker.kill,
        )

    def start_kafka(self, settings: Mapping[str, str]) -> Running:
        """Format storage and start Apache Kafka on it."""
        directory = self.directory / f"kafka-{next(self.numbers)}"
        format_storage(directory, settings=settings)
        server = start_apache_kafka(directory)
        return Running(
            bootstrap=server.bootstrap,
            pid=server.process.pid,
            ready_after_seconds=server.ready_after_seconds,
            stop=server.stop,
        )


@contextlib.contextmanager
def running(
    directory: Path, names: tuple[str, ...], settings: Mapping[str, str], *, is_null_run: bool = False
) -> Iterator[list[Contestant]]:
    """Start the brokers that are named, with these settings, and end them on the way out.

    In a null run Apache Kafka plays the part of Headrace, too.
    """
    yard = Yard(directory, itertools.count(1))
    starts: dict[str, Callable[[Mapping[str, str]], Running]] = {
        HEADRACE: yard.start_kafka if is_null_run else yard.start_headrace,
        KAFKA: yard.start_kafka,
    }
    with contextlib.ExitStack() as stack:
        contestants = []
        for name in names:
            started = starts[name](settings)
            stack.callback(started.stop)
            contestants.append(Contestant(name, started, functools.partial(starts[name], settings)))
        yield contestants
