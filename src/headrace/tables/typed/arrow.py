"""Values become the struct column `data`, row by row decoded, column by column stored.

Must stay true: a row whose value does not fit is null in `data` and is named with a reason, whatever it was that did
not fit; no value of one row keeps another row from being decoded.
"""

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa

from headrace.runtime.text import one_line
from headrace.tables.typed.codec import MAX_REASON_CHARS, Misfit
from headrace.tables.typed.model import DATA, FieldType, TypedField, TypeKind
from headrace.tables.typed.schemas import ReadySchema

FIELD_ID: Final = b"PARQUET:field_id"
"""The key under which pyarrow takes a field's id into a Parquet schema."""

_PLAIN: Final[Mapping[TypeKind, Any]] = {
    TypeKind.BOOLEAN: pa.bool_(),
    TypeKind.INT: pa.int32(),
    TypeKind.LONG: pa.int64(),
    TypeKind.FLOAT: pa.float32(),
    TypeKind.DOUBLE: pa.float64(),
    TypeKind.DATE: pa.date32(),
    TypeKind.TIMESTAMP: pa.timestamp("us"),
    TypeKind.TIMESTAMPTZ: pa.timestamp("us", tz="UTC"),
    TypeKind.STRING: pa.string(),
    TypeKind.BINARY: pa.binary(),
}

NOT_HELD: Final = (pa.ArrowException, OverflowError, UnicodeError, TypeError, ValueError)
"""What Arrow raises for a Python value that its type cannot hold."""


def data_field(struct: FieldType, field_ids: Mapping[str, int] | None) -> Any:
    """Return the column `data` as an Arrow field, with field ids where they are given."""
    return _field(TypedField(DATA, struct, False), DATA, field_ids)


def _field(field: TypedField, name: str, field_ids: Mapping[str, int] | None) -> Any:
    metadata = None if field_ids is None else {FIELD_ID: str(field_ids[name]).encode()}
    return pa.field(field.name, _type(field.type, name, field_ids), nullable=not field.required, metadata=metadata)


def _type(found: FieldType, name: str, field_ids: Mapping[str, int] | None) -> Any:
    inner = [_field(field, f"{name}.{field.name}", field_ids) for field in found.fields]
    if found.kind is TypeKind.STRUCT:
        return pa.struct(inner)
    if found.kind is TypeKind.LIST:
        return pa.list_(inner[0])
    if found.kind is TypeKind.MAP:
        return pa.map_(*inner)
    if found.kind is TypeKind.DECIMAL:
        return pa.decimal128(found.precision, found.scale)
    if found.kind is TypeKind.FIXED:
        return pa.binary(found.length)
    return _PLAIN[found.kind]


def decode_values(values: Any, schema: ReadySchema, data_type: Any) -> tuple[Any, dict[int, str]]:
    """Decode an array of binary values into an array of `data_type`; return it and, by row, why some do not fit.

    A null value has null fields and is no misfit.
    """
    with _without_collecting():
        return _decoded(values, schema, data_type)


@contextmanager
def _without_collecting() -> Iterator[None]:
    """Keep Python's collector away: thousands of young rows have no circles, and it would walk them again and again.

    It took a tenth to a quarter of the time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _decoded(values: Any, schema: ReadySchema, data_type: Any) -> tuple[Any, dict[int, str]]:
    decode = schema.decode
    rows: list[dict[str, Any] | None] = []
    misfits: dict[int, str] = {}
    for number, value in enumerate(values.to_pylist()):
        if value is None:
            rows.append(None)
            continue
        try:
            rows.append(decode(value))
        except Misfit as misfit:
            rows.append(None)
            misfits[number] = schema.reason(value, misfit)
    return _fitted(rows, 0, data_type, misfits), misfits


def _fitted(rows: list[Any], first: int, data_type: Any, misfits: dict[int, str]) -> Any:
    """Return rows as an Arrow array; the rows that Arrow refuses are found by halves and become null."""
    try:
        return _array(rows, data_type)
    except NOT_HELD as error:
        if len(rows) == 1:
            why = "a number has too many bits" if isinstance(error, OverflowError) else str(error)
            misfits[first] = one_line(f"a column cannot hold it: {why}", max_chars=MAX_REASON_CHARS)
            return _array([None], data_type)
    middle = len(rows) // 2
    halves = (rows[:middle], first), (rows[middle:], first + middle)
    return pa.concat_arrays([_fitted(half, start, data_type, misfits) for half, start in halves])


def _array(rows: list[Any], data_type: Any) -> Any:
    made = pa.array(rows, data_type)
    return made.combine_chunks() if isinstance(made, pa.ChunkedArray) else made
