"""The struct column `data` in Iceberg's terms: read from a loaded table, and evolved to what a topic's schema wants.

Must stay true: a field keeps its id for ever, whatever becomes of its type; a new one gets an id that the table has
never given. So files that are there are read by the ids that they were written with, and lack what came later.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from headrace.errors import Invalid
from headrace.tables.port import ForeignTable
from headrace.tables.typed.evolution import SchemaConflict, evolved
from headrace.tables.typed.model import DATA, ELEMENT, MAP_KEY, MAP_VALUE, FieldType, TypedField, TypeKind

DOC: Final = "the value's fields by the topic's schema; null where it does not fit"

_PLAIN: Final[Mapping[TypeKind, type[IcebergType]]] = {
    TypeKind.BOOLEAN: BooleanType,
    TypeKind.INT: IntegerType,
    TypeKind.LONG: LongType,
    TypeKind.FLOAT: FloatType,
    TypeKind.DOUBLE: DoubleType,
    TypeKind.DATE: DateType,
    TypeKind.TIMESTAMP: TimestampType,
    TypeKind.TIMESTAMPTZ: TimestamptzType,
    TypeKind.STRING: StringType,
    TypeKind.BINARY: BinaryType,
}
_KINDS: Final = {made: kind for kind, made in _PLAIN.items()}


def data_of(schema: Schema, table: str) -> FieldType | None:
    """Return the typed columns of a table, or `None` if it has none. Raises `ForeignTable` if they are not ours."""
    field = next((field for field in schema.fields if field.name == DATA), None)
    if field is None:
        return None
    found = _typed(field.field_type, DATA, table)
    if found.kind is not TypeKind.STRUCT or field.required:
        raise ForeignTable(
            f"the column {DATA} of the table {table} is {field.field_type}, and the topic's typed columns are to lie"
            " there: rename it, or unset headrace.table.schema"
        )
    return found


def typed_data(schema: Schema) -> FieldType | None:
    """Return the typed columns of a table, or `None` if it has none, or has something else of that name."""
    try:
        return data_of(schema, "")
    except ForeignTable:
        return None


def is_data_known(schema: Schema) -> bool:
    """Say whether a file can be written anew without losing typed columns.

    It cannot where somebody has put a field of a type into `data` that no schema of ours becomes.
    """
    field = next((field for field in schema.fields if field.name == DATA), None)
    return field is None or not isinstance(field.field_type, StructType) or typed_data(schema) is not None


def wanted_data(metadata: TableMetadata, struct: FieldType, *, table: str, topic: str) -> FieldType:
    """Return the typed columns that a table is to have for a schema. Raises `Invalid` if it cannot have them."""
    try:
        return evolved(data_of(metadata.schema(), table), struct)
    except SchemaConflict as error:
        raise Invalid(
            f"headrace.table.schema of the topic {topic} does not fit the table {table}: {error}, which rows that are"
            " there rule out: give the field another name, or unset the config and set the schema before again"
        ) from error


def schema_with(metadata: TableMetadata, data: FieldType) -> Schema:
    """Return a table's schema with these typed columns, ready to be added to it."""
    current = metadata.schema()
    names = {current.find_column_name(field_id): field_id for field_id in current.field_ids}
    ids = _Ids({name: field_id for name, field_id in names.items() if name is not None}, metadata.last_column_id)
    made = NestedField(
        field_id=ids.of(DATA), name=DATA, field_type=_iceberg(data, DATA, ids), required=False, doc=DOC
    )
    others = [made if field.name == DATA else field for field in current.fields]
    fields = others if made in others else [*others, made]
    schema_id = max(schema.schema_id for schema in metadata.schemas) + 1
    return Schema(*fields, schema_id=schema_id, identifier_field_ids=current.identifier_field_ids)


class _Ids:
    """Gives fields the ids that they have, and new ones behind the last that the table has given."""

    def __init__(self, known: Mapping[str, int], last_id: int) -> None:
        self._known = known
        self._last_id = last_id

    def of(self, name: str) -> int:
        found = self._known.get(name)
        if found is not None:
            return found
        self._last_id += 1
        return self._last_id


def _iceberg(found: FieldType, name: str, ids: _Ids) -> IcebergType:
    if found.kind is TypeKind.DECIMAL:
        return DecimalType(found.precision, found.scale)
    if found.kind is TypeKind.FIXED:
        return FixedType(found.length)
    if found.kind in _PLAIN:
        return _PLAIN[found.kind]()
    # Ids of a level come before those of the levels inside of it, as catalogs number them.
    numbered = [(field, f"{name}.{field.name}", ids.of(f"{name}.{field.name}")) for field in found.fields]
    inner = [(field, field_id, _iceberg(field.type, inner_name, ids)) for field, inner_name, field_id in numbered]
    if found.kind is TypeKind.LIST:
        ((element, element_id, element_type),) = inner
        return ListType(element_id=element_id, element_type=element_type, element_required=element.required)
    if found.kind is TypeKind.MAP:
        (_, key_id, key_type), (value, value_id, value_type) = inner
        return MapType(
            key_id=key_id,
            key_type=key_type,
            value_id=value_id,
            value_type=value_type,
            value_required=value.required,
        )
    return StructType(
        *(
            NestedField(field_id=field_id, name=field.name, field_type=field_type, required=field.required)
            for field, field_id, field_type in inner
        )
    )


def _typed(found: IcebergType, name: str, table: str) -> FieldType:
    kind = _KINDS.get(type(found))
    if kind is not None:
        return FieldType(kind)
    if isinstance(found, DecimalType):
        return FieldType(TypeKind.DECIMAL, precision=found.precision, scale=found.scale)
    if isinstance(found, FixedType):
        return FieldType(TypeKind.FIXED, length=len(found))
    if isinstance(found, StructType | ListType | MapType):
        nested = {StructType: TypeKind.STRUCT, ListType: TypeKind.LIST, MapType: TypeKind.MAP}
        return FieldType(
            nested[type(found)],
            tuple(
                TypedField(inner, _typed(inner_type, f"{name}.{inner}", table), required)
                for inner, inner_type, required in _inside(found)
            ),
        )
    raise ForeignTable(
        f"the column {name} of the table {table} is {found}, which no schema of a topic becomes: drop it, or rename"
        " the table, and the topic begins a new one"
    )


def _inside(found: StructType | ListType | MapType) -> Iterator[tuple[str, IcebergType, bool]]:
    if isinstance(found, StructType):
        yield from ((field.name, field.field_type, field.required) for field in found.fields)
    elif isinstance(found, ListType):
        yield ELEMENT, found.element_type, found.element_required
    else:
        yield MAP_KEY, found.key_type, True
        yield MAP_VALUE, found.value_type, found.value_required
