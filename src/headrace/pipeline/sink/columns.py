"""The columns of a DataFrame that become records: those of Spark's Kafka sink, and `timestamp`.

Types are judged before anything runs; Arrow batches then only change their shape. `offset` and `timestampType`, which
the source brings and nobody can choose, are passed over, so that what was read can be written again as it is.

Must stay true: a row is a record. What cannot be one is refused with its column; nothing is cut, guessed or left out.
"""

from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import Invalid
from headrace.records.arrow import HEADERS_TYPE, SCHEMA

BYTES: Final = ("string", "binary")
TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "value": BYTES,
    "key": BYTES,
    "headers": ("array<struct<key:string,value:binary>>",),
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
}
PASSED_OVER: Final = frozenset({"offset", "timestamptype"})


def check_columns(
    columns: Sequence[tuple[str, str]], *, topic: str | None, includes_headers: bool | None
) -> dict[str, str]:
    """Return, for each column that we take, its name in the frame. Raises `Invalid` for what cannot be written.

    `columns` are names and types, as Spark spells them.
    """
    found: dict[str, str] = {}
    for name, kind in columns:
        wanted = name.lower()
        if wanted in PASSED_OVER:
            continue
        if wanted not in TYPES:
            raise Invalid(
                f"column {name!r} cannot be written to a topic; there are {', '.join(TYPES)}: select those, and pack "
                "what else belongs into value, for example with to_json(struct(*))"
            )
        if wanted in found:
            raise Invalid(f"columns {found[wanted]!r} and {name!r} are both {wanted}: keep one")
        if kind not in TYPES[wanted]:
            raise Invalid(
                f"column {name!r} has type {kind}, and {wanted} takes {' or '.join(TYPES[wanted])}: cast it"
            )
        found[wanted] = name
    if "value" not in found:
        raise Invalid("there is no column value: a record has one, though it may be null")
    if topic is None and "topic" not in found:
        raise Invalid("no topic is named: set the option topic, or give every row one in a column topic")
    if includes_headers is False:
        found.pop("headers", None)
    if includes_headers and "headers" not in found:
        raise Invalid("includeHeaders is true, and there is no column headers")
    return found


class Rows:
    """Rows in the shape of records, not yet placed. `content` is what every record has of its own."""

    __slots__ = ("content", "partitions", "topics")

    def __init__(self, table: Any, names: Mapping[str, str], *, now_ms: int) -> None:
        """Take a `pyarrow.Table` with the columns that `names` gives; rows without a time get `now_ms`."""
        count = table.num_rows
        columns = {column: _whole(table.column(name)) for column, name in names.items()}
        keys = columns.get("key")
        self.topics: Any | None = columns.get("topic")
        self.partitions: Any | None = columns.get("partition")
        self.content: Any = pa.RecordBatch.from_arrays(
            [
                _timestamps(columns.get("timestamp"), count, now_ms),
                pa.nulls(count, pa.binary()) if keys is None else keys.cast(pa.binary()),
                columns["value"].cast(pa.binary()),
                _headers(columns.get("headers"), count),
            ],
            schema=CONTENT,
        )


CONTENT: Final = pa.schema([SCHEMA.field(name) for name in ("timestamp_ms", "key", "value", "headers")])
_SAME: Final = {"attributes": 0, "producer_id": -1, "producer_epoch": -1, "sequence": -1}
_US_PER_MS: Final = 1000


class Completion:
    """Makes contents whole: offsets from 0 on, as they are before a commit gives the real ones, and no producer."""

    def __init__(self, max_rows: int) -> None:
        self._columns = {
            name: pa.repeat(pa.scalar(value, SCHEMA.field(name).type), max_rows) for name, value in _SAME.items()
        }
        self._columns["offset"] = pa.Array.from_buffers(
            pa.int64(), max_rows, [None, pa.py_buffer(array("q", range(max_rows)))]
        )

    def complete(self, content: Any) -> Any:
        """Return the record batch that `records/arrow.py` takes."""
        count = len(content)
        columns = {name: column.slice(0, count) for name, column in self._columns.items()}
        columns.update(zip(CONTENT.names, content.columns, strict=True))
        return pa.RecordBatch.from_arrays([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def _whole(column: Any) -> Any:
    """Return a column's one array; Spark sends large types where it was told to."""
    combined = column.combine_chunks()
    return combined.chunk(0) if isinstance(combined, pa.ChunkedArray) else combined


def _timestamps(column: Any | None, count: int, now_ms: int) -> Any:
    """Return milliseconds; microseconds are cut downwards, before the year 1970, too."""
    if column is None:
        return pa.repeat(pa.scalar(now_ms, pa.int64()), count)
    micros = column.cast(pa.int64())
    before_epoch = pc.less(micros, 0)
    towards_floor = pc.if_else(before_epoch, pc.subtract(micros, _US_PER_MS - 1), micros)
    return pc.fill_null(pc.divide(towards_floor, _US_PER_MS), now_ms)


def _headers(column: Any | None, count: int) -> Any:
    if column is None:
        none = pa.Array.from_buffers(pa.int32(), count + 1, [None, pa.py_buffer(bytes(4 * (count + 1)))])
        return pa.ListArray.from_arrays(none, pa.array([], HEADERS_TYPE.value_type), type=HEADERS_TYPE)
    pairs = column.flatten()
    if pairs.null_count or pairs.field(0).null_count:
        raise Invalid("a header is null or has no key: leave it out of headers instead")
    names, values = pairs.flatten()
    sizes = pc.fill_null(pc.list_value_length(column), 0).cast(pa.int32())
    ends = pc.cumulative_sum(sizes)
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    shaped = pa.StructArray.from_arrays(
        [names.cast(pa.binary()), values.cast(pa.binary())], fields=list(HEADERS_TYPE.value_type)
    )
    return pa.ListArray.from_arrays(offsets, shaped, type=HEADERS_TYPE)
