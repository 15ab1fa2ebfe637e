"""The flow of a fetch: plan, read what is missing, validate what is denied, wait for what is not there yet.

1. Plan from memory: heads from the index view, bytes from the tail cache or a cursor. No await: most fetches at the
   tail end here.
2. Read the partitions that memory does not hold, all at once.
3. Before any no (out of range, no such stream, nothing there), ask the store, and plan again.
4. If there is still too little, wait until a stream grows, then plan again.

Must stay true:
- A no is said only after a read of the store that began after the request arrived.
- The first batch of an answer is whole, however small the limits; after it they hold, batch by batch.
- A partition fails alone, and an offset is never skipped.
"""

import asyncio
import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from headrace.errors import Corrupt, HeadraceError
from headrace.fetch.catchup import CatchUp
from headrace.fetch.damage import Damaged
from headrace.fetch.runs import Cut, Piece, cut_runs
from headrace.fetch.tail import TailCache
from headrace.fetch.waiting import Waiter
from headrace.index.cache import IndexCache
from headrace.index.values import StreamHead
from headrace.model.ids import StreamId
from headrace.model.topics import TopicRules
from headrace.runtime.answers import ENDLESS_ROOM, Room
from headrace.runtime.clock import Clock
from headrace.runtime.logs import Log
from headrace.runtime.repeats import Repeats
from headrace.runtime.services import advice
from headrace.runtime.turns import WakeLine

MAX_WAIT_MS = 300_000
"""The longest a fetch is parked, whatever it asks for."""

MAX_ANSWER_BYTES = 55 * 1024 * 1024
"""The most one answer holds, whatever is asked for (but for a first batch that is larger): Kafka's default."""

MAX_EPOCHS = 100_000
"""Of how many streams it is remembered which state of their index memory was looked after for."""

MAX_READ_BYTES = 4 * 1024 * 1024
"""What one answer reads of one partition that memory does not hold, so that its neighbours are read with it."""

FIRST_READ_BYTES = 1024 * 1024
"""What the first read of an answer is taken to bring at least: its first batch is whole, however small the limits."""

MAX_READS = 100
"""How many partitions one answer reads; the others are there with no records, and have their turn later."""


FAILURE_REPEATS_S = 10.0
"""How long fetches that fail in the same way are not logged again."""


class Outcome(enum.IntEnum):
    """What became of one partition of a fetch."""

    FOUND = 0
    """The stream holds the offset, or ends there; there may be no records."""
    OUT_OF_RANGE = 1
    NO_STREAM = 2
    FAILED = 3
    """`error` says why."""


class Wanted(msgspec.Struct, frozen=True, gc=False):
    """What is asked of one stream."""

    stream: StreamId
    offset: int
    max_bytes: int


class Fetched(msgspec.Struct, frozen=True):
    """What one stream answers. `end_offset` is behind the last batch; −1 stands for what is not known."""

    outcome: Outcome
    high_watermark: int = -1
    log_start: int = -1
    records: list[Piece] = []
    size_bytes: int = 0
    end_offset: int = -1
    error: HeadraceError | None = None

    @property
    def last_stable_offset(self) -> int:
        """Where read_committed readers stop: before the first open transaction; there are none yet."""
        return self.high_watermark


_NO_STREAM = Fetched(Outcome.NO_STREAM)
_OUT_OF_RANGE = Fetched(Outcome.OUT_OF_RANGE)


@dataclass(slots=True)
class _Miss:
    """A partition whose bytes have to be read."""

    index: int
    head: StreamHead
    max_bytes: int
    whole_first: bool


@dataclass(slots=True)
class _Round:
    """One look at all partitions; `fetched` stands in the order of the request."""

    fetched: list[Fetched] = field(default_factory=list)
    misses: list[_Miss] = field(default_factory=list)
    doubts: set[StreamId] = field(default_factory=set)
    size_bytes: int = 0
    has_errors: bool = False
    is_cut_short: bool = False
    """A read ended before the end of the log: at damage, or where the kind of storage changes. Do not wait."""

    @property
    def expected_bytes(self) -> int:
        """What the answer will have, as far as it is known: found in memory, or about to be read."""
        if not self.misses:
            return self.size_bytes
        least_bytes = FIRST_READ_BYTES if self.misses[0].whole_first else 0
        return self.size_bytes + max(least_bytes, sum(miss.max_bytes for miss in self.misses))

    def put(self, index: int, answer: Fetched) -> None:
        """Take what was read for one partition."""
        self.fetched[index] = answer
        self.size_bytes += answer.size_bytes
        self.has_errors |= answer.outcome is Outcome.FAILED

    def is_enough(self, min_bytes: int) -> bool:
        """Whether it may be answered: not before every no was validated."""
        return not self.doubts and (self.has_errors or self.is_cut_short or self.size_bytes >= min_bytes)


