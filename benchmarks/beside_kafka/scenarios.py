"""What is measured: each scenario plays one turn on one broker and returns its readings.

A turn makes its own topic, verifies that every record that was written can be read, byte for byte, and cleans up.
Rates count the bytes of values, in MB of a million. The costs are the broker's alone, not the clients'.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from benchmarks.beside_kafka import figures, jobs
from benchmarks.beside_kafka.brokers import Contestant, CostOfWork
from benchmarks.beside_kafka.crew import finish, prepared
from benchmarks.beside_kafka.figures import Kind, Reading, percentile
from benchmarks.beside_kafka.java_driver import run_producer_performance
from benchmarks.beside_kafka.values import Tally, compare

MB = 1_000_000
GB = 1_000_000_000
KIB = 1024
NS_PER_MS = 1e6
UNCOUNTED_RECORDS = 500


class Scenario(Protocol):
    """One thing to measure on both brokers."""

    @property
    def title(self) -> str: ...

    def turn(self, contestant: Contestant) -> list[Reading]: ...


def size_name(record_bytes: int) -> str:
    """Return a record's size as people say it."""
    return f"{record_bytes // KIB} KiB" if record_bytes % KIB == 0 else f"{record_bytes} B"


def count_name(count: int, noun: str) -> str:
    """Return a count with its noun in the right number."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceAndRead:
    """Write as fast as the broker takes it, then read it all from the start."""

    record_bytes: int
    partitions: int
    producers: int
    total_bytes: int
    shows_memory: bool = False

    @property
    def title(self) -> str:
        return (
            f"{size_name(self.record_bytes)}, {count_name(self.partitions, 'partition')}, "
            f"{count_name(self.producers, 'producer')}"
        )

    def turn(self, contestant: Contestant) -> list[Reading]:
        with contestant.topic(self.partitions) as topic:
            written, produce_readings = self.write(contestant, topic)
            read_readings = self._read(contestant, topic, written)
            verify(contestant, topic, written)
        return produce_readings + read_readings

    def write(self, contestant: Contestant, topic: str) -> tuple[Tally, list[Reading]]:
        """Write all records; return their tally and readings, of which the first is the rate."""
        records = self.total_bytes // self.record_bytes // self.producers
        job = jobs.Produce(
            bootstrap=contestant.bootstrap, topic=topic, record_bytes=self.record_bytes, records=records
        )
        with prepared([job] * self.producers) as workers, CostOfWork(contestant) as cost:
            outcomes = finish(workers)
        written = jobs.total_of(outcomes)
        cpu_kind = figures.CPU_IN_AIM if self.record_bytes == KIB and self.producers == 1 else figures.CPU
        readings = [
            self._rate("produce", written, jobs.seconds_of(outcomes)),
            Reading(what="broker CPU, in", value=per_gb(cost.cpu_seconds, written), kind=cpu_kind),
        ]
        if self.shows_memory:
            readings += memory_readings("under load", cost.memory.rss_bytes, cost.memory.pss_bytes, figures.MEMORY)
        return written, readings

    def _read(self, contestant: Contestant, topic: str, written: Tally) -> list[Reading]:
        job = jobs.Read(
            bootstrap=contestant.bootstrap,
            topic=topic,
            records=written.records,
            start=jobs.BEGINNING,
            is_checked=False,
        )
        with prepared([job]) as workers, CostOfWork(contestant) as cost:
            (done,) = finish(workers)
        compare(written, done.tally, where=f"{contestant.name}, {self.title}")
        return [
            self._rate("consume from the start", done.tally, jobs.seconds_of([done])),
            Reading(what="broker CPU, out", value=per_gb(cost.cpu_seconds, done.tally), kind=figures.CPU),
        ]

    def _rate(self, what: str, tally: Tally, seconds: float) -> Reading:
        return rate(what, tally, seconds, figures.RATE, self.record_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaProduce:
    """Write with Apache Kafka's own ProducerPerformance."""

    record_bytes: int
    partitions: int
    total_bytes: int

    @property
    def title(self) -> str:
        return f"{size_name(self.record_bytes)}, {count_name(self.partitions, 'partition')}, Java client"

    def turn(self, contestant: Contestant) -> list[Reading]:
        records = self.total_bytes // self.record_bytes
        written = Tally(records=records, size_bytes=records * self.record_bytes, checksum=None)
        with contestant.topic(self.partitions) as topic:
            with CostOfWork(contestant) as cost:
                records_per_second = run_producer_performance(
                    bootstrap=contestant.bootstrap, topic=topic, record_bytes=self.record_bytes, records=records
                )
            verify(contestant, topic, written)
        return [
            rate("produce", written, records / records_per_second, figures.RATE, self.record_bytes),
            Reading(what="broker CPU, in", value=per_gb(cost.cpu_seconds, written), kind=figures.CPU),
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """Write as fast as the broker takes it while a reader keeps up; the clock stops at the last record read."""

    record_bytes: int
    partitions: int
    total_bytes: int

    @property
    def title(self) -> str:
        return f"{size_name(self.record_bytes)}, {count_name(self.partitions, 'partition')}, read from the tail"

    def turn(self, contestant: Contestant) -> list[Reading]:
        records = self.total_bytes // self.record_bytes
        place = contestant.bootstrap
        with contestant.topic(self.partitions) as topic:
            reader = jobs.Read(bootstrap=place, topic=topic, records=records, start=jobs.END, is_checked=False)
            writer = jobs.Produce(bootstrap=place, topic=topic, record_bytes=self.record_bytes, records=records)
            with prepared([reader, writer]) as workers, CostOfWork(contestant) as cost:
                read, written = finish(workers)
            compare(written.tally, read.tally, where=f"{contestant.name}, {self.title}")
            verify(contestant, topic, written.tally)
        seconds = (read.ended_ns - written.began_ns) / 1e9
        return [
            rate("produce and consume", written.tally, seconds, figures.RATE, self.record_bytes),
            Reading(what="broker CPU, in and out", value=per_gb(cost.cpu_seconds, written.tally), kind=figures.CPU),
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Write at a steady rate and take every record's age when a reader at the tail gets it.

    `linger_ms` is `None` for the client's default, which is 5 ms.
    """

    record_bytes: int
    partitions: int
    records_per_second: int
    seconds: int
    linger_ms: float | None

    @property
    def title(self) -> str:
        linger = "client's linger" if self.linger_ms is None else f"linger {self.linger_ms:g} ms"
        return f"end to end, {self.records_per_second:,} records/s of {size_name(self.record_bytes)}, {linger}"

    def turn(self, contestant: Contestant) -> list[Reading]:
        with contestant.topic(self.partitions) as topic:
            latencies_ms = self.latencies_ms(contestant, topic)
        return [
            Reading(what="p50", value=percentile(latencies_ms, 0.5), kind=figures.LATENCY),
            Reading(what="p99", value=percentile(latencies_ms, 0.99), kind=figures.P99_AIM),
            Reading(what="p99.9", value=percentile(latencies_ms, 0.999), kind=figures.LATENCY),
        ]

    def latencies_ms(self, contestant: Contestant, topic: str) -> list[float]:
        """Return the ages of all records but the first, after comparing what was written with what was read."""
        records = self.records_per_second * self.seconds + UNCOUNTED_RECORDS
        place = contestant.bootstrap
        watch = jobs.Watch(bootstrap=place, topic=topic, records=records, uncounted=UNCOUNTED_RECORDS)
        pace = jobs.Pace(
            bootstrap=place,
            topic=topic,
            record_bytes=self.record_bytes,
            records=records,
            records_per_second=self.records_per_second,
            linger_ms=self.linger_ms,
        )
        with prepared([watch, pace]) as workers:
            watched, paced = finish(workers)
        compare(paced.tally, watched.tally, where=f"{contestant.name}, {self.title}")
        return [latency_ns / NS_PER_MS for latency_ns in watched.latencies_ns]


@dataclass(frozen=True, slots=True, kw_only=True)
class FarBehind:
    """Write and tail alone, and then beside a reader that goes through a backlog as fast as it gets it.

    The reader is a client on the same cores, so both brokers' producers lose something; how much each loses tells.
    """

    backlog_bytes: int
    produce: ProduceAndRead
    latency: Latency
    _backlogs: dict[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return f"beside a reader of a {self.backlog_bytes / GB:g} GB backlog"

    def turn(self, contestant: Contestant) -> list[Reading]:
        backlog = self._backlog(contestant)
        alone_mb_s, alone_ms = self._work(contestant)
        with prepared([jobs.Backfill(bootstrap=contestant.bootstrap, topic=backlog)]) as workers:
            (reader,) = workers
            reader.go()
            beside_mb_s, beside_ms = self._work(contestant)
            done = reader.collect()
        return [
            Reading(what="produce, alone", value=alone_mb_s, kind=figures.PLAIN_RATE),
            Reading(what="produce, beside it", value=beside_mb_s, kind=figures.RATE),
            Reading(what="produce, share that is left", value=beside_mb_s / alone_mb_s, kind=figures.SHARE),
            Reading(what="tail p99, alone", value=alone_ms, kind=figures.LATENCY),
            Reading(what="tail p99, beside it", value=beside_ms, kind=figures.P99_BESIDE_AIM),
            rate("the reader of the backlog", done.tally, jobs.seconds_of([done]), figures.PLAIN_RATE, None),
        ]

    def _work(self, contestant: Contestant) -> tuple[float, float]:
        """Return MB per second of a producer at full speed, and then the p99 of a slow one in ms."""
        with contestant.topic(self.produce.partitions) as topic:
            written, readings = self.produce.write(contestant, topic)
            verify(contestant, topic, written)
        with contestant.topic(self.latency.partitions) as topic:
            latencies_ms = self.latency.latencies_ms(contestant, topic)
        return readings[0].value, percentile(latencies_ms, 0.99)

    def _backlog(self, contestant: Contestant) -> str:
        """Return the topic with the backlog, written at the first turn."""
        if contestant.name not in self._backlogs:
            topic = contestant.create_topic(self.produce.partitions)
            records = self.backlog_bytes // self.produce.record_bytes
            job = jobs.Produce(
                bootstrap=contestant.bootstrap,
                topic=topic,
                record_bytes=self.produce.record_bytes,
                records=records,
            )
            with prepared([job]) as workers:
                finish(workers)
            self._backlogs[contestant.name] = topic
        return self._backlogs[contestant.name]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAndRest:
    """Start a fresh broker, take the time until it answers, and its memory when it has rested."""

    title: str = "start and rest"

    def turn(self, contestant: Contestant) -> list[Reading]:
        rested = contestant.start_another()
        return [
            Reading(
                what="from exec to the first Metadata answer",
                value=rested.ready_after_seconds,
                kind=figures.READY_AIM,
            ),
            *memory_readings("at rest", rested.memory.rss_bytes, rested.memory.pss_bytes, figures.REST_AIM),
        ]


def verify(contestant: Contestant, topic: str, written: Tally) -> None:
    """Read everything from the start, with checksums, and compare. Raises `RecordsDiffer`."""
    job = jobs.Read(
        bootstrap=contestant.bootstrap,
        topic=topic,
        records=written.records,
        start=jobs.BEGINNING,
        is_checked=written.checksum is not None,
    )
    with prepared([job]) as workers:
        (done,) = finish(workers)
    compare(written, done.tally, where=f"{contestant.name}, topic {topic}")


def rate(what: str, tally: Tally, seconds: float, kind: Kind, record_bytes: int | None) -> Reading:
    """Return the rate of values' bytes in MB per second."""
    return Reading(what=what, value=tally.size_bytes / MB / seconds, kind=kind, record_bytes=record_bytes)


def per_gb(cpu_seconds: float, tally: Tally) -> float:
    """Return the CPU seconds per GB of values."""
    return cpu_seconds / (tally.size_bytes / GB)


def memory_readings(when: str, rss_bytes: int, pss_bytes: int, kind: Kind) -> Sequence[Reading]:
    """Return resident memory, for which the promise stands, and the proportional share."""
    return [
        Reading(what=f"memory {when}, resident", value=rss_bytes / MB, kind=kind),
        Reading(what=f"memory {when}, proportional", value=pss_bytes / MB, kind=figures.MEMORY),
    ]
