"""Group commit: gather what arrives, write it as one frame, commit frames in order, then answer.

1. `append` puts batches into the open frame, or waits while the buffer is full.
2. When a flush slot is free the frame is sealed at once: an idle writer answers after one write, a busy one
   batches by itself.
3. The frame's bytes are placed (several frames may be under way), then it waits for its predecessor's fate.
4. It is committed, and with it the frames right behind it that are placed by then: one transaction for all.
5. Its callers hear their part's result.

Must stay true:
- Nothing is acknowledged before bytes and commit are durable (I9).
- A frame commits, or is recorded as abandoned, before anything behind it commits: no order is broken, and
  a frame whose commit was in doubt is never committed by surprise.
- When a frame is given up, its producers' first batches in it are remembered: a stream that has never seen the
  producer would else accept later ones first, and refuse these for ever.
- Who is told `Retryable` may send again without a double; who is told `OutcomeUnknown` may not assume so.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from headrace.errors import Fenced, HeadraceError, OutcomeUnknown, Retryable, Unusable, without_frames
from headrace.index.cache import IndexCache
from headrace.index.values import LogRecord, PartResult, PartStatus
from headrace.index.writers import register_writer, retire_writer
from headrace.metadata.keys import DomainKeys
from headrace.metadata.port import MetadataStore
from headrace.model.batches import BatchSummary
from headrace.model.ids import SessionId, StreamId, WriterId
from headrace.objects.port import Buffer
from headrace.produce.offers import Appended, GivenUp, NewPart, Offer
from headrace.produce.placement import Placed, Placement
from headrace.produce.settlement import Frame, Settlement, Settler, WriterLimits
from headrace.records.stamping import NO_LEADER_EPOCH, stamp_offset
from headrace.runtime.clock import Clock
from headrace.runtime.crash_points import CrashPoint, CrashPoints
from headrace.runtime.metrics import Metrics
from headrace.wal.frame import FrameBuilder

SMALL_FRAME_BYTES = 512 * 1024
"""Writing a frame of this size takes about as long as committing it."""


class Tail(Protocol):
    """Takes what was just committed, for readers who are close behind."""

    def committed(self, stream: StreamId, start_offset: int, end_offset: int, data: memoryview) -> None:
        """Keep the batches of one part; their offsets are stamped."""
        ...


class WriterMetrics:
    """What is counted of all writers of one process."""

    def __init__(self, metrics: Metrics) -> None:
        self.flushes = metrics.counters("wal_flushes", "Frames that were made durable.").of()
        self.bytes = metrics.counters("wal_bytes", "Bytes of frames that were made durable.").of()
        self.given_up = metrics.counters("wal_frames_given_up", "Frames that were not committed.").of()


class _OpenFrame:
    """The frame that is being gathered; offers stand in the order of the builder's tickets."""

    __slots__ = ("builder", "offers")

    def __init__(self) -> None:
        self.builder = FrameBuilder()
        self.offers: list[Offer] = []


