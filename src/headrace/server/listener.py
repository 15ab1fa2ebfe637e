"""The Kafka listener: accepts connections, counts them, shares memory among them, and ends them in good order."""

import asyncio
from collections import Counter
from typing import Protocol

from headrace.errors import Unusable
from headrace.handlers.dispatch import Answer
from headrace.runtime.answers import AnswerBudget, Room
from headrace.runtime.buffers import BufferPool, ByteBudget
from headrace.runtime.clock import Clock
from headrace.runtime.logs import Log
from headrace.runtime.metrics import Metrics, one_of
from headrace.runtime.turns import LoopTurns
from headrace.server.connection import Connection
from headrace.server.intake import FrameBudget
from headrace.server.limits import (
    BACKLOG,
    MAX_KEPT_BYTES,
    MEDIUM_FRAME_BYTES,
    PRESSED_BYTES_PER_SECOND,
    PRESSED_STALL_S,
    SCRATCH_BYTES,
    ServerLimits,
)

CHECK_INTERVAL_S = 1.0
"""How often connections are looked at for idleness and slowness."""

PRESSED_CHECK_INTERVAL_S = 0.1
"""How often while requests wait for memory."""

CHECKED_PER_PASS = 500
"""How many connections are looked at in one pass of the loop."""

MIN_RECOUNT_S = 0.02
"""How often at most unsent answers are counted because their memory looks short."""

PRESSED_UNTIL = 4
"""Slow readers are closed until only one part in so many of the memory for answers is taken: half of what there is
for clients that have not shown yet that they read."""

MAX_LATE_S = 0.2
"""A look that comes later than this proves nothing: this process was paused or busy, and its clients wait in line."""

ENDS = (
    "size",
    "api",
    "version",
    "garbage",
    "elements",
    "slow-frame",
    "slow-reader",
    "idle",
    "limit",
    "memory",
    "produce",
)

# A third of the memory each: what is small is never held up by what is large, nor by what is huge.
_BUDGETS = 3


class Answers(Protocol):
    """Who answers requests: `handlers.dispatch.Dispatcher`."""

    def serves(self, api_key: int) -> bool:
        """Say whether an API is served in any version."""
        ...

    async def serve(self, frame: memoryview, peer: str, room: Room) -> Answer:
        """Return the answer to a request, or the promise of one; raise `HangUp` where there is none to give."""
        ...


class ServerMetrics:
    """What is counted of the connections of one process."""

    def __init__(self, metrics: Metrics) -> None:
        self.connections = metrics.gauges("kafka_connections", "Open connections of Kafka clients.").of()
        self.accepted = metrics.counters("kafka_connections_accepted", "Connections that were accepted.").of()
        self.ended = metrics.counters(
            "kafka_connections_ended_by_broker",
            "Connections that this broker closed, by reason.",
            one_of("reason", ENDS),
        )
        self.request_memory = metrics.gauges(
            "kafka_request_memory_bytes", "Memory of requests that are being received or handled."
        ).of()
        self.answer_memory = metrics.gauges(
            "kafka_answer_memory_bytes", "Memory of answers that are being gathered or have not been sent."
        ).of()
        self.buffers_leased = metrics.gauges("buffers_leased_bytes", "Recycled buffers in use.").of()
        self.buffers_idle = metrics.gauges("buffers_idle_bytes", "Recycled buffers that wait for use.").of()


