"""What a client process is told to do, and what it tells when it is done: plain values that travel as JSON."""

import json
from dataclasses import asdict, dataclass, field

from benchmarks.beside_kafka.values import Tally

BEGINNING = 0
END = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Produce:
    """Write that many records as fast as the broker takes them."""

    bootstrap: str
    topic: str
    record_bytes: int
    records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """Read that many records of all partitions, from `BEGINNING` or `END`. `is_checked` takes the checksums."""

    bootstrap: str
    topic: str
    records: int
    start: int
    is_checked: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Write records at a steady rate, each with the time of its sending at its head."""

    bootstrap: str
    topic: str
    record_bytes: int
    records: int
    records_per_second: int
    linger_ms: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Read what `Pace` writes, from the end on, and tell how old each record is. The first ones do not count."""

    bootstrap: str
    topic: str
    records: int
    uncounted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfill:
    """Read a topic from the beginning, again and again, until the input ends."""

    bootstrap: str
    topic: str


Job = Produce | Read | Pace | Watch | Backfill
KINDS: dict[str, type[Job]] = {kind.__name__: kind for kind in (Produce, Read, Pace, Watch, Backfill)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What came of a job. The two times are of the machine's monotonic clock, the same in every process."""

    tally: Tally
    began_ns: int
    ended_ns: int
    latencies_ns: list[int] = field(default_factory=list)


def encode_job(job: Job) -> str:
    """Return the job as one line."""
    return json.dumps({"kind": type(job).__name__, **asdict(job)})


def decode_job(line: str) -> Job:
    """Return the job of such a line."""
    fields = json.loads(line)
    return KINDS[fields.pop("kind")](**fields)


def encode_done(done: Done) -> str:
    """Return the outcome as one line."""
    return json.dumps(asdict(done))


def decode_done(line: str) -> Done:
    """Return the outcome of such a line."""
    fields = json.loads(line)
    return Done(tally=Tally(**fields.pop("tally")), **fields)


def seconds_of(outcomes: list[Done]) -> float:
    """Return how long it took from the first beginning to the last end."""
    return (max(done.ended_ns for done in outcomes) - min(done.began_ns for done in outcomes)) / 1e9


def total_of(outcomes: list[Done]) -> Tally:
    """Return the sum of the tallies."""
    first, *others = (done.tally for done in outcomes)
    for other in others:
        first += other
    return first