class LogWriter:
    """One process incarnation's way into one domain's log."""

    def __init__(
        self,
        *,
        keys: DomainKeys,
        writer: WriterId,
        metadata: MetadataStore,
        placement: Placement,
        clock: Clock,
        crash_points: CrashPoints,
        limits: WriterLimits,
        cache: IndexCache | None = None,
        tail: Tail | None = None,
        metrics: WriterMetrics | None = None,
        given_up: GivenUp | None = None,
    ) -> None:
        self._keys = keys
        self._writer = writer
        self._metadata = metadata
        self._placement = placement
        self._clock = clock
        self._crash_points = crash_points
        self._limits = limits
        self._cache = cache
        self._tail = tail
        self._metrics = metrics
        self._open = _OpenFrame()
        self._full: deque[_OpenFrame] = deque()
        self._held_bytes = 0
        self._next_frame = 0
        self._in_flight: dict[asyncio.Task[None], Frame] = {}
        self._predecessor: asyncio.Task[None] | None = None
        self._placed: dict[int, Settlement] = {}
        """Frames by number whose bytes are placed, until their callers have the answer."""
        self._given_up = GivenUp() if given_up is None else given_up
        self._settler = Settler(
            keys=keys,
            writer=writer,
            metadata=metadata,
            clock=clock,
            crash_points=crash_points,
            limits=limits,
            given_up=self._given_up,
            note_fence=self._note_fence,
        )
        self._admission = asyncio.Lock()
        self._wakeup = asyncio.Event()
        self._room = asyncio.Event()
        self._flusher: asyncio.Task[None] | None = None
        self._fence: str | None = None
        self._last_told = ""
        self._is_closing = False
        self.fenced = asyncio.Event()
        """Set when this incarnation can never commit again: whoever runs it ends it and starts a new one."""

    async def start(self, session: SessionId) -> None:
        """Register this incarnation and begin to flush."""
        rule = register_writer(self._keys, self._writer, session=session, now_ms=self._clock.now_ms())
        await rule.apply(self._metadata, session=session)
        self._flusher = asyncio.create_task(self._flush())
        self._flusher.add_done_callback(self._flusher_ended)

    async def append(self, stream: StreamId, data: Buffer, batches: Sequence[BatchSummary]) -> PartResult:
        """Append one request's batches to one stream and return what became of them, once that is durable.

        Raises `Retryable` (nothing was written), `OutcomeUnknown`, or `Fenced` (this writer is done for; another
        broker can take the request).
        """
        appended = await self.append_all([NewPart(stream, memoryview(data), batches)])
        await appended.done
        (result,) = appended.results
        if isinstance(result, HeadraceError):
            raise result
        assert result is not None
        return result

    def has_room(self, size_bytes: int) -> bool:
        """Say whether `append_all` would take these bytes without waiting."""
        if self._admission.locked():
            return False
        return self._held_bytes == 0 or self._held_bytes + size_bytes <= self._limits.buffer_max_bytes

    async def append_all(self, parts: Sequence[NewPart]) -> Appended:
        """Take one request's parts, as soon as there is room for them; their results come when they are durable.

        Each result is a `PartResult`, or an error as `append` raises it. Who stops waiting changes nothing: the frame
        goes on. Raises what `append` raises if nothing was taken.
        """
        size_bytes = sum([len(part.data) for part in parts])
        # First come, first served: a small request must not pass a large one that waits for room.
        async with self._admission:
            while self._held_bytes > 0 and self._held_bytes + size_bytes > self._limits.buffer_max_bytes:
                self._room.clear()
                await self._room.wait()
            if self._fence is not None:
                raise Fenced(self._fence)
            if self._is_closing:
                raise Retryable("this writer is closing: send the request to another broker")
            appended = Appended(len(parts))
            for position, part in enumerate(parts):
                self._take(part, appended, position)
        self._wakeup.set()
        return appended

    def _take(self, part: NewPart, appended: Appended, position: int) -> None:
        """Put a part into the open frame, or into a new one if that one is full."""
        size_bytes = len(part.data)
        is_full = (
            self._open.builder.size_bytes + size_bytes > self._limits.frame_max_bytes
            or len(self._open.offers) >= self._limits.frame_max_parts
        )
        if is_full and self._open.offers:
            self._full.append(self._open)
            self._open = _OpenFrame()
        self._open.builder.add(part.stream, part.data, part.batches)
        self._open.offers.append(Offer(part, appended, position))
        self._held_bytes += size_bytes

    async def drain(self) -> None:
        """Take no more, and wait until everything taken so far has its answer."""
        self._is_closing = True
        self._wakeup.set()
        if self._flusher is not None:
            # Who stops waiting for the end must not break it off: what was taken has to be answered.
            await asyncio.shield(self._flusher)

    async def close(self) -> None:
        """Drain, seal what is open and leave: the clean end of an incarnation."""
        await self.drain()
        await self._placement.tidy(everything=True)
        await retire_writer(self._keys, self._writer).apply(self._metadata)

    async def tick(self) -> None:
        """Seal segments that have grown old or are in doubt."""
        await self._placement.tidy()

    async def _flush(self) -> None:
        while True:
            while not self._open.offers and not self._is_closing:
                self._wakeup.clear()
                await self._wakeup.wait()
            if not self._open.offers:
                break
            if self._limits.linger_ms and not self._is_closing:
                await self._linger()
            # A frame that lands makes room, and one that grows may find more.
            while len(self._in_flight) >= self._slots():
                self._wakeup.clear()
                await self._wakeup.wait()
            self._launch(self._seal())
        if self._in_flight:
            await asyncio.wait(self._in_flight)

    def _slots(self) -> int:
        """Return how many frames may be under way before the next one is sealed."""
        is_small = not self._full and self._open.builder.size_bytes < SMALL_FRAME_BYTES
        return self._limits.small_frames_in_flight if is_small else self._limits.frames_in_flight

    async def _linger(self) -> None:
        """Wait for company, unless a frame is full already."""
        deadline = self._clock.monotonic() + self._limits.linger_ms / 1000
        while not self._full and not self._is_closing:
            left = deadline - self._clock.monotonic()
            if left <= 0:
                return
            self._wakeup.clear()
            waiting = asyncio.create_task(self._wakeup.wait())
            sleeping = asyncio.create_task(self._clock.sleep(left))
            await asyncio.wait([waiting, sleeping], return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            sleeping.cancel()

    def _seal(self) -> Frame:
        if self._full:
            gathered = self._full.popleft()
        else:
            gathered, self._open = self._open, _OpenFrame()
        number = self._next_frame
        self._next_frame += 1
        created_at_ms = self._clock.now_ms()
        sealed = gathered.builder.seal(
            writer=self._writer, frame_number=number, domain=self._keys.domain, created_at_ms=created_at_ms
        )
        return Frame(number=number, created_at_ms=created_at_ms, sealed=sealed, offers=gathered.offers)

    def _launch(self, frame: Frame) -> None:
        task = asyncio.create_task(self._carry(frame, self._predecessor))
        self._predecessor = task
        self._in_flight[task] = frame
        task.add_done_callback(self._landed)

    def _landed(self, task: "asyncio.Task[None]") -> None:
        """Let go of a frame's task. One that broke off is a mistake of ours, and is told at once.

        A store that cannot be trusted any more is none of ours: one line says so, for all frames that it concerns.
        """
        del self._in_flight[task]
        self._wakeup.set()
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Unusable):
            if str(error) != self._last_told:
                self._last_told = str(error)
                message = f"frames can be neither committed nor given up: {error}; producers hear an error"
                task.get_loop().call_exception_handler({"message": message})
        elif isinstance(error, Exception):
            context = {"message": "a frame ended without a fate", "exception": error, "task": task}
            task.get_loop().call_exception_handler(context)

    async def _carry(self, frame: Frame, predecessor: "asyncio.Task[None] | None") -> None:
        """Bring one frame to its fate and tell its callers."""
        outcome: LogRecord | HeadraceError = OutcomeUnknown(f"frame {frame.number} ended without a fate: see the log")
        settlement = Settlement(self._settler, frame)
        try:
            settlement.placed, failure = await self._place(frame)
            if settlement.placed is not None:
                self._placed[frame.number] = settlement
            if predecessor is not None:
                await asyncio.wait([predecessor])
            outcome = await self._settle(settlement, failure)
        finally:
            self._placed.pop(frame.number, None)
            # The room first: whatever goes wrong with the answers, nobody must wait for it for ever.
            self._held_bytes -= frame.held_bytes
            self._room.set()
            self._answer(frame, outcome, settlement.revision)

    async def _place(self, frame: Frame) -> tuple[Placed | None, HeadraceError | None]:
        try:
            placed = await self._placement.place(frame.sealed.buffers, frame.sealed.size_bytes)
        except HeadraceError as error:
            return None, error
        self._crash_points.reach(CrashPoint.WRITER_AFTER_WRITE)
        if self._metrics is not None:
            self._metrics.flushes.inc()
            self._metrics.bytes.inc(frame.sealed.size_bytes)
        return placed, None

    async def _settle(self, settlement: Settlement, failure: HeadraceError | None) -> LogRecord | HeadraceError:
        placed = settlement.placed
        if settlement.record is None and self._fence is not None:
            if placed is not None:
                # Else its segment would never be sealed, and its file stay open as long as the process lives.
                self._placement.settled(placed.object_id, in_doubt=True)
            return settlement.fenced(Fenced(self._fence))
        if placed is None:
            # The bytes may or may not lie there, but no entry will ever name them: nothing was written.
            return await settlement.give_up(Retryable(f"a frame could not be stored: {failure}"))
        # A frame before it may have taken it along.
        outcome = settlement.record or await settlement.commit(self._followers(settlement.frame))
        self._placement.settled(placed.object_id, in_doubt=settlement.is_in_doubt)
        if settlement.is_in_doubt:
            await self._tidy_quietly()
        return outcome

    def _followers(self, frame: Frame) -> list[Settlement]:
        """Return the frames that can go into one transaction with this one: placed, and right behind it."""
        followers: list[Settlement] = []
        part_count = len(frame.offers)
        while (following := self._placed.get(frame.number + len(followers) + 1)) is not None:
            part_count += len(following.frame.offers)
            if part_count > self._limits.group_max_parts:
                break
            followers.append(following)
        return followers

    async def _tidy_quietly(self) -> None:
        """Seal what was retired; if that fails now, `tick` tries again."""
        try:
            await self._placement.tidy()
        except (Retryable, OutcomeUnknown):
            return

    def _answer(self, frame: Frame, outcome: LogRecord | HeadraceError, revision: int) -> None:
        if not isinstance(outcome, LogRecord):
            if self._metrics is not None:
                self._metrics.given_up.inc()
            # The frames that it went through hold this frame, whose offers hold the error from here on.
            without_frames(outcome)
            for offer in frame.offers:
                self._given_up.note(offer)
                offer.settle(outcome)
            return
        # It is committed. The producers first: neither a cache that fails nor thousands of readers who wake may keep
        # them from hearing it. Nothing runs before the caches have it, too, because nothing here waits.
        for offer, result in zip(frame.offers, outcome.results, strict=True):
            self._given_up.note_result(offer, result)
            offer.settle(result)
        if self._tail is not None:
            for offer, result in zip(frame.offers, outcome.results, strict=True):
                if result.status is PartStatus.ACCEPTED:
                    self._keep_in_tail(self._tail, offer, result.base_offset)
        # Readers who wait are woken by this, and find the bytes in the tail.
        if self._cache is not None:
            self._cache.note_committed(outcome, revision)

    def _keep_in_tail(self, tail: Tail, offer: Offer, base_offset: int) -> None:
        """Stamp the offsets into the bytes as they were received: they are in the log by now, and ours alone."""
        next_byte, next_offset = 0, base_offset
        for batch in offer.batches:
            view = offer.data[next_byte : next_byte + batch.size_bytes]
            stamp_offset(view, base_offset=next_offset, leader_epoch=NO_LEADER_EPOCH)
            next_byte += batch.size_bytes
            next_offset += batch.record_count
        tail.committed(offer.stream, base_offset, next_offset, offer.data)

    def _flusher_ended(self, task: "asyncio.Task[None]") -> None:
        """A flusher that broke off takes this incarnation with it: nothing would be written any more."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            context = {"message": "a writer's flusher has ended", "exception": error, "task": task}
            task.get_loop().call_exception_handler(context)
            self._note_fence(Fenced(f"writer {self._writer} cannot flush any more: {error!r}"))

    def _note_fence(self, error: Fenced) -> None:
        self._fence = str(error)
        self.fenced.set()
