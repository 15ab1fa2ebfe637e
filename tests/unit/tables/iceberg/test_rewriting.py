"""Which delete files keep a data file of `main` from being rewritten."""

from dataclasses import replace

import pytest
from pyiceberg.typedef import Record

from headrace.tables.iceberg.known_files import KnownFile
from headrace.tables.iceberg.rewriting import applies_to

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
    assert applies_to(delete, DATA, unpartitioned={0}) is applies
