"""Find the record batches in windows on the WAL, check them, and give them the offsets that their commit gave them.

Must stay true: a batch comes out only if its bytes are those that were committed, at the offsets that the index says.
"""

from collections.abc import Iterator
from struct import Struct

from headrace.errors import Corrupt
from headrace.index.objects import wal_object_key
from headrace.model.ids import DomainId
from headrace.pipeline.wal_windows import Window
from headrace.records.batch import HEADER_BYTES, LENGTH_END, BatchView
from headrace.records.problems import InvalidBatch

_LENGTH = Struct(">8xi")


class BatchSplitter:
    """Goes through the windows of contiguous pieces.

    A batch that reaches over the end of a window is put together from its parts; nothing else is copied.
    """

    def __init__(self, domain: DomainId, start_offset: int) -> None:
        self._domain = domain
        self.next_offset = start_offset
        self._partial = bytearray()

    def split(self, window: Window) -> Iterator[tuple[int, BatchView]]:
        """Yield each batch with the byte of its object at which it begins; raise `Corrupt` at damage."""
        extent = window.piece.extent
        extent_end_byte = extent.start_byte + extent.size_bytes
        if window.start_byte == extent.start_byte:
            assert self.next_offset == window.piece.start_offset, "the piece before was read to its end"
        data, position = window.data, 0
        while position < len(data):
            at_byte = window.start_byte + position - len(self._partial)
            size_bytes = self._size_of_next(data[position : position + LENGTH_END])
            if size_bytes is not None and not HEADER_BYTES <= size_bytes <= extent_end_byte - at_byte:
                raise self._damage(window, at_byte, f"a batch says it has {size_bytes} bytes")
            wanted_bytes = (LENGTH_END if size_bytes is None else size_bytes) - len(self._partial)
            rest_bytes = len(data) - position
            if self._partial or size_bytes is None or wanted_bytes > rest_bytes:
                taken_bytes = min(wanted_bytes, rest_bytes)
                self._partial += data[position : position + taken_bytes]
                position += taken_bytes
                if size_bytes is None or taken_bytes < wanted_bytes:
                    continue
                whole, self._partial = memoryview(self._partial).toreadonly(), bytearray()
                yield at_byte, self._placed(window, at_byte, whole, 0)
            else:
                yield at_byte, self._placed(window, at_byte, data, position)
                position += wanted_bytes
        if window.is_last and (self._partial or self.next_offset != window.piece.end_offset):
            raise self._damage(
                window,
                extent.start_byte,
                f"its {extent.size_bytes} bytes hold the offsets {window.piece.start_offset} to {self.next_offset}, "
                f"the index says up to {window.piece.end_offset}",
            )

    def _size_of_next(self, data: memoryview) -> int | None:
        """Return what the next batch says of its size, or `None` while too little of it is there."""
        head = self._partial[:LENGTH_END] + data if self._partial else data
        return None if len(head) < LENGTH_END else int(_LENGTH.unpack_from(head)[0]) + LENGTH_END

    def _placed(self, window: Window, at_byte: int, data: memoryview, position: int) -> BatchView:
        """Return the batch with the offset that the commit gave it."""
        try:
            batch = BatchView(data, position)
            batch.check_crc()
        except InvalidBatch as error:
            raise self._damage(window, at_byte, str(error)) from error
        batch.base_offset = self.next_offset
        self.next_offset += batch.last_offset_delta + 1
        if not batch.base_offset < self.next_offset <= window.piece.end_offset:
            raise self._damage(window, at_byte, f"a batch's offsets end at {self.next_offset}")
        return batch

    def _damage(self, window: Window, at_byte: int, what: str) -> Corrupt:
        key = wal_object_key(self._domain, window.piece.extent.object_id)
        return Corrupt(f"object {key} is damaged at byte {at_byte}: {what}")