class Fetcher:
    """Answers fetches of one broker."""

    def __init__(
        self,
        *,
        index: IndexCache,
        tail: TailCache,
        catch_up: CatchUp,
        clock: Clock,
        log: Log,
        rules_of: Callable[[StreamId], TopicRules | None] | None = None,
    ) -> None:
        """`rules_of` says what the configuration of a stream's topic demands, as far as it is known here."""
        self._index = index
        self._rules_of = rules_of or (lambda _: None)
        self._epochs: dict[StreamId, int] = {}
        self._tail = tail
        self._catch_up = catch_up
        self._clock = clock
        self._repeats = Repeats(clock, every_s=FAILURE_REPEATS_S)
        self._log = log
        self._wake_line = WakeLine()
        self.parked = 0
        """How many fetches wait now."""

    def forget(self) -> None:
        """Forget every record that memory holds: the log may have others at these offsets now."""
        self._epochs.clear()
        self._tail.drop_all()
        self._catch_up.drop_all()

    async def fetch(
        self,
        wanted: Sequence[Wanted],
        *,
        max_bytes: int,
        min_bytes: int,
        max_wait_ms: int,
        arrived_at: float,
        room: Room = ENDLESS_ROOM,
    ) -> list[Fetched]:
        """Return what each stream answers, in order, once there are `min_bytes` or the time is over.

        `arrived_at` is when the request came in, by the clock's monotonic time. An error ends the wait at once.
        What is returned was taken from `room`; while this fetch waits, nothing is.
        """
        found = await self._look(wanted, max_bytes, {}, room)
        # Also a fetch that does not want to wait must not be told "nothing there" by a cache.
        if found.is_enough(max(min_bytes, 1)):
            return found.fetched
        del found  # it would keep buffers from use while this fetch waits
        room.release()
        deadline = _deadline(arrived_at, max_wait_ms)
        return await self._validate_and_wait(wanted, max_bytes, min_bytes, deadline, room)

    async def _look(
        self, wanted: Sequence[Wanted], max_bytes: int, fresh: Mapping[StreamId, StreamHead | None], room: Room
    ) -> _Round:
        """Plan as much as there is room for, and read what is missing, unless there are doubts."""
        allowed_bytes = min(max_bytes, room.allowance_bytes)
        found = self._plan(wanted, allowed_bytes, fresh)
        if not room.take(found.expected_bytes):
            del found
            await room.turn()
            allowed_bytes = min(max_bytes, room.allowance_bytes)
            found = self._plan(wanted, allowed_bytes, fresh)
            room.take(found.expected_bytes)
        if found.misses and not found.doubts:
            await self._read(wanted, found)
            room.shrink(found.size_bytes)
        # More than there is room for cannot be waited for. Batches are whole: it may not be filled to the last byte.
        found.is_cut_short |= allowed_bytes < max_bytes and found.size_bytes * 2 >= allowed_bytes
        return found

    async def _validate_and_wait(
        self, wanted: Sequence[Wanted], max_bytes: int, min_bytes: int, deadline: float, room: Room
    ) -> list[Fetched]:
        await self._index.refresh()
        fresh: dict[StreamId, StreamHead | None] = {}
        with Waiter(self._index.view, {one.stream for one in wanted}, self._wake_line) as waiter:
            while True:
                waiter.begin()
                found = await self._look(wanted, max_bytes, fresh, room)
                if found.doubts:
                    room.release()
                    fresh.update(await self._fresh_heads(found.doubts))
                    continue
                seconds = deadline - self._clock.monotonic()
                if seconds <= 0 or found.is_enough(min_bytes):
                    return found.fetched
                missing_bytes = min_bytes - found.size_bytes
                del found
                room.release()
                await self._park(waiter, missing_bytes, seconds)

    async def _park(self, waiter: Waiter, wanted_bytes: int, seconds: float) -> None:
        self.parked += 1
        try:
            await waiter.wait(self._clock, wanted_bytes=wanted_bytes, seconds=seconds)
        finally:
            self.parked -= 1

    async def _fresh_heads(self, streams: set[StreamId]) -> dict[StreamId, StreamHead | None]:
        """Return heads as the store has them now."""
        ordered = sorted(streams)
        heads = await asyncio.gather(*(self._index.fresh_head(stream) for stream in ordered))
        return dict(zip(ordered, heads, strict=True))

    def _plan(self, wanted: Sequence[Wanted], max_bytes: int, fresh: Mapping[StreamId, StreamHead | None]) -> _Round:
        """Answer from memory what can be.

        `fresh` holds the heads, `None` for no stream, of which a no was validated; the view may know newer ones.
        """
        found = _Round()
        left = min(max_bytes, MAX_ANSWER_BYTES)
        whole_first = True
        view = self._index.view
        for index, one in enumerate(wanted):
            stream, offset = one.stream, one.offset
            is_fresh = stream in fresh
            head = view.head(stream) or fresh.get(stream)
            if head is None or head.is_deleted:
                if head is None and not is_fresh:
                    found.doubts.add(stream)
                found.fetched.append(_NO_STREAM)
                found.has_errors = True
            elif not head.log_start <= offset <= head.high_watermark:
                if not is_fresh:
                    found.doubts.add(stream)
                found.fetched.append(_OUT_OF_RANGE)
                found.has_errors = True
            else:
                limit = min(one.max_bytes, left)
                if offset == head.high_watermark or (limit <= 0 and not whole_first):
                    found.fetched.append(_answer(head, None))
                    continue
                if head.index_epoch and self._epochs.get(stream) != head.index_epoch:
                    self._look_after_memory(stream, head.index_epoch)
                cut = self._recall(stream, offset, limit, whole_first=whole_first)
                found.fetched.append(_answer(head, cut))
                if cut is None and len(found.misses) < MAX_READS:
                    limit = min(limit, MAX_READ_BYTES)
                    found.misses.append(_Miss(index, head, limit, whole_first))
                    left -= limit  # what it will bring is not known yet
                    whole_first = False
                elif cut is not None and cut.size_bytes:
                    found.size_bytes += cut.size_bytes
                    left -= cut.size_bytes
                    whole_first = False
        return found

    def _look_after_memory(self, stream: StreamId, index_epoch: int) -> None:
        """Forget what memory holds of a compacted stream whose index has changed: some may be gone from the log.

        Otherwise a broker would go on telling of deleted keys for as long as nothing pushes them out.
        """
        rules = self._rules_of(stream)
        if rules is None:
            return  # its topic is not known here yet
        if len(self._epochs) >= MAX_EPOCHS:
            self._epochs.clear()
        self._epochs[stream] = index_epoch
        if rules.is_compacted:
            self._tail.drop(stream)
            self._catch_up.drop(stream)

    def _recall(self, stream: StreamId, offset: int, max_bytes: int, *, whole_first: bool) -> Cut | None:
        """Return what memory holds from an offset on."""
        runs = self._tail.find(stream, offset, max_bytes)
        if runs:
            return cut_runs(runs, offset, max_bytes, whole_first=whole_first)
        return self._catch_up.take(stream, offset, max_bytes, whole_first=whole_first)

    async def _read(self, wanted: Sequence[Wanted], found: _Round) -> None:
        """Fill in what memory did not hold."""
        reads = [self._read_one(wanted[miss.index], miss) for miss in found.misses]
        answers = [await reads[0]] if len(reads) == 1 else await asyncio.gather(*reads)
        for miss, answer in zip(found.misses, answers, strict=True):
            found.put(miss.index, answer)
            found.is_cut_short |= 0 < answer.size_bytes < miss.max_bytes and answer.end_offset < answer.high_watermark
        if found.size_bytes == 0 and len(wanted) > 1:
            await self._read_any(wanted, found)

    async def _read_any(self, wanted: Sequence[Wanted], found: _Round) -> None:
        """Give one partition its turn after all those that room was kept for came to nothing.

        Else a partition that cannot be read would stand in the way of its neighbours for ever.
        """
        for index, one in enumerate(wanted):
            head = self._index.view.head(one.stream)
            if head is None or found.fetched[index].outcome is not Outcome.FOUND or one.offset >= head.high_watermark:
                continue
            limit = min(one.max_bytes, MAX_READ_BYTES)
            found.put(index, await self._read_one(one, _Miss(index, head, limit, whole_first=True)))
            if found.size_bytes:
                return

    async def _read_one(self, one: Wanted, miss: _Miss) -> Fetched:
        try:
            cut = await self._catch_up.read(one.stream, one.offset, miss.max_bytes, whole_first=miss.whole_first)
        except HeadraceError as error:
            if not isinstance(error, Damaged):  # that was logged when it was found, once
                self._note_failure(one, error)
            return Fetched(Outcome.FAILED, error=error)
        return _answer(miss.head, cut)

    def _note_failure(self, one: Wanted, error: HeadraceError) -> None:
        """Log it. A store that is away fails every fetch of every reader: one line now and then is enough."""
        is_corrupt = isinstance(error, Corrupt)
        if self._repeats.is_due((type(error), one.stream if is_corrupt else None)):
            tell = self._log.error if is_corrupt else self._log.warning
            values = {"stream": one.stream, "offset": one.offset, "error": str(error), "advice": advice(error)}
            tell("a fetch could not be read", **values)


def _answer(head: StreamHead, cut: Cut | None) -> Fetched:
    if cut is None:
        return Fetched(Outcome.FOUND, head.high_watermark, head.log_start)
    # The tail cache may know a commit a moment before the view does.
    high_watermark = max(head.high_watermark, cut.end_offset)
    return Fetched(Outcome.FOUND, high_watermark, head.log_start, cut.pieces, cut.size_bytes, cut.end_offset)


def _deadline(arrived_at: float, max_wait_ms: int) -> float:
    return arrived_at + min(max(max_wait_ms, 0), MAX_WAIT_MS) / 1000
