"""Which delete files keep a data file of `main` from being rewritten."""

from dataclasses import replace

import pytest
from pyiceberg.typedef import Record

from headrace.tables.iceberg.known_files import DeleteReach, KnownFile

DATA = KnownFile(
    location="data", is_delete=False, row_count=1, size_bytes=1, spec_id=2, partition=Record(7), sequence_number=5
)
DELETE = replace(DATA, location="delete", is_delete=True)


@pytest.mark.parametrize(
    ("changes", "applies"),
    [
        ({}, True),
        ({"sequence_number": 9}, True),
        ({"sequence_number": 4}, False),
        ({"partition": Record(8)}, False),
        ({"spec_id": 3}, False),
        ({"spec_id": 0, "partition": Record()}, True),
        ({"spec_id": 0, "partition": Record(), "sequence_number": 4}, False),
    ],
)
def test_a_delete_file_applies_by_partition_and_sequence_number(changes: dict[str, object], applies: bool) -> None:
    delete = replace(DELETE, **changes)  # type: ignore[arg-type]
    assert DeleteReach([DATA, delete], unpartitioned={0}).touches(DATA) is applies


def test_of_several_delete_files_the_newest_that_reaches_a_file_counts() -> None:
    old, elsewhere = replace(DELETE, sequence_number=3), replace(DELETE, partition=Record(8), sequence_number=9)
    assert not DeleteReach([old, elsewhere], unpartitioned=()).touches(DATA)
    everywhere = replace(DELETE, spec_id=0, partition=Record(), sequence_number=5)
    assert DeleteReach([everywhere, old, elsewhere], unpartitioned={0}).touches(DATA)
    assert not DeleteReach([DATA], unpartitioned={0}).touches(DATA), "data files delete nothing"
