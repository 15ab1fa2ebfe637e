"""The object store port: the only way to bytes at rest.

Must stay true, for every backend:
- When a write returns, the bytes are durable and any process that reads the key sees all of them.
- A reader never sees half an object: an object appears whole, at once, or not at all.
  (A segment is the one exception, and only its appender's committed prefix is ever read.)
- `Retryable` means that nothing was stored; `OutcomeUnknown` means that it may have been.
- A key is a relative path of segments `[A-Za-z0-9._=-]`, at most 900 bytes, without `.` or `..`: no string
  from a client becomes a key.

Buffers are written as they are handed over, without joining them. The bytes that come back are read only.
"""

import re
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from headrace.errors import Invalid
from headrace.model.ids import ObjectKey

Buffer: TypeAlias = bytes | bytearray | memoryview

MAX_KEY_BYTES = 900
_KEY = re.compile(r"[A-Za-z0-9._=-]+(/[A-Za-z0-9._=-]+)*")


def object_key(text: str) -> ObjectKey:
    """Return `text` as a key, or raise `Invalid`."""
    if len(text) > MAX_KEY_BYTES or not _KEY.fullmatch(text) or any(p in (".", "..") for p in text.split("/")):
        raise Invalid(f"not an object key: {text[:80]!r}; use plain segments of [A-Za-z0-9._=-] joined by '/'")
    return ObjectKey(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteRange:
    """`size_bytes` bytes from `start_byte` on."""

    start_byte: int
    size_bytes: int

    @property
    def end_byte(self) -> int:
        return self.start_byte + self.size_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """What a store knows of an object without reading it."""

    key: ObjectKey
    size_bytes: int
    modified_at_ms: int


class Upload(Protocol):
    """An object that is written in pieces and appears whole, at `complete`, or never."""

    async def write(self, data: Buffer) -> None:
        """Add bytes at the end; may wait, so that a fast caller does not fill memory."""
        ...

    async def complete(self) -> None:
        """Make the object appear, durably. Raises `OutcomeUnknown` where it may have appeared.

        Raises `Exists` where another one is there and this one must not replace it.
        """
        ...

    async def abort(self) -> None:
        """Give the pieces back; nothing appears. Safe to call at any time before `complete`."""
        ...


class Segment(Protocol):
    """A file that one process appends to. Its bytes are written at most once.

    After any error the segment is done for: the caller seals it and begins another, because what
    lies behind the last successful append is unknown.
    """

    @property
    def key(self) -> ObjectKey: ...

    @property
    def size_bytes(self) -> int:
        """Where the next append would begin."""
        ...

    async def append(self, data: Sequence[Buffer]) -> int:
        """Write the buffers back to back, make them durable, return the first one's byte position.

        Raises `Retryable` where the append certainly did not happen (disk full), `OutcomeUnknown` otherwise; in
        both cases the segment takes no further append.
        """
        ...

    async def seal(self) -> None:
        """End the segment: no more appends, what was prepared ahead is given back. Idempotent."""
        ...


class SegmentStore(Protocol):
    """The appending capability: local disk and memory have it, remote object stores do not."""

    async def create_segment(self, key: ObjectKey, *, capacity_bytes: int) -> Segment:
        """Create an empty segment, durably (its directory entry too). Raises `Exists` if the key is taken."""
        ...

    async def seal_segment(self, key: ObjectKey, *, size_bytes: int) -> None:
        """Seal a dead writer's segment to its first `size_bytes` bytes, so that prepared space is given back.

        Idempotent. Nothing below `size_bytes` changes. A segment that is not there raises `Missing`.
        """
        ...


class ObjectStore(Protocol):
    """put, put-if-absent, get, ranges, head, list, delete, multipart."""

    @property
    def segments(self) -> SegmentStore | None:
        """The appending capability, or `None` where every flush must be an object of its own."""
        ...

    async def put(self, key: ObjectKey, data: Sequence[Buffer]) -> None:
        """Write an object, over an older one if there is one."""
        ...

    async def put_if_absent(self, key: ObjectKey, data: Sequence[Buffer]) -> None:
        """Write an object that must not exist yet. Raises `Exists` if another one is there.

        An object that our own earlier try left there, byte for byte, counts as this call's success.
        """
        ...

    async def get(self, key: ObjectKey) -> Buffer:
        """Return all bytes. Raises `Missing`."""
        ...

    async def get_ranges(self, key: ObjectKey, ranges: Sequence[ByteRange]) -> list[Buffer]:
        """Return the bytes of each range, in order. Raises `Missing`; `Corrupt` if the object is too short."""
        ...

    async def head(self, key: ObjectKey) -> ObjectInfo:
        """Return size and age. Raises `Missing`."""
        ...

    def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        """Go through the objects whose key begins with `prefix` and is greater than `start_after`, in key order."""
        ...

    async def delete(self, keys: Iterable[ObjectKey]) -> None:
        """Delete objects; those that are not there already count as deleted."""
        ...

    async def upload(self, key: ObjectKey, *, if_absent: bool = False) -> Upload:
        """Begin an object that is too large to hold in memory. It replaces an older one at `complete`.

        With `if_absent` an older one stays: `write` or `complete` raises `Exists`. Of two uploads to one key that
        go on at the same time a remote store may let the second replace the first, because a large object is put
        there in parts and S3 looks at the key only before the first; so whoever needs more than a guard against
        mistakes gives every attempt a key of its own.
        """
        ...

    async def close(self) -> None:
        """Free what the store holds open."""
        ...
