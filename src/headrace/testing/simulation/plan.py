"""Which faults happen how often, and which one happens now."""

import enum
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.runtime.rng import Rng


class FaultKind(enum.StrEnum):
    """Everything that the simulated world does to a request, a watch or a session."""

    DELAY = "delay"
    """It takes long, on the way there or on the way back."""
    RETRYABLE = "retryable"
    """It fails before it has an effect."""
    THROTTLED = "throttled"
    """The store asks for fewer calls; no effect."""
    LOST_ANSWER = "lost-answer"
    """It takes effect, and the caller is told that the outcome is unknown."""
    RESET = "reset"
    """It has no effect, and the caller is told that the outcome is unknown."""
    LATE_EFFECT = "late-effect"
    """The caller is told that the outcome is unknown, and it takes effect long afterwards."""
    OWN_EXISTS = "own-exists"
    """A put-if-absent stores its object and answers that one exists: the 412 after one's own success."""
    TORN = "torn"
    """Only the first part of an append is written; the outcome is unknown."""
    DECIDED_TWICE = "decided-twice"
    """A transaction's decision is computed twice, and the second one counts."""
    SESSION_EXPIRY = "session-expiry"
    """The session ends just before the call that uses it arrives."""
    LATE_SIGNAL = "late-signal"
    """A watch hears of a change long after it."""
    LOST_SIGNAL = "lost-signal"
    """A watch hears nothing, until it is told to read everything again."""
    DROPPED_BY_CRASH = "dropped-by-crash"
    """A request of a process that died meanwhile does not arrive."""
    LANDED_AFTER_CRASH = "landed-after-crash"
    """A request of a process that died meanwhile takes effect all the same."""
    TORN_BY_CRASH = "torn-by-crash"
    """An append of a process that died meanwhile is written in part."""


READ_FAULTS = (FaultKind.DELAY, FaultKind.RETRYABLE, FaultKind.THROTTLED)
WRITE_FAULTS = (*READ_FAULTS, FaultKind.LOST_ANSWER, FaultKind.RESET, FaultKind.LATE_EFFECT)
CREATE_FAULTS = (*WRITE_FAULTS, FaultKind.OWN_EXISTS)
# A disk does not throttle, and a write that failed does not happen later.
APPEND_FAULTS = (FaultKind.DELAY, FaultKind.RETRYABLE, FaultKind.LOST_ANSWER, FaultKind.RESET, FaultKind.TORN)
DISK_FAULTS = (FaultKind.DELAY, FaultKind.RETRYABLE, FaultKind.LOST_ANSWER, FaultKind.RESET)
TRANSACTION_FAULTS = (*WRITE_FAULTS, FaultKind.DECIDED_TWICE)
SESSION_FAULTS = (*WRITE_FAULTS, FaultKind.SESSION_EXPIRY)
SESSION_TRANSACTION_FAULTS = (*TRANSACTION_FAULTS, FaultKind.SESSION_EXPIRY)
SIGNAL_FAULTS = (FaultKind.LATE_SIGNAL, FaultKind.LOST_SIGNAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRates:
    """How often each fault strikes a request that it can strike, from 0 to 1, and how long things take."""

    delay: float = 0.0
    retryable: float = 0.0
    throttled: float = 0.0
    lost_answer: float = 0.0
    reset: float = 0.0
    late_effect: float = 0.0
    own_exists: float = 0.0
    torn: float = 0.0
    decided_twice: float = 0.0
    session_expiry: float = 0.0
    late_signal: float = 0.0
    lost_signal: float = 0.0
    landing_after_crash: float = 0.5
    """How often a request in flight outlives its process."""
    max_latency_ms: float = 2.0
    """Each way takes up to this long, always; so no two histories interleave alike."""
    max_delay_ms: float = 2_000.0
    """What a delayed request, a late effect or a late signal takes at most."""
    resync_ms: float = 30_000.0
    """When a watch that lost its signals is told to read everything again."""

    @classmethod
    def calm(cls) -> "FaultRates":
        """Return rates of a world where nothing fails and everything takes a moment."""
        return cls()

    @classmethod
    def rough(cls) -> "FaultRates":
        """Return rates of a bad day: about one request in eight goes wrong somehow."""
        return cls(
            delay=0.02,
            retryable=0.02,
            throttled=0.01,
            lost_answer=0.02,
            reset=0.01,
            late_effect=0.005,
            own_exists=0.02,
            torn=0.02,
            decided_twice=0.05,
            session_expiry=0.01,
            late_signal=0.05,
            lost_signal=0.05,
        )


_RATE_OF = {kind: kind.value.replace("-", "_") for kind in FaultKind}


class FaultPlan:
    """Draws faults for every request of a simulation, and counts what it drew."""

    def __init__(self, rng: Rng, rates: FaultRates) -> None:
        self._rng = rng
        self._tables: dict[tuple[FaultKind, ...], list[tuple[float, FaultKind]]] = {}
        self.rates = rates
        self.injected: Counter[FaultKind] = Counter()

    def change(self, rates: FaultRates) -> None:
        """Go on with other rates."""
        self.rates = rates
        self._tables.clear()

    def quiesce(self) -> None:
        """Let no new fault happen, so that what must come about in the end can be waited for."""
        self.change(FaultRates(max_latency_ms=self.rates.max_latency_ms, landing_after_crash=1.0))

    def draw(self, kinds: tuple[FaultKind, ...]) -> FaultKind | None:
        """Choose what happens to a request that these faults can strike; mostly nothing."""
        table = self._tables.get(kinds)
        if table is None:
            table = self._tables[kinds] = _cumulated(self.rates, kinds)
        drawn = self._rng.random()
        for limit, kind in table:
            if drawn < limit:
                self.injected[kind] += 1
                return kind
        return None

    def fate_of_orphan(self, *, can_tear: bool) -> FaultKind:
        """Choose what becomes of a request whose sender has just died."""
        drawn = self._rng.random()
        fate = FaultKind.DROPPED_BY_CRASH
        if drawn < self.rates.landing_after_crash:
            fate = FaultKind.LANDED_AFTER_CRASH
            if can_tear and drawn < self.rates.landing_after_crash / 2:
                fate = FaultKind.TORN_BY_CRASH
        self.injected[fate] += 1
        return fate

    def latency_seconds(self) -> float:
        """Return how long one way takes, when nothing is wrong."""
        return self._rng.random() * self.rates.max_latency_ms / 1000

    def is_heads(self) -> bool:
        """Toss a coin."""
        return self._rng.random() < 0.5

    def delay_seconds(self) -> float:
        """Return how long something takes that takes long."""
        return self._rng.random() * self.rates.max_delay_ms / 1000

    def part_of(self, size_bytes: int) -> int:
        """Return how much of a torn append is written: at least one byte less than all of it."""
        return int(self._rng.random() * size_bytes)


def _cumulated(rates: FaultRates, kinds: Sequence[FaultKind]) -> list[tuple[float, FaultKind]]:
    table, limit = [], 0.0
    for kind in kinds:
        rate: float = getattr(rates, _RATE_OF[kind])
        if rate > 0:
            limit += rate
            table.append((limit, kind))
    return table
