"""Try again: the one place where calls to an object store are repeated, with limits that have names.

Must stay true: once any try of a write had an unknown outcome, giving up is `OutcomeUnknown` too, whatever the last
try said; and "it exists" is believed only after a look at whether our own earlier try has put it there.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from headrace.errors import Exists, HeadraceError, OutcomeUnknown, Retryable, Throttled
from headrace.model.ids import ObjectKey
from headrace.objects.port import Buffer, ByteRange, ObjectInfo, ObjectStore, SegmentStore, Upload
from headrace.runtime.clock import Clock
from headrace.runtime.rng import Rng

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often, how fast and how long one call is repeated."""

    attempts: int = 8
    """Tries altogether, the first one included."""
    initial_backoff_ms: int = 50
    """The wait before the second try; it doubles from try to try and varies by up to a half."""
    throttled_backoff_ms: int = 500
    """The wait before the second try where the store asked for fewer calls."""
    max_backoff_ms: int = 5_000
    """The longest wait between two tries."""
    deadline_ms: int = 60_000
    """No try begins later than this after the first one began."""


class RetryingObjects:
    """An object store that repeats what may be repeated. Segments pass through: an append is never repeated."""

    def __init__(self, inner: ObjectStore, *, clock: Clock, rng: Rng, policy: RetryPolicy | None = None) -> None:
        self._inner = inner
        self._clock = clock
        self._rng = rng
        self._policy = policy or RetryPolicy()

    @property
    def segments(self) -> SegmentStore | None:
        return self._inner.segments

    async def put(self, key: ObjectKey, data: Sequence[Buffer]) -> None:
        await self._repeat(lambda: self._inner.put(key, data))

    async def put_if_absent(self, key: ObjectKey, data: Sequence[Buffer]) -> None:
        tries = self._tries()
        while True:
            try:
                return await self._inner.put_if_absent(key, data)
            except Exists:
                # Also a try that was refused counts as ours: a proxy may say "busy" for a store that said yes.
                if tries.failed == 0 or not await self._holds(key, data):
                    raise
                return None
            except HeadraceError as error:
                await tries.wait_or_give_up(error)

    async def get(self, key: ObjectKey) -> Buffer:
        return await self._repeat(lambda: self._inner.get(key))

    async def get_ranges(self, key: ObjectKey, ranges: Sequence[ByteRange]) -> list[Buffer]:
        return await self._repeat(lambda: self._inner.get_ranges(key, ranges))

    async def head(self, key: ObjectKey) -> ObjectInfo:
        return await self._repeat(lambda: self._inner.head(key))

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        tries = self._tries()
        while True:
            try:
                async for found in self._inner.list(prefix, start_after=start_after):
                    yield found
                    # The next try goes on from here, with all its tries before it again.
                    start_after = found.key
                    tries = self._tries()
                return
            except Retryable as error:
                await tries.wait_or_give_up(error)

    async def delete(self, keys: Iterable[ObjectKey]) -> None:
        named = [*keys]
        await self._repeat(lambda: self._inner.delete(named))

    async def upload(self, key: ObjectKey, *, if_absent: bool = False) -> Upload:
        """Begin an upload. Its pieces are gone once they are sent, so a failed one is the caller's to repeat."""
        return await self._repeat(lambda: self._inner.upload(key, if_absent=if_absent))

    async def close(self) -> None:
        await self._inner.close()

    def _tries(self) -> "_Tries":
        return _Tries(self._policy, self._clock, self._rng)

    async def _repeat(self, call: Callable[[], Awaitable[T]]) -> T:
        tries = self._tries()
        while True:
            try:
                return await call()
            except HeadraceError as error:
                await tries.wait_or_give_up(error)

    async def _holds(self, key: ObjectKey, data: Sequence[Buffer]) -> bool:
        """Tell whether the object consists of exactly these bytes."""
        views = [memoryview(buffer).cast("B") for buffer in data]
        try:
            if (await self.head(key)).size_bytes != sum(view.nbytes for view in views):
                return False
            found = memoryview(await self.get(key))
        except HeadraceError as error:
            raise OutcomeUnknown(f"object {key} exists, but whether it is ours cannot be read: {error}") from error
        position = 0
        for view in views:
            if found[position : position + view.nbytes] != view:
                return False
            position += view.nbytes
        return position == found.nbytes


class _Tries:
    """Counts the failed tries of one call and decides whether there is another."""

    def __init__(self, policy: RetryPolicy, clock: Clock, rng: Rng) -> None:
        self.failed = 0
        self._policy = policy
        self._clock = clock
        self._rng = rng
        self._deadline = clock.monotonic() + policy.deadline_ms / 1000
        self._in_doubt = False

    async def wait_or_give_up(self, error: HeadraceError) -> None:
        """Wait before the next try; where there is none, raise what the tries together mean.

        What another try cannot mend ends them at once: the credentials may have run out since the first one.
        """
        self.failed += 1
        self._in_doubt = self._in_doubt or isinstance(error, OutcomeUnknown)
        is_over = not isinstance(error, Retryable | OutcomeUnknown) or self.failed >= self._policy.attempts
        backoff = 0 if is_over else self._backoff_ms(throttled=isinstance(error, Throttled)) / 1000
        if is_over or self._clock.monotonic() + backoff > self._deadline:
            if self._in_doubt and not isinstance(error, OutcomeUnknown):
                raise OutcomeUnknown(f"given up after {self.failed} tries, one without an answer: {error}") from error
            raise error
        await self._clock.sleep(backoff)

    def _backoff_ms(self, *, throttled: bool) -> float:
        first_ms = self._policy.throttled_backoff_ms if throttled else self._policy.initial_backoff_ms
        longest_ms = min(first_ms << (self.failed - 1), self._policy.max_backoff_ms)
        return longest_ms * self._rng.uniform(0.5, 1.0)
