"""Memory that is used again, and budgets for how much of it may be taken.

The first touch of fresh memory costs several times a copy into warm memory, so large frames are received into buffers
that were used before. A lease hands out a plain `memoryview`. Views of views may travel anywhere: into a frame, a
cache, the queue of a slow reader's socket.

Must stay true: a buffer returns to its pool only when its last view has died. Nobody says when that is; the owner
object that every view keeps alive does, in its finaliser, which may run on any thread.
"""

import ctypes
import mmap
from collections import deque
from collections.abc import Callable
from functools import cache
from typing import Any

KIB = 1024
MIB = 1024 * KIB

SMALLEST_CLASS_BYTES = 64 * KIB
LARGEST_KEPT_BYTES = 16 * MIB
"""Buffers above this are rare, and keeping one would cost more than making a new one."""


class BufferPool:
    """Lends buffers, in sizes that are powers of two, and keeps those that came back up to `max_idle_bytes`."""

    def __init__(self, *, max_idle_bytes: int) -> None:
        self._max_idle_bytes = max_idle_bytes
        self._idle: dict[int, list[mmap.mmap]] = {}
        self._idle_bytes = 0
        self._leased_bytes = 0
        # Appending to a deque is the one step that a finaliser takes: it needs no lock on any thread.
        self._returned: deque[mmap.mmap] = deque()

    @property
    def idle_bytes(self) -> int:
        """How many bytes wait to be used again."""
        self.settle()
        return self._idle_bytes

    @property
    def leased_bytes(self) -> int:
        """How many bytes are lent out."""
        self.settle()
        return self._leased_bytes

    def lease(self, size_bytes: int) -> memoryview:
        """Return a writable view of `size_bytes`, with whatever bytes were there before. For the loop's thread."""
        self.settle()
        capacity_bytes = max(SMALLEST_CLASS_BYTES, 1 << (size_bytes - 1).bit_length())
        idle = self._idle.get(capacity_bytes)
        if idle:
            memory = idle.pop()
            self._idle_bytes -= capacity_bytes
        else:
            # Unlike a bytearray, it is not filled with zeros here: the first byte received into a page makes it.
            memory = mmap.mmap(-1, capacity_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        owner = _owner_type(capacity_bytes).from_buffer(memory)
        owner.give_back = self._returned.append
        owner.memory = memory
        self._leased_bytes += capacity_bytes
        return memoryview(owner).cast("B")[:size_bytes]

    def settle(self) -> None:
        """Take in what came back, and let go of what is too much to keep. For the loop's thread."""
        while self._returned:
            memory = self._returned.popleft()
            capacity_bytes = len(memory)
            self._leased_bytes -= capacity_bytes
            if capacity_bytes <= LARGEST_KEPT_BYTES and self._idle_bytes + capacity_bytes <= self._max_idle_bytes:
                self._idle.setdefault(capacity_bytes, []).append(memory)
                self._idle_bytes += capacity_bytes


@cache
def _owner_type(capacity_bytes: int) -> Any:
    """Return a type whose instances stand on a buffer of this size and give it back when they die.

    There is one per power of two. A ctypes array is the one thing in Python 3.11 that exports memory it does not own
    and can have a finaliser.
    """

    def __del__(self: Any) -> None:  # noqa: N807
        self.give_back(self.memory)

    base: Any = ctypes.c_char * capacity_bytes
    return type(f"Owner{capacity_bytes}", (base,), {"__slots__": ("give_back", "memory"), "__del__": __del__})


class ByteBudget:
    """Counts bytes that may be taken; who finds too few left waits in line and is called.

    First come, first served, so that a large demand is not overtaken for ever. A demand above the whole limit is
    granted when nothing else is taken: refusing it is the business of whoever knows what the bytes are for.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.taken_bytes = 0
        self._line: deque[tuple[int, Callable[[], None]]] = deque()

    @property
    def waiting_count(self) -> int:
        """How many wait in line."""
        return len(self._line)

    def take(self, size_bytes: int, granted: Callable[[], None]) -> bool:
        """Take bytes and return `True`; or stand in line: `granted` is called once they are taken."""
        if not self._line and self._fits(size_bytes):
            self.taken_bytes += size_bytes
            return True
        self._line.append((size_bytes, granted))
        return False

    def give_back(self, size_bytes: int) -> None:
        """Return bytes, and serve the line."""
        self.taken_bytes -= size_bytes
        assert self.taken_bytes >= 0, f"{-self.taken_bytes} bytes were returned that nobody took"
        self._serve()

    def leave_line(self, granted: Callable[[], None]) -> bool:
        """Step out of the line; say whether this one stood in it (else its bytes are taken already)."""
        for place, (_, waiting) in enumerate(self._line):
            if waiting == granted:
                del self._line[place]
                self._serve()
                return True
        return False

    def _fits(self, size_bytes: int) -> bool:
        return self.taken_bytes + size_bytes <= self.limit_bytes or self.taken_bytes == 0

    def _serve(self) -> None:
        while self._line and self._fits(self._line[0][0]):
            size_bytes, granted = self._line.popleft()
            self.taken_bytes += size_bytes
            granted()
