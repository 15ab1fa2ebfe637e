"""What one history was like: a simulation in which a fault never happens proves little."""

from collections import Counter
from dataclasses import dataclass, field

from headrace.runtime.crash_points import CrashPoint
from headrace.testing.simulation.plan import FaultKind


@dataclass(slots=True)
class Report:
    """What one history was like: that a fault kind or a crash point never comes up would be a weak simulation."""

    seed: int
    record_count: int = 0
    read_count: int = 0
    crash_count: int = 0
    retained_count: int = 0
    """Offsets that retention has taken."""
    pinned_count: int = 0
    """Entries that were read under a pin."""
    virtual_seconds: float = 0.0
    digest: int = 0
    faults: Counter[FaultKind] = field(default_factory=Counter)
    crash_points: Counter[CrashPoint] = field(default_factory=Counter)
