"""A row group comes back from its own bytes and the footer's, or not at all."""

import msgspec
import pytest
from crc32c import crc32c

from headrace.errors import Corrupt
from headrace.model.extents import RowGroup, TableFile
from headrace.model.ids import ObjectKey
from headrace.objects.memory import MemoryObjects
from headrace.objects.port import ObjectStore
from headrace.pipeline.writing import write_file
from headrace.records.record import Record, records_of
from headrace.tables.parquet_reading import Footer, parse_footer, read_row_group
from headrace.testing.batches import make_batch
from headrace.testing.clock import ManualClock
from tests.table_kit import footer_range, group_range, put_piece, table_file, task_of


class Kit:
    """A file with three row groups, taken apart."""

    file: TableFile
    footer: bytes
    groups: list[bytes]

    def group(self, number: int) -> RowGroup:
        return self.file.row_groups[number]

    def opened(self) -> Footer:
        return parse_footer(self.file, self.footer)

    def read(self, number: int, start_offset: int, end_offset: int) -> list[Record]:
        columns = read_row_group(
            self.file,
            self.group(number),
            self.opened(),
            self.groups[number],
            start_offset=start_offset,
            end_offset=end_offset,
        )
        assert (columns.start_offset, columns.end_offset) == (start_offset, end_offset)
        return list(records_of(columns))


@pytest.fixture
async def kit() -> Kit:
    objects: ObjectStore = MemoryObjects(ManualClock())
    batches = [make_batch([b"%d" % (10 * n + m) for m in range(10)], at_ms=1000) for n in range(12)]
    piece = await put_piece(objects, batches, start_offset=100)
    written = await write_file(task_of([piece], row_group_bytes=2500), objects, attempt="0")
    made = Kit()
    made.file = table_file(written, written.slices[0])
    assert len(made.file.row_groups) == 3
    wanted = [footer_range(made.file), *(group_range(group) for group in made.file.row_groups)]
    made.footer, *made.groups = [bytes(data) for data in await objects.get_ranges(ObjectKey(written.path), wanted)]
    return made


def test_groups_come_back_in_any_order(kit: Kit) -> None:
    for number in (2, 0, 1):
        group = kit.group(number)
        end_offset = group.first_offset + group.row_count
        found = kit.read(number, group.first_offset, end_offset)
        assert [record.offset for record in found] == list(range(group.first_offset, end_offset))
        assert [record.value for record in found] == [b"%d" % (record.offset - 100) for record in found]


def test_rows_outside_of_the_range_are_left_out(kit: Kit) -> None:
    assert [record.offset for record in kit.read(0, 105, 108)] == [105, 106, 107]
    assert kit.read(0, 300, 310) == []


@pytest.mark.parametrize("number", [0, 2])
def test_any_flipped_byte_of_a_group_is_found(kit: Kit, number: int) -> None:
    footer, group = kit.opened(), kit.group(number)
    for at_byte in range(group.size_bytes):
        damaged = bytearray(kit.groups[number])
        damaged[at_byte] ^= 1 << at_byte % 8
        with pytest.raises(Corrupt, match=rf"row group {number} at byte {group.start_byte}"):
            read_row_group(kit.file, group, footer, damaged, start_offset=0, end_offset=1000)


def test_any_flipped_byte_of_a_footer_is_found(kit: Kit) -> None:
    for at_byte in range(len(kit.footer)):
        damaged = bytearray(kit.footer)
        damaged[at_byte] ^= 1 << at_byte % 8
        with pytest.raises(Corrupt, match="footer has CRC-32C"):
            parse_footer(kit.file, damaged)


def test_too_few_and_too_many_bytes_are_refused(kit: Kit) -> None:
    for data in (b"", kit.footer[1:], kit.footer + b"x"):
        with pytest.raises(Corrupt, match="bytes of footer came instead of"):
            parse_footer(kit.file, data)
    for data in (b"", kit.groups[0][:-1], kit.groups[0] + b"x"):
        with pytest.raises(Corrupt, match="bytes came instead of"):
            read_row_group(kit.file, kit.group(0), kit.opened(), data, start_offset=0, end_offset=1000)


def test_an_index_that_names_the_wrong_group_is_found_out(kit: Kit) -> None:
    beyond = msgspec.structs.replace(kit.group(0), number=3)
    with pytest.raises(Corrupt, match="the file has 3 row groups"):
        read_row_group(kit.file, beyond, kit.opened(), kit.groups[0], start_offset=0, end_offset=1000)
    miscounted = msgspec.structs.replace(kit.group(0), row_count=1)
    with pytest.raises(Corrupt, match="the index says 1"):
        read_row_group(kit.file, miscounted, kit.opened(), kit.groups[0], start_offset=0, end_offset=1000)
    # The right bytes under the number of another group: its pages lie outside of them.
    other = msgspec.structs.replace(kit.group(0), number=1, row_count=kit.group(1).row_count)
    with pytest.raises(Corrupt, match="outside of the row group"):
        read_row_group(kit.file, other, kit.opened(), kit.groups[0], start_offset=0, end_offset=1000)


def test_a_footer_that_is_none_is_refused_although_its_checksum_is_right(kit: Kit) -> None:
    rubbish = b"no footer at all" * 4
    file = msgspec.structs.replace(kit.file, footer_bytes=len(rubbish), footer_crc=crc32c(rubbish))
    with pytest.raises(Corrupt, match="cannot be read"):
        parse_footer(file, rubbish)
