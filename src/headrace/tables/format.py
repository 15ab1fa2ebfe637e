"""How a table wants its files: field ids and partitioning, as the catalog numbered them.

Must stay true: ids are never constants of ours; a catalog numbers a schema anew when it creates the table.
"""

from enum import StrEnum

import msgspec

from headrace.tables.typed.model import FieldType

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


class Bucket(StrEnum):
    """How a table's files are kept apart by append time."""

    NONE = "none"
    DAY = "day"
    HOUR = "hour"

    def of(self, append_time_ms: int) -> int | None:
        """Return the partition value of an append time: days or hours since 1970, or `None`."""
        if self is Bucket.NONE:
            return None
        return append_time_ms // (DAY_MS if self is Bucket.DAY else HOUR_MS)


class Partitioning(msgspec.Struct, frozen=True):
    """What a file has one value of. `headrace.table.partition.by` says it for a topic."""

    bucket: Bucket = Bucket.DAY
    by_partition: bool = False


class TableFormat(msgspec.Struct, frozen=True):
    """What a task must know to write a file of one table.

    `field_ids` has every column and every nested field by its full Iceberg name: `offset`, `headers`,
    `headers.element`, `headers.element.key`… `data` is the struct of its typed columns, or `None`
    where it has none.
    """

    field_ids: dict[str, int]
    schema_id: int
    spec_id: int
    partitioning: Partitioning
    data: FieldType | None = None


class DeadLetterFormat(msgspec.Struct, frozen=True):
    """What a task must know to write a file of one dead-letter table; its key begins with `data_prefix`."""

    field_ids: dict[str, int]
    spec_id: int
    data_prefix: str
