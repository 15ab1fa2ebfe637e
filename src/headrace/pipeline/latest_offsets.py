"""A bounded map from keys to the latest offset of each, built and asked with vector operations only.

It keeps the keys themselves and not digests of them: Arrow groups a million keys in a fraction of the time that
hashing them one by one takes, and no two keys can ever be taken for one.

Must stay true: what does not fit is not taken, not even in part, so that whoever fills the map knows where it ends.
The map, and what its last step needs beside it, stays within a small multiple of `max_bytes`.
"""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

ENTRY_BYTES = 24
"""What a key costs beside its bytes: its offset, where it begins, and its place in a hash table."""

MIN_PENDING_ROWS = 65_536
"""So many rows are collected at least before they are brought together."""


class LatestOffsets:
    """Takes keys with their offsets, which ascend, and tells the latest of each key."""

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._keys = pa.array([], pa.binary())
        self._offsets = pa.array([], pa.int64())
        self._size_bytes = 0
        self._pending: list[Any] = []
        self._pending_rows = 0
        self._pending_bytes = 0

    @property
    def key_count(self) -> int:
        """How many keys there are."""
        self._settle()
        return len(self._keys)

    @property
    def size_bytes(self) -> int:
        """How much the keys take."""
        self._settle()
        return self._size_bytes

    def add(self, keys: Any, offsets: Any) -> bool:
        """Take some rows, none of them without a key; say whether there was room. The first ones are always taken."""
        new_bytes = _bytes_of(keys)
        if self._size_bytes + self._pending_bytes + new_bytes > self._max_bytes:
            self._settle()
            new_bytes = _bytes_of(pc.unique(keys.filter(pc.invert(pc.is_in(keys, value_set=self._keys)))))
            if len(self._keys) and self._size_bytes + new_bytes > self._max_bytes:
                return False
        self._pending.append(pa.record_batch([keys, offsets], names=["key", "offset"]))
        self._pending_rows += len(keys)
        self._pending_bytes += new_bytes
        if self._pending_rows > max(MIN_PENDING_ROWS, len(self._keys)):
            self._settle()
        return True

    def latest(self, keys: Any) -> Any:
        """Return the latest offset of each key, null for those that are not in the map and for null."""
        self._settle()
        return self._offsets.take(pc.index_in(keys, value_set=self._keys))

    def offsets(self) -> Any:
        """Return the latest offsets of all keys, in no order."""
        self._settle()
        return self._offsets

    def _settle(self) -> None:
        """Bring what was taken into the map, each key once."""
        if not self._pending:
            return
        known = pa.record_batch([self._keys, self._offsets], names=["key", "offset"])
        table = pa.Table.from_batches([known, *self._pending])
        self._pending, self._pending_rows, self._pending_bytes = [], 0, 0
        grouped = table.group_by("key", use_threads=False).aggregate([("offset", "max")]).combine_chunks()
        self._keys = _one_array(grouped.column("key"))
        self._offsets = _one_array(grouped.column("offset_max"))
        self._size_bytes = _bytes_of(self._keys)


def _bytes_of(keys: Any) -> int:
    return int(pc.sum(pc.binary_length(keys)).as_py() or 0) + ENTRY_BYTES * len(keys)


def _one_array(column: Any) -> Any:
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
