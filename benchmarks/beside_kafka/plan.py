"""Which scenarios are played, and how often: the full form covers all cells, the quick one a few that stand for them.

The quick form is to end within three minutes on two cores, both brokers' start and warm-up included.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.beside_kafka.scenarios import (
    KIB,
    MB,
    FarBehind,
    JavaProduce,
    Latency,
    ProduceAndRead,
    Scenario,
    StartAndRest,
    Tail,
)

RECORD_SIZES = (100, KIB, 10 * KIB)
PARTITIONS = (1, 6, 100)
PRODUCERS = (1, 4)

# Small records cost the clients so much that fewer bytes give as long a turn.
TOTAL_BYTES = {100: 100 * MB, KIB: 300 * MB, 10 * KIB: 400 * MB}
JAVA_TOTAL_BYTES = {100: 50 * MB, KIB: 150 * MB, 10 * KIB: 200 * MB}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A scenario and how many rounds of it are played."""

    scenario: Scenario
    rounds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one run does. The warm-up's readings are thrown away."""

    warm_up: Sequence[Step]
    steps: Sequence[Step]

    def only(self, part: str) -> "Plan":
        """Return the plan with those scenarios alone whose title holds `part`."""
        return Plan(warm_up=self.warm_up, steps=[step for step in self.steps if part in step.scenario.title])


def quick_plan() -> Plan:
    """Return the few cells of the short form."""
    main = _produce(KIB, 6, 1, total_bytes=200 * MB, shows_memory=True)
    small = _produce(100, 6, 1, total_bytes=50 * MB)
    return Plan(
        warm_up=[Step(scenario=main, rounds=1), Step(scenario=small, rounds=1)],
        steps=[
            Step(scenario=StartAndRest(), rounds=2),
            Step(scenario=main, rounds=3),
            Step(scenario=small, rounds=3),
            Step(scenario=_latency(seconds=3, linger_ms=None), rounds=3),
        ],
    )


def full_plan() -> Plan:
    """Return every cell."""
    cells = [
        _produce(size, partitions, producers, shows_memory=(size, partitions) == (KIB, 6))
        for size in RECORD_SIZES
        for partitions in PARTITIONS
        for producers in PRODUCERS
    ]
    return Plan(
        warm_up=[Step(scenario=_produce(size, 6, 1), rounds=2) for size in (KIB, 100)],
        steps=[
            Step(scenario=StartAndRest(), rounds=5),
            *(Step(scenario=cell, rounds=3) for cell in cells),
            *(Step(scenario=cell, rounds=3) for cell in _java_cells()),
            *(Step(scenario=cell, rounds=3) for cell in _tail_cells()),
            *(Step(scenario=_latency(seconds=10, linger_ms=linger_ms), rounds=5) for linger_ms in (None, 0)),
            Step(scenario=_far_behind(), rounds=3),
        ],
    )


def _produce(
    record_bytes: int,
    partitions: int,
    producers: int,
    *,
    total_bytes: int | None = None,
    shows_memory: bool = False,
) -> ProduceAndRead:
    return ProduceAndRead(
        record_bytes=record_bytes,
        partitions=partitions,
        producers=producers,
        total_bytes=total_bytes or TOTAL_BYTES[record_bytes],
        shows_memory=shows_memory,
    )


def _java_cells() -> list[JavaProduce]:
    cells = ((100, 6), (KIB, 1), (KIB, 6), (KIB, 100), (10 * KIB, 6))
    return [
        JavaProduce(record_bytes=size, partitions=partitions, total_bytes=JAVA_TOTAL_BYTES[size])
        for size, partitions in cells
    ]


def _tail_cells() -> list[Tail]:
    return [Tail(record_bytes=size, partitions=6, total_bytes=TOTAL_BYTES[size]) for size in RECORD_SIZES]


def _latency(*, seconds: int, linger_ms: float | None) -> Latency:
    return Latency(record_bytes=KIB, partitions=6, records_per_second=1000, seconds=seconds, linger_ms=linger_ms)


def _far_behind() -> FarBehind:
    return FarBehind(
        backlog_bytes=2000 * MB, produce=_produce(KIB, 6, 1), latency=_latency(seconds=10, linger_ms=None)
    )
