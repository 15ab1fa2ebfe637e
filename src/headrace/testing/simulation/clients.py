"""Clients of simulated brokers: they produce, consume and delete, and take every error as a real client would.

A producer with sequences sends each batch until it is told its offset, to any broker; what it sent is stored once.
A plain producer sends again after any error; what it sent is stored once or more. Both go on for as long as it takes:
if they never end, the history is stuck, and that is a violation, too.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from headrace.errors import Corrupt, HeadraceError
from headrace.index.values import IndexEntry, PartResult, PartStatus, PinRecord
from headrace.model.batches import BatchSummary
from headrace.model.ids import PinId, StreamId
from headrace.records.batch import BatchView
from headrace.runtime.clock import Clock
from headrace.runtime.rng import Rng
from headrace.testing.batches import make_batch, read_batches
from headrace.testing.simulation.checkers import StoredLog
from headrace.testing.simulation.history import History, Violation
from headrace.testing.simulation.node import STREAM_COUNT, Node

T = TypeVar("T")

REQUEST_TIMEOUT_SECONDS = 4.0
PAUSE_SECONDS = 0.3
ROUNDS_PER_ID = 2
BEGIN_ANEW_RATE = 0.15
MAX_PRODUCERS = 100
PIN_MS = 600_000


class Client:
    """What all clients share: nodes to choose from, time, chance and a memory."""

    def __init__(self, *, nodes: Callable[[], list[Node]], clock: Clock, rng: Rng, history: History) -> None:
        self._nodes = nodes
        self._clock = clock
        self._rng = rng
        self._history = history

    def _any_node(self) -> Node:
        nodes = self._nodes()
        return nodes[self._rng.randrange(0, len(nodes))]

    def _any_stream(self) -> StreamId:
        return StreamId(self._rng.randrange(0, STREAM_COUNT))

    async def _pause(self) -> None:
        await self._clock.sleep(self._rng.uniform(0, PAUSE_SECONDS))


class Producer(Client):
    """Sends batches, some of them several at a time, until all of them have an offset."""

    def __init__(
        self,
        number: int,
        *,
        is_idempotent: bool,
        nodes: Callable[[], list[Node]],
        clock: Clock,
        rng: Rng,
        history: History,
    ) -> None:
        super().__init__(nodes=nodes, clock=clock, rng=rng, history=history)
        self._number = number
        self._producer_id = number
        self._is_idempotent = is_idempotent
        self._sequences: dict[StreamId, int] = {}
        self._value_count = 0

    async def run(self, rounds: int) -> None:
        """Send bursts of up to five batches, each to one stream: so many may be in flight and still be recognised.

        Now and then the producer begins anew, under an id that the streams have never seen.
        """
        for number in range(rounds):
            if number % ROUNDS_PER_ID == 0:
                self._producer_id = self._number + number * MAX_PRODUCERS
                self._sequences.clear()
            stream = self._any_stream()
            burst = [self._next_batch(stream) for _ in range(self._rng.randrange(1, 6))]
            node = self._any_node()
            answers = await asyncio.gather(*(self._send(node, stream, data) for data, _ in burst))
            for (data, values), answer in zip(burst, answers, strict=True):
                await self._finish(stream, data, values, answer)
            await self._pause()

    def _next_batch(self, stream: StreamId) -> tuple[bytes, list[bytes]]:
        count = self._rng.randrange(1, 4)
        values = [b"%d/%d/%d" % (self._producer_id, stream, self._value_count + n) for n in range(count)]
        self._value_count += count
        at_ms = self._clock.now_ms() - self._rng.randrange(0, 5_000)
        self._history.timestamps.update((value, at_ms + n) for n, value in enumerate(values))
        if not self._is_idempotent:
            return make_batch(values, at_ms=at_ms), values
        sequence = self._sequences.get(stream, 0)
        self._sequences[stream] = sequence + count
        self._history.idempotent_values.update(values)
        data = make_batch(
            values, at_ms=at_ms, producer_id=self._producer_id, producer_epoch=0, base_sequence=sequence
        )
        return data, values

    async def _send(self, node: Node, stream: StreamId, data: bytes) -> PartResult | None:
        """Send once; `None` for any error, which to a client that may send again are all alike."""
        summary: BatchSummary = BatchView(memoryview(data)).summary()
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_SECONDS):
                return await node.process.call(node.produce(stream, data, summary))
        except (HeadraceError, TimeoutError):
            return None

    async def _finish(self, stream: StreamId, data: bytes, values: list[bytes], answer: PartResult | None) -> None:
        """Send again until there is an offset, remember it, and now and then look for the records elsewhere."""
        while answer is None or answer.status not in (PartStatus.ACCEPTED, PartStatus.DUPLICATE):
            await self._pause()
            answer = await self._send(self._any_node(), stream, data)
        self._history.acknowledge(stream, answer.base_offset, values)
        if self._rng.random() < 0.5:
            await self._look(stream, answer.base_offset, values)

    async def _look(self, stream: StreamId, base_offset: int, values: list[bytes]) -> None:
        """Read what was just acknowledged from any broker: it must be there (I2)."""
        node = self._any_node()
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_SECONDS):
                head = await node.process.call(node.head(stream))
        except (HeadraceError, TimeoutError):
            return
        if head is None or head.high_watermark < base_offset + len(values):
            raise Violation(
                f"stream {stream}: offset {base_offset} was acknowledged, but {node.process.name} ends at {head}"
            )


class Consumer(Client):
    """Reads streams from their beginning, from any broker, and insists on every offset."""

    async def run(self, rounds: int) -> None:
        """Read a little, again and again; now and then begin anew, where entries have been swapped meanwhile."""
        positions = {StreamId(number): 0 for number in range(STREAM_COUNT)}
        for _ in range(rounds):
            for stream, position in positions.items():
                begins_anew = self._rng.random() < BEGIN_ANEW_RATE
                positions[stream] = await self._advance(stream, 0 if begins_anew else position)
            await self._pause()

    async def _advance(self, stream: StreamId, position: int) -> int:
        node = self._any_node()
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_SECONDS):
                runs = await node.process.call(node.read(stream, position))
                if not runs:
                    head = await node.process.call(node.head(stream))
                    return position if head is None else max(position, head.log_start)
        except Corrupt as error:
            raise Violation(f"{node.process.name} found damage: {error}") from error
        except (HeadraceError, TimeoutError):
            return position
        if not runs[0].start_offset <= position < runs[0].end_offset:
            raise Violation(f"stream {stream}: asked for {position}, got {runs[0].start_offset}")
        for run in runs:
            if run.start_offset > position:
                raise Violation(f"stream {stream}: offsets {position} to {run.start_offset} were skipped")
            for record in read_batches(run.data):
                if record.value is not None:
                    self._history.see(stream, record.offset, record.value)
            position = run.end_offset
        return position


class Deleter(Client):
    """Moves log starts forward, as retention does."""

    async def run(self, rounds: int) -> None:
        for _ in range(rounds):
            await self._clock.sleep(self._rng.uniform(1, 6))
            node, stream = self._any_node(), self._any_stream()
            try:
                async with asyncio.timeout(REQUEST_TIMEOUT_SECONDS):
                    head = await node.process.call(node.head(stream))
                    if head is None or head.high_watermark == head.log_start:
                        continue
                    offset = self._rng.randrange(head.log_start, head.high_watermark)
                    known = self._history.log_starts.get(stream, 0)
                    self._history.log_starts[stream] = max(known, offset)
                    await node.process.call(node.advance_log_start(stream, offset))
            except (HeadraceError, TimeoutError):
                continue


class PinnedReader(Client):
    """Pins, plans, waits until collectors would have taken it all, and then reads straight from storage."""

    async def run(self, rounds: int, stored: StoredLog) -> None:
        for _ in range(rounds):
            await self._clock.sleep(self._rng.uniform(0.5, 4))
            pin_id = PinId(f"{self._rng.getrandbits(128):032x}")
            now_ms = self._any_node().clock.now_ms()
            record = PinRecord(now_ms, now_ms + PIN_MS, 0, "a simulated read")
            planned = await self._insist(lambda: self._plan(pin_id, record))  # noqa: B023
            await self._clock.sleep(self._rng.uniform(2, 12))
            for entry in planned:
                self._check(stored, entry)
            self._history.pinned_count += len(planned)
            await self._insist(lambda: self._release(pin_id))  # noqa: B023

    def _check(self, stored: StoredLog, entry: IndexEntry) -> None:
        try:
            stored.values(entry)
        except Violation as error:
            raise Violation(f"a pinned read was planned from {entry}, and now {error}") from error

    async def _plan(self, pin_id: PinId, record: PinRecord) -> list[IndexEntry]:
        node, stream = self._any_node(), self._any_stream()
        await node.process.call(node.pin(pin_id, record))
        return await node.process.call(node.plan(stream))

    async def _release(self, pin_id: PinId) -> None:
        node = self._any_node()
        await node.process.call(node.release(pin_id))

    async def _insist(self, work: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                async with asyncio.timeout(REQUEST_TIMEOUT_SECONDS):
                    return await work()
            except Corrupt as error:
                raise Violation(f"a pinned read found damage: {error}") from error
            except (HeadraceError, TimeoutError):
                await self._pause()
