"""What scenarios do to their processes: kill them, stop them, set their clocks wrong, and start them again."""

import asyncio
from collections.abc import Collection, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from headrace.runtime.rng import Rng
from headrace.testing.simulation.history import Violation
from headrace.testing.simulation.plan import FaultPlan
from headrace.testing.simulation.process import SimClock, SimCrashPoints, SimProcess
from headrace.testing.simulation.report import Report

RESTART_SECONDS = 0.5
"""How long a process that died in calm stays down, at most."""


class Incarnation(Protocol):
    """One process of a scenario, between a start and a death."""

    @property
    def process(self) -> SimProcess: ...

    @property
    def clock(self) -> SimClock: ...

    @property
    def crash_points(self) -> SimCrashPoints: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Roughness:
    """How a scenario treats its processes. Rates are per look at a process, from 0 to 1."""

    min_look_seconds: float
    max_look_seconds: float
    crash_rate: float
    pause_rate: float
    jump_rate: float
    max_pause_seconds: float
    max_jump_ms: int = 3_600_000


N = TypeVar("N", bound=Incarnation)
T = TypeVar("T")


class TroubledScenario(Generic[N]):
    """A scenario whose processes live in slots: whoever dies is followed by the next incarnation."""

    _rng: Rng
    _clock: SimClock
    _plan: FaultPlan
    _roughness: Roughness
    report: Report

    def __init__(self) -> None:
        self._slots: list[N] = []
        self._in_trouble = True

    def _start_node(self, slot: int) -> N:
        """Start the next incarnation of a slot."""
        raise NotImplementedError

    async def _trouble(self, slot: int) -> None:
        """Kill and stop the process of one slot, and start it again whenever it is dead."""
        rough = self._roughness
        while True:
            is_rough = self._in_trouble
            await self._clock.sleep(
                self._rng.uniform(rough.min_look_seconds, rough.max_look_seconds) if is_rough else RESTART_SECONDS
            )
            node = self._slots[slot]
            if node.process.is_dead:
                self._bury(node)
                self._slots[slot] = self._start_node(slot)
            elif self._in_trouble:
                await self._disturb(node)

    async def _disturb(self, node: N) -> None:
        rough = self._roughness
        chance = self._rng.random()
        if chance < rough.crash_rate:
            node.process.crash()
        elif chance < rough.crash_rate + rough.pause_rate:
            node.process.pause()
            await self._clock.sleep(self._rng.uniform(0.1, rough.max_pause_seconds))
            node.process.resume()
        elif chance < rough.crash_rate + rough.pause_rate + rough.jump_rate:
            node.clock.jump_wall(self._rng.randrange(-rough.max_jump_ms, rough.max_jump_ms))

    def _calm_down(self) -> None:
        """Let nothing go wrong any more, and set the clocks right."""
        self._in_trouble = False
        self._plan.quiesce()
        for node in self._slots:
            node.clock.correct_wall()

    async def _insist_on(self, clients: "Collection[asyncio.Task[None]]", *, limit_seconds: float) -> None:
        """Wait until all clients are done, and raise what they have found; it is calm."""
        _, stuck = await asyncio.wait(clients, timeout=limit_seconds)
        for client in clients:
            if client.done():
                client.result()
        if stuck:
            raise Violation(f"{len(stuck)} clients are stuck {limit_seconds} s after the last fault: {stuck}")

    async def _watched(self, work: Coroutine[Any, Any, T], watch: Coroutine[Any, Any, None]) -> T:
        """Do the work while somebody watches, and raise what is seen as soon as it is seen."""
        working, watching = asyncio.create_task(work), asyncio.create_task(watch)
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if watching.done():
            watching.result()
        watching.cancel()
        return working.result()

    def _bury(self, node: N) -> None:
        self.report.crash_count += 1
        self.report.crash_points.update(node.crash_points.arrivals)
