"""What a table entry consists of: windows, each of them one row group's part of the entry's offsets.

Must stay true: the windows of an entry lie end to end and cover all of it. Holes belong to the window before them, a
hole at the very beginning to the first one; an entry without rows is one window that names no row group. So whoever
reads window after window always moves on, whatever compaction, markers and aborted transactions have left out.
"""

import msgspec

from headrace.index.values import IndexEntry
from headrace.model.extents import RowGroup, TableExtent, TableFile


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """Offsets that one row group answers for; without a file and a group it is all hole."""

    start_offset: int
    end_offset: int
    file: TableFile | None = None
    group: RowGroup | None = None

    @property
    def size_bytes(self) -> int:
        """How many bytes of the object store it takes."""
        return 0 if self.group is None else self.group.size_bytes

    @property
    def max_timestamp_ms(self) -> int | None:
        """The time that none of its records is later than; `None` if it has no records.

        It may be that of a row outside of the window, where the entry covers only a part of the group.
        """
        return None if self.group is None else self.group.max_timestamp_ms


def windows_of(entry: IndexEntry, extent: TableExtent, *, start_offset: int = 0) -> list[Window]:
    """Return the windows of a table entry, from the one that covers `start_offset` on."""
    named = [(file, group) for file in extent.files for group in file.row_groups]
    windows: list[Window] = []
    next_offset = entry.start_offset
    for number, (file, group) in enumerate(named, start=1):
        # An entry that covers a part of its file may name groups of which it has nothing.
        end_offset = (
            entry.end_offset if number == len(named) else min(named[number][1].first_offset, entry.end_offset)
        )
        if end_offset > next_offset:
            windows.append(Window(start_offset=next_offset, end_offset=end_offset, file=file, group=group))
            next_offset = end_offset
    if not windows:
        windows.append(Window(start_offset=entry.start_offset, end_offset=entry.end_offset))
    return [window for window in windows if window.end_offset > start_offset]
