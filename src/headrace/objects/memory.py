"""Objects in memory: for tests and for the simulation, without threads, real time or durability.

One store is shared by all simulated processes, so what a dead one has stored is still there. Nothing in here waits,
so every call is atomic; wrappers add delays and faults. Where backends may differ, this one takes the awkward side:
an open segment shows zeros behind its size, as a prepared file does, and a segment that somebody else has sealed
or deleted still takes its old owner's appends, as an open file does.
"""

import bisect
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass

from headrace.errors import Corrupt, Exists, Invalid, Missing
from headrace.model.ids import ObjectKey
from headrace.objects.port import Buffer, ByteRange, ObjectInfo, object_key
from headrace.runtime.clock import Clock

# How many zero bytes lie behind an open segment.
PREPARED_BYTES = 512


@dataclass(slots=True)
class _Stored:
    data: bytes | bytearray
    modified_at_ms: int


class MemoryObjects:
    """An object store and its segments in a dictionary."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._stored: dict[ObjectKey, _Stored] = {}

    @property
    def segments(self) -> "MemoryObjects":
        return self

    async def put(self, key: ObjectKey, data: Sequence[Buffer]) -> None:
        self._stored[object_key(key)] = self._new(b"".join(data))

    async def put_if_absent(self, key: ObjectKey, data: Sequence[Buffer]) -> None:
        self._require_absent(key)
        await self.put(key, data)

    async def get(self, key: ObjectKey) -> Buffer:
        return bytes(self._find(key).data)

    async def get_ranges(self, key: ObjectKey, ranges: Sequence[ByteRange]) -> list[Buffer]:
        data = self._find(key).data
        for wanted in ranges:
            if wanted.end_byte > len(data):
                raise Corrupt(f"object {key} has {len(data)} bytes, but {wanted} was asked for")
        return [bytes(memoryview(data)[wanted.start_byte : wanted.end_byte]) for wanted in ranges]

    async def head(self, key: ObjectKey) -> ObjectInfo:
        return self._info(key, self._find(key))

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        keys = sorted(self._stored)
        first = max(bisect.bisect_left(keys, prefix), bisect.bisect_right(keys, start_after))
        for key in keys[first:]:
            if not key.startswith(prefix):
                return
            # It may have been deleted since the listing began.
            stored = self._stored.get(key)
            if stored is not None:
                yield self._info(key, stored)

    async def delete(self, keys: Iterable[ObjectKey]) -> None:
        for key in keys:
            self._stored.pop(object_key(key), None)

    async def upload(self, key: ObjectKey, *, if_absent: bool = False) -> "MemoryUpload":
        return MemoryUpload(self, object_key(key), if_absent=if_absent)

    async def create_segment(self, key: ObjectKey, *, capacity_bytes: int) -> "MemorySegment":
        self._require_absent(key)
        stored = self._new(bytearray(min(PREPARED_BYTES, capacity_bytes)))
        self._stored[object_key(key)] = stored
        return MemorySegment(key, stored, self._clock)

    async def seal_segment(self, key: ObjectKey, *, size_bytes: int) -> None:
        stored = self._find(key)
        if len(stored.data) < size_bytes:
            raise Corrupt(f"segment {key} has {len(stored.data)} bytes, but {size_bytes} are said to be committed")
        stored.data = stored.data[:size_bytes]

    async def close(self) -> None:
        """Do nothing: the contents outlive every process that uses them."""

    def _new(self, data: bytes | bytearray) -> _Stored:
        return _Stored(data, self._clock.now_ms())

    def _find(self, key: ObjectKey) -> _Stored:
        stored = self._stored.get(object_key(key))
        if stored is None:
            raise Missing(f"object {key} is not there")
        return stored

    def _require_absent(self, key: ObjectKey) -> None:
        if object_key(key) in self._stored:
            raise Exists(f"object {key} is there already")

    def _info(self, key: ObjectKey, stored: _Stored) -> ObjectInfo:
        return ObjectInfo(key=key, size_bytes=len(stored.data), modified_at_ms=stored.modified_at_ms)


class MemoryUpload:
    """Pieces that become an object at `complete`."""

    def __init__(self, store: MemoryObjects, key: ObjectKey, *, if_absent: bool) -> None:
        self._store = store
        self._if_absent = if_absent
        self._key = key
        self._pieces: list[bytes] = []
        self._open = True

    async def write(self, data: Buffer) -> None:
        self._require_open()
        self._pieces.append(bytes(data))

    async def complete(self) -> None:
        self._require_open()
        self._open = False
        put = self._store.put_if_absent if self._if_absent else self._store.put
        await put(self._key, self._pieces)

    async def abort(self) -> None:
        self._open = False
        self._pieces.clear()

    def _require_open(self) -> None:
        if not self._open:
            raise Invalid(f"the upload of {self._key} is over: begin another")


class MemorySegment:
    """One process's handle on a segment; the bytes belong to the store."""

    def __init__(self, key: ObjectKey, stored: _Stored, clock: Clock) -> None:
        self._key = key
        self._stored = stored
        self._clock = clock
        self._size_bytes = 0
        self._sealed = False

    @property
    def key(self) -> ObjectKey:
        return self._key

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    async def append(self, data: Sequence[Buffer]) -> int:
        if self._sealed:
            raise Invalid(f"segment {self._key} takes no more appends: seal it and begin another")
        position = self._size_bytes
        added = b"".join(data)
        end_byte = position + len(added)
        file = self._stored.data
        assert isinstance(file, bytearray), "a segment's bytes can grow"
        # Another process may have cut the file below our size; a file system fills such a hole with zeros.
        file.extend(bytes(max(0, end_byte + PREPARED_BYTES - len(file))))
        file[position:end_byte] = added
        self._stored.modified_at_ms = self._clock.now_ms()
        self._size_bytes = end_byte
        return position

    async def seal(self) -> None:
        if not self._sealed:
            self._sealed = True
            self._stored.data = self._stored.data[: self._size_bytes]
