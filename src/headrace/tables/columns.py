"""The columns of a topic's table: their names, their kinds, and which of them may be null. One row is one record.

    partition, offset                       where the record stands in the log
    timestamp, timestamp_type               the record's time, and whose it is: 0 the producer's, 1 the broker's
    append_time                             when the broker took it: constant for a frame
    key, value, headers                     the record itself; headers are a list, so order and duplicates stay
    producer_id, producer_epoch, sequence   who sent it, −1 where nobody says
    attributes                              its batch's attributes, codec bits included
    raw                                     null, or what the other columns could not hold (`rows.py`)
    data                                    the value's fields, where the topic has a schema (`typed/`)

Must stay true: names stand here only. Field ids do not: a catalog numbers them, a `TableFormat` brings them along.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import pyarrow as pa

from headrace.errors import Invalid
from headrace.tables.format import TableFormat
from headrace.tables.typed.arrow import FIELD_ID, data_field

PARTITION: Final = "partition"
OFFSET: Final = "offset"
TIMESTAMP: Final = "timestamp"
APPEND_TIME: Final = "append_time"
TIMESTAMP_TYPE: Final = "timestamp_type"
KEY: Final = "key"
VALUE: Final = "value"
HEADERS: Final = "headers"
HEADER: Final = "headers.element"
HEADER_KEY: Final = "headers.element.key"
HEADER_VALUE: Final = "headers.element.value"
PRODUCER_ID: Final = "producer_id"
PRODUCER_EPOCH: Final = "producer_epoch"
SEQUENCE: Final = "sequence"
ATTRIBUTES: Final = "attributes"
RAW: Final = "raw"


class Kind(StrEnum):
    """What a column holds, in Iceberg's words."""

    INT = "int"
    LONG = "long"
    TIMESTAMPTZ = "timestamptz"
    STRING = "string"
    BINARY = "binary"
    STRUCT = "struct"
    LIST = "list"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column, or a field inside of one; `name` is its full Iceberg name."""

    name: str
    kind: Kind
    required: bool = True
    doc: str = ""


COLUMNS: Final[tuple[Column, ...]] = (
    Column(name=PARTITION, kind=Kind.INT, doc="partition of the topic"),
    Column(name=OFFSET, kind=Kind.LONG, doc="offset in the partition"),
    Column(name=TIMESTAMP, kind=Kind.TIMESTAMPTZ, doc="the record's time"),
    Column(name=APPEND_TIME, kind=Kind.TIMESTAMPTZ, doc="when the broker took the record"),
    Column(name=TIMESTAMP_TYPE, kind=Kind.INT, doc="0: timestamp is the producer's, 1: the broker's"),
    Column(name=KEY, kind=Kind.BINARY, required=False),
    Column(name=VALUE, kind=Kind.BINARY, required=False),
    Column(name=HEADERS, kind=Kind.LIST, doc="in the producer's order, duplicates included"),
    Column(name=HEADER, kind=Kind.STRUCT),
    Column(name=HEADER_KEY, kind=Kind.STRING),
    Column(name=HEADER_VALUE, kind=Kind.BINARY, required=False),
    Column(name=PRODUCER_ID, kind=Kind.LONG, doc="-1 for none"),
    Column(name=PRODUCER_EPOCH, kind=Kind.INT, doc="-1 for none"),
    Column(name=SEQUENCE, kind=Kind.INT, doc="the producer's number for the record, -1 for none"),
    Column(name=ATTRIBUTES, kind=Kind.INT, doc="attributes of the record's batch"),
    Column(name=RAW, kind=Kind.BINARY, required=False, doc="what the other columns cannot hold, usually null"),
)
"""Every column, and behind a list or a struct its own fields: their names go on from its name."""

TIME_TYPE: Final[Any] = pa.timestamp("us", tz="UTC")

_ARROW_TYPES: Final[Mapping[Kind, Any]] = {
    Kind.INT: pa.int32(),
    Kind.LONG: pa.int64(),
    Kind.TIMESTAMPTZ: TIME_TYPE,
    Kind.STRING: pa.string(),
    Kind.BINARY: pa.binary(),
}


def arrow_schema(table_format: TableFormat) -> Any:
    """Return the rows' Arrow schema with the table's field ids; raise `Invalid` if the table lacks one of ours."""
    missing = [column.name for column in COLUMNS if column.name not in table_format.field_ids]
    if missing:
        raise Invalid(f"the table has no field {', '.join(missing)}: it is not laid out for a topic's records")
    schema = _schema(table_format.field_ids)
    if table_format.data is None:
        return schema
    return schema.append(data_field(table_format.data, table_format.field_ids))


def leaf_names(schema: Any) -> list[str]:
    """Return the full Iceberg names of all columns that a Parquet file of this schema has, in their order."""
    return [name for field in schema for name in _leaves(field.type, field.name)]


def _leaves(kind: Any, name: str) -> list[str]:
    if pa.types.is_struct(kind):
        inner = [kind.field(number) for number in range(kind.num_fields)]
    elif pa.types.is_list(kind):
        inner = [kind.value_field]
    elif pa.types.is_map(kind):
        inner = [kind.key_field, kind.item_field]
    else:
        return [name]
    return [leaf for field in inner for leaf in _leaves(field.type, f"{name}.{field.name}")]


def _schema(field_ids: Mapping[str, int] | None) -> Any:
    return pa.schema([_field(column, field_ids) for column in COLUMNS if "." not in column.name])


def _field(column: Column, field_ids: Mapping[str, int] | None) -> Any:
    children = [_field(child, field_ids) for child in COLUMNS if child.name.rpartition(".")[0] == column.name]
    if column.kind is Kind.LIST:
        kind = pa.list_(children[0])
    elif column.kind is Kind.STRUCT:
        kind = pa.struct(children)
    else:
        kind = _ARROW_TYPES[column.kind]
    metadata = None if field_ids is None else {FIELD_ID: str(field_ids[column.name]).encode()}
    return pa.field(column.name.rpartition(".")[2], kind, nullable=not column.required, metadata=metadata)


SCHEMA: Final[Any] = _schema(None)
"""The rows' Arrow schema, without field ids."""
