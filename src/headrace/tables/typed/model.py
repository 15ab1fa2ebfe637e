"""What a value's fields are, whatever language the schema was written in: one neutral description.

A struct has named fields, a list one field called `element`, a map two called `key` and `value`, as Iceberg names
them. So the full name of every field, however deep, follows from the description: `data.items.element.price`.

Must stay true: a description says nothing of field ids (a catalog gives them), and nothing of how values are encoded.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import Final

import msgspec

DATA: Final = "data"
"""The column that holds all typed fields, so that a field called `offset` never meets the record's own."""

ELEMENT: Final = "element"
MAP_KEY: Final = "key"
MAP_VALUE: Final = "value"

MAX_SCHEMA_CHARS: Final = 32_767
"""The longest schema: what the oldest version of Kafka's protocol can carry in one string."""

MAX_FIELDS: Final = 1_000
"""How many fields a schema may have, nested ones counted: every one of them is a column in every file."""

MAX_DEPTH: Final = 20
"""How deep fields may be nested."""

MAX_NAME_CHARS: Final = 200
MAX_DECIMAL_PRECISION: Final = 38
MAX_FIXED_BYTES: Final = 65_536


class InvalidSchema(ValueError):
    """A schema that cannot be read, or cannot become a struct; the sentence says what and where."""


class TypeKind(StrEnum):
    """What a field holds, in Iceberg's words."""

    BOOLEAN = "boolean"
    INT = "int"
    LONG = "long"
    FLOAT = "float"
    DOUBLE = "double"
    DECIMAL = "decimal"
    DATE = "date"
    TIMESTAMP = "timestamp"
    TIMESTAMPTZ = "timestamptz"
    STRING = "string"
    BINARY = "binary"
    FIXED = "fixed"
    STRUCT = "struct"
    LIST = "list"
    MAP = "map"


class FieldType(msgspec.Struct, frozen=True):
    """The type of a field. `precision` and `scale` are a decimal's, `length` is that of fixed bytes."""

    kind: TypeKind
    fields: tuple["TypedField", ...] = ()
    precision: int = 0
    scale: int = 0
    length: int = 0

    def __str__(self) -> str:
        if self.kind is TypeKind.DECIMAL:
            return f"decimal({self.precision}, {self.scale})"
        if self.kind is TypeKind.FIXED:
            return f"fixed[{self.length}]"
        return str(self.kind)

    def field(self, name: str) -> "TypedField | None":
        """Return a field of a struct, a list or a map by its name."""
        return next((field for field in self.fields if field.name == name), None)


class TypedField(msgspec.Struct, frozen=True):
    """A field inside of `data`. One that is `required` is there in every row whose parent is."""

    name: str
    type: FieldType
    required: bool = False


def plain(kind: TypeKind) -> FieldType:
    """Return a type that has nothing but its kind."""
    return FieldType(kind)


def list_of(element: FieldType, *, required: bool) -> FieldType:
    """Return the type of a list."""
    return FieldType(TypeKind.LIST, (TypedField(ELEMENT, element, required),))


def map_of(key: FieldType, value: FieldType, *, required: bool) -> FieldType:
    """Return the type of a map; its keys are always there."""
    return FieldType(TypeKind.MAP, (TypedField(MAP_KEY, key, True), TypedField(MAP_VALUE, value, required)))


def walk(struct: FieldType, name: str = DATA) -> Iterator[tuple[str, FieldType]]:
    """Go through a type and all that is in it, each with its full name, parents before their fields."""
    yield name, struct
    for field in struct.fields:
        yield from walk(field.type, f"{name}.{field.name}")


def nullable(found: FieldType) -> FieldType:
    """Return a type in which everything may be null but the keys of maps."""
    return FieldType(
        found.kind,
        tuple(
            TypedField(field.name, nullable(field.type), found.kind is TypeKind.MAP and field.name == MAP_KEY)
            for field in found.fields
        ),
        found.precision,
        found.scale,
        found.length,
    )


def check_struct(struct: FieldType) -> None:
    """Raise `InvalidSchema` unless every engine can have a column of this type."""
    if struct.kind is not TypeKind.STRUCT:
        raise InvalidSchema("its values have no fields, so there is nothing to make columns of")
    for count, (name, found) in enumerate(walk(struct)):
        if count > MAX_FIELDS:
            raise InvalidSchema(f"it has more than {MAX_FIELDS} fields, nested ones counted")
        if name.count(".") > MAX_DEPTH:
            raise InvalidSchema(f"{name} lies deeper than {MAX_DEPTH} levels")
        _check_type(name, found)


def _check_type(name: str, found: FieldType) -> None:
    if found.kind is TypeKind.STRUCT and not found.fields:
        raise InvalidSchema(f"{name} has no fields, so there is nothing to make columns of")
    if found.kind is TypeKind.DECIMAL and not 0 <= found.scale <= found.precision <= MAX_DECIMAL_PRECISION:
        raise InvalidSchema(f"{name} is {found}: a decimal has up to {MAX_DECIMAL_PRECISION} digits")
    if found.kind is TypeKind.FIXED and not 0 < found.length <= MAX_FIXED_BYTES:
        raise InvalidSchema(f"{name} is {found}: fixed bytes are 1 to {MAX_FIXED_BYTES} long")
    seen: dict[str, str] = {}
    for field in found.fields:
        if not field.name or len(field.name) > MAX_NAME_CHARS or "." in field.name or not field.name.isprintable():
            raise InvalidSchema(f"{name} has a field that cannot be a column's name: {field.name[:MAX_NAME_CHARS]!r}")
        other = seen.setdefault(field.name.lower(), field.name)
        if other is not field.name:
            raise InvalidSchema(
                f"{name} has the fields {other} and {field.name}, one and the same to engines that ignore case"
            )
