"""How long a hostile soak takes, who takes part, and what the broker may need meanwhile."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

MIB = 1024 * 1024
MINUTE_SECONDS = 60.0

FULL_MINUTES = 10.0
QUICK_MINUTES = 2.0

NARROW, WIDE, COMPACTED, BACKLOG, ORDINARY = "narrow", "wide", "compacted", "backlog", "ordinary"
ORDINARY_PARTITIONS = 3
WIDE_MESSAGE_BYTES = 8 * MIB

TOPICS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        NARROW: {},
        WIDE: {"max.message.bytes": str(WIDE_MESSAGE_BYTES)},
        COMPACTED: {"max.message.bytes": str(WIDE_MESSAGE_BYTES), "cleanup.policy": "compact"},
        BACKLOG: {"max.message.bytes": str(WIDE_MESSAGE_BYTES)},
        ORDINARY: {},
    }
)
"""All topics and their configs."""

BACKLOG_BATCHES = 24
BACKLOG_BATCH_BYTES = 2 * MIB
"""What slow readers ask for: far more than a socket holds."""

DRIVERS = 3
"""Processes that are hostile at full speed, each through all kinds in an order of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a broker may need. Memory is counted without its caches, which have limits and gauges of their own."""

    growth_bytes: int = 48 * MIB
    """From the first quarter to the last of what comes after the warm-up, by their medians."""
    peak_bytes: int = 700 * MIB
    """Above the level before the first event: requests under way (128 MiB), answers, threads that open batches."""
    left_bytes: int = 64 * MIB
    """When all clients have left, above the warm level: the allocator keeps some of what it once had."""
    lent_bytes: int = 4 * MIB
    """Buffers that are still lent when all clients have left: the last request of one may be on its way out."""
    open_files: int = 64
    """When all clients have left, above what was open before the first event."""
    worst_ms: float = 10_000.0
    """The longest that a record of the ordinary producer may be on its way: after a fault things go on in 10 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostilePlan:
    """One soak. The warm-up is a part of it; memory is judged from its end on."""

    seconds: float
    warm_up_share: float = 0.25
    sample_seconds: float = 2.0
    settle_seconds: float = 120.0
    """How long sessions of members that have vanished take to end, and keepers to notice."""
    records_per_second: int = 200
    seed: int = 1
    without: frozenset[str] = frozenset()
    bounds: Bounds = Bounds()

    @property
    def warm_up_seconds(self) -> float:
        return self.seconds * self.warm_up_share


def plan_of(minutes: float, *, without: frozenset[str] = frozenset(), seed: int = 1) -> HostilePlan:
    """Return the plan for a soak of so many minutes; a long one is sampled less often."""
    seconds = minutes * MINUTE_SECONDS
    return HostilePlan(seconds=seconds, sample_seconds=max(1.0, seconds / 300), without=without, seed=seed)