class KafkaServer:
    """One listening address and its connections."""

    def __init__(
        self,
        *,
        dispatcher: Answers,
        pool: BufferPool,
        limits: ServerLimits,
        clock: Clock,
        log: Log,
        metrics: ServerMetrics,
        needs_authentication: bool = False,
    ) -> None:
        self.dispatcher = dispatcher
        self.limits = limits
        self.log = log
        self.now = clock.monotonic
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._clock = clock
        self._pool = pool
        self._metrics = metrics
        self._needs_authentication = needs_authentication
        share_bytes = limits.request_memory_bytes // _BUDGETS
        self.small = ByteBudget(share_bytes)
        self._medium = FrameBudget(share_bytes, window_bytes=share_bytes // 2, now=self.now)
        self._large = FrameBudget(share_bytes, window_bytes=share_bytes // 4, now=self.now)
        self.answers = AnswerBudget(limits.answer_memory_bytes, recount=self._recount_answers)
        self.unsent: set[Connection] = set()
        """Those with answers that may not have been sent yet."""
        self.receiving: set[Connection] = set()
        """Those with a frame that has begun and does not end in the scratch buffer."""
        self.kept_bytes = 0
        """What connections that wait have received behind their last frame."""
        self._recounted_at = 0.0
        self._turns = LoopTurns()
        self._connections: set[Connection] = set()
        self._per_address: Counter[str] = Counter()
        self._server: asyncio.Server | None = None
        self._checking: asyncio.Task[None] | None = None
        self._all_closed = asyncio.Event()
        self._is_draining = False

    async def start(self, host: str, port: int) -> int:
        """Listen; return the port, which the system chooses if 0 was asked for. Raises `Unusable`."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(self._accept, host, port, backlog=BACKLOG)
        except OSError as error:
            raise Unusable(
                f"cannot listen for Kafka clients on {host}:{port} ({error.strerror or error}): stop what uses that "
                "address, or choose another with --kafka HOST:PORT"
            ) from error
        self._checking = loop.create_task(self._check())
        return int(self._server.sockets[0].getsockname()[1])

    async def drain(self, limit_s: float) -> None:
        """Accept no more, answer what is under way, close; what has not ended after `limit_s` is cut off."""
        self._is_draining = True
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.drain()
        if self._connections:
            self._all_closed.clear()
            timer = asyncio.create_task(self._clock.sleep(limit_s))
            closed = asyncio.create_task(self._all_closed.wait())
            await asyncio.wait([timer, closed], return_when=asyncio.FIRST_COMPLETED)
            timer.cancel()
            closed.cancel()
        if self._connections:
            self.log.warning("connections were cut off while draining", count=len(self._connections))
            for connection in list(self._connections):
                connection.abort()
        if self._checking is not None:
            self._checking.cancel()

    # What connections ask for and tell

    def frames_of(self, size_bytes: int) -> FrameBudget:
        """Return the budget that a frame of this size counts against, unless it is small and all there."""
        return self._medium if size_bytes <= MEDIUM_FRAME_BYTES else self._large

    def may_keep(self, size_bytes: int) -> bool:
        """Count bytes that a connection keeps while it waits to go on; say whether there is room for them."""
        self.kept_bytes += size_bytes
        return self.kept_bytes <= MAX_KEPT_BYTES

    def buffer_for(self, size_bytes: int) -> memoryview:
        """Return memory for one frame: recycled where that pays."""
        if size_bytes <= SCRATCH_BYTES:
            return memoryview(bytearray(size_bytes))
        return self._pool.lease(size_bytes)

    def opened(self, connection: Connection) -> None:
        """Count a new connection, or close it where there are too many."""
        self._connections.add(connection)
        self._per_address[connection.address] += 1
        self._metrics.accepted.inc()
        self._metrics.connections.set(len(self._connections))
        if self._is_draining:
            connection.abort()
        elif len(self._connections) > self.limits.max_connections:
            self._refuse(connection, f"connections.max.count is {self.limits.max_connections}")
        elif self._per_address[connection.address] > self.limits.max_connections_per_address:
            self._refuse(connection, f"max.connections.per.ip is {self.limits.max_connections_per_address}")

    def closed(self, connection: Connection) -> None:
        """Forget a connection."""
        self._connections.discard(connection)
        self.unsent.discard(connection)
        self.receiving.discard(connection)
        self._per_address[connection.address] -= 1
        if self._per_address[connection.address] <= 0:
            del self._per_address[connection.address]
        self._metrics.connections.set(len(self._connections))
        if not self._connections:
            self._all_closed.set()

    def note_hang_up(self, connection: Connection, kind: str, reason: str, head: bytes | None) -> None:
        """Say why a connection is closed: one line, one metric."""
        self._metrics.ended.of(kind).inc()
        shown = {} if head is None else {"head": head}
        self.log.warning("a connection was closed", peer=connection.peer, kind=kind, reason=reason, **shown)

    def note_idle(self, connection: Connection) -> None:
        """Count a connection that is closed because nothing came."""
        self._metrics.ended.of("idle").inc()
        self.log.debug("an idle connection was closed", peer=connection.peer)

    def _accept(self) -> Connection:
        return Connection(self, is_authenticated=not self._needs_authentication)

    def _refuse(self, connection: Connection, why: str) -> None:
        connection.hang_up("limit", f"too many connections: {why}")

    async def _check(self) -> None:
        all_due_at = self.now()
        while True:
            interval_s = PRESSED_CHECK_INTERVAL_S if self._is_pressed() else CHECK_INTERVAL_S
            due_at = self.now() + interval_s
            await self._clock.sleep(interval_s)
            now = self.now()
            if now - due_at < MAX_LATE_S:
                if now >= all_due_at:
                    all_due_at = now + CHECK_INTERVAL_S
                    await self._check_all(now)
                else:
                    for connection in list(self.receiving):
                        connection.check(now)
                self._press_slow_readers(now)
            self._medium.serve()
            self._large.serve()
            self._note_memory()

    async def _check_all(self, now: float) -> None:
        """Look at every connection, a slice in each pass of the loop: there may be tens of thousands."""
        connections = list(self._connections)
        for start in range(0, len(connections), CHECKED_PER_PASS):
            for connection in connections[start : start + CHECKED_PER_PASS]:
                connection.check(now)
            await self._turns.next()

    def _press_slow_readers(self, now: float) -> None:
        """Count what was sent; where memory for answers is short, close those who hold most of it and do not read."""
        self._recount_answers()
        if not self.answers.is_pressed:
            return
        slow = [
            connection
            for connection in self.unsent
            if connection.room.is_too_slow(now, patience_s=PRESSED_STALL_S, bytes_per_second=PRESSED_BYTES_PER_SECOND)
        ]
        taken_bytes = self.answers.taken_bytes
        for connection in sorted(slow, key=lambda one: one.room.unsent_bytes, reverse=True):
            if taken_bytes * PRESSED_UNTIL <= self.answers.limit_bytes:
                return
            taken_bytes -= connection.room.unsent_bytes
            connection.hang_up("slow-reader", "answers were not taken while others waited for their memory")

    def _recount_answers(self) -> None:
        """Let connections say what has been sent since; not so often that this would be felt."""
        now = self.now()
        if now - self._recounted_at < MIN_RECOUNT_S:
            return
        self._recounted_at = now
        for connection in list(self.unsent):
            connection.count_answers()

    def _note_memory(self) -> None:
        self._metrics.request_memory.set(sum(b.taken_bytes for b in (self.small, self._medium, self._large)))
        self._metrics.answer_memory.set(self.answers.taken_bytes)
        self._metrics.buffers_leased.set(self._pool.leased_bytes)
        self._metrics.buffers_idle.set(self._pool.idle_bytes)

    def _is_pressed(self) -> bool:
        budgets = (self.small, self._medium, self._large)
        return self.answers.is_pressed or any(budget.waiting_count for budget in budgets)
