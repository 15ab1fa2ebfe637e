"""Brokers on one memory store and a clock that the test moves."""

import asyncio
import io
import json
from collections.abc import Awaitable
from typing import TypeVar

from headrace.cluster.membership import Membership, Place
from headrace.cluster.registration import BROKER_CODEC, BrokerRecord
from headrace.metadata import keys
from headrace.metadata.memory import MemoryMetadata
from headrace.runtime.logs import open_log
from headrace.runtime.rng import seeded_rng
from headrace.testing.clock import ManualClock

T = TypeVar("T")

TIMEOUT_MS = 3000
STEP_S = 0.1


def place(node_id: int = 1, *, port: int = 9092, rack: str | None = None, lock: str | None = None) -> Place:
    return Place(node_id=node_id, host="broker.example", port=port, rack=rack, lock=lock)


class Stage:
    """Joins memberships and ends them all when the test is over."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.rng = seeded_rng(3)
        self.store = MemoryMetadata(self.rng)
        self.lines = io.StringIO()
        self.log = open_log(self.lines, clock=self.clock, format="json")
        self._joined: list[Membership] = []

    async def join(self, at: Place, *, timeout_ms: int = TIMEOUT_MS) -> Membership:
        joined = await Membership.join(
            self.store, at, session_timeout_ms=timeout_ms, clock=self.clock, rng=self.rng, log=self.log
        )
        self._joined.append(joined)
        return joined

    async def close(self) -> None:
        for joined in self._joined:
            await joined.abandon()

    async def registered(self, node_id: int = 1) -> BrokerRecord | None:
        row = await self.store.get(keys.broker(node_id))
        return None if row is None else BROKER_CODEC.decode(row.value, row.key)

    async def until(self, call: Awaitable[T], *, limit_s: float = 60.0) -> tuple[T | BaseException, float]:
        """Move time until a call has ended; return its result or error, and how long it took."""
        running = asyncio.ensure_future(call)
        began_at = self.clock.monotonic()
        while not running.done() and self.clock.monotonic() < began_at + limit_s:
            await self.clock.advance(STEP_S)
        assert running.done(), f"still waiting after {limit_s} s"
        return running.exception() or running.result(), self.clock.monotonic() - began_at

    def events(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.lines.getvalue().splitlines()]
