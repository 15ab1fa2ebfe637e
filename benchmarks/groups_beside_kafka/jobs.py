"""What the load process is told to do, and what it tells when it is done: plain values that travel as JSON."""

import json
from dataclasses import asdict, dataclass

CONSUMER = "consumer"
CLASSIC = "classic"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Let groups form, hold still for a while, and then hand partitions over, one member at a time.

    `heartbeat_ms` counts for classic members; the others are told theirs. `spread_seconds` is the time over which
    groups do the same thing, each at a random moment, so that no phase of anybody's heartbeats is preferred. Without
    `window_seconds` nothing is measured at rest; without `hand_overs` nobody leaves before the end.
    """

    bootstrap: str
    broker_pid: int
    topic: str
    protocol: str
    heartbeat_ms: int
    groups: int
    members: int
    spread_seconds: float
    rest_seconds: float
    window_seconds: float
    hand_overs: int
    seed: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """Let the members of groups commit what they own, each as fast as it is answered."""

    bootstrap: str
    broker_pid: int
    topic: str
    protocol: str
    heartbeat_ms: int
    groups: int
    members: int
    seconds: float
    seed: int = 1


Job = Fleet | Commit
KINDS: dict[str, type[Job]] = {kind.__name__: kind for kind in (Fleet, Commit)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What happened while the broker was watched. CPU is of the broker, and of the load process itself."""

    seconds: float
    heartbeats: int
    broker_cpu_seconds: float
    load_cpu_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What came of a job. Times that were not asked for are missing.

    `load_lag_seconds` is how late the load process itself was at most, at 99 of 100 moments: no time that it measured
    is more exact than that. `fenced` counts members that were thrown out, `owned_twice` partitions that two members
    held at one moment.
    """

    all_join_seconds: list[float]
    one_joins_seconds: list[float]
    one_leaves_seconds: list[float]
    commit_seconds: list[float]
    window: Window | None
    load_lag_seconds: float
    fenced: int
    owned_twice: int


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
    window = fields.pop("window")
    return Done(window=None if window is None else Window(**window), **fields)
