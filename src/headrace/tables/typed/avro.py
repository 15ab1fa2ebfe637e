"""Avro: a record becomes a struct, and a value is one datum in Avro's binary form, without a header.

    null, boolean, int, long, float, double, bytes, string → the same; null is a string that is never there
    record → struct         enum → string        array → list        map → map of string
    fixed → fixed           union of one thing and null → that thing, nullable
    union of int and long → long                 union of float and double → double
    other unions → struct of member0, member1, …: the one that was written is there, the others are null
    date → date             timestamp-millis, timestamp-micros → timestamptz
    local-timestamp-… → timestamp                decimal of up to 38 digits → decimal
    time-millis, time-micros → long: microseconds since midnight
    uuid and other logical types → what they are stored as

Must stay true: a value that says it holds more than its bytes is a misfit before anything of that size is allocated;
so arrays whose items take no bytes are refused with the schema.
"""

import io
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

import fastavro
import msgspec
from fastavro.schema import SchemaParseException, UnknownType

from headrace.tables.typed.codec import Convert, Misfit, days, micros, millis
from headrace.tables.typed.model import (
    MAX_DECIMAL_PRECISION,
    MAX_DEPTH,
    FieldType,
    InvalidSchema,
    TypedField,
    TypeKind,
    check_struct,
    list_of,
    map_of,
    plain,
)

_PRIMITIVES: Final[Mapping[str, TypeKind]] = {
    "null": TypeKind.STRING,
    "boolean": TypeKind.BOOLEAN,
    "int": TypeKind.INT,
    "long": TypeKind.LONG,
    "float": TypeKind.FLOAT,
    "double": TypeKind.DOUBLE,
    "bytes": TypeKind.BINARY,
    "string": TypeKind.STRING,
}
_NAMED: Final = frozenset({"record", "error", "enum", "fixed"})
_DAY_US: Final = 86_400_000_000

Node = tuple[FieldType, Convert | None, bool]
"""A type, what converts its values (`None`: they are taken as they are), and whether null is one of them."""


class AvroCodec:
    """`Codec` of an Avro schema."""

    def __init__(self, text: str) -> None:
        """Raises `InvalidSchema`."""
        schema = _parsed(text)
        named: dict[str, Any] = {}
        try:
            parsed = fastavro.parse_schema(schema, named_schemas=named)
            # Logical types are ours to apply: fastavro's would fail on times that Python's do not reach.
            self._schema = fastavro.parse_schema(_without_logical(schema))
        except (SchemaParseException, UnknownType, KeyError, TypeError, ValueError, RecursionError) as error:
            raise InvalidSchema(f"it is no Avro schema: {type(error).__name__}: {error}") from error
        # Only where a union has several members must fastavro say which one it was: that takes time.
        self._says_names = _has_choice(parsed)
        struct, convert, _ = _Reader(named, says_names=self._says_names).node(parsed, "the schema", ())
        check_struct(struct)
        self.struct = struct
        self._convert = convert

    def decode(self, value: bytes) -> dict[str, Any]:
        source = io.BytesIO(value)
        try:
            found: Any = fastavro.schemaless_reader(source, self._schema, None, return_named_type=self._says_names)
            if source.tell() != len(value):
                raise Misfit(f"{len(value) - source.tell()} bytes follow the value, or it is of another schema")
            return found if self._convert is None else self._convert(found)  # type: ignore[no-any-return]
        except Misfit:
            raise
        except (
            EOFError,
            ValueError,
            IndexError,
            KeyError,
            OverflowError,
            TypeError,
            MemoryError,
            StopIteration,
        ) as error:
            raise Misfit(f"it is not of this schema: {type(error).__name__}: {error}") from error


def _parsed(text: str) -> Any:
    try:
        schema = msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidSchema(f"it is not JSON, which an Avro schema is: {error}") from error
    if not isinstance(schema, dict) or schema.get("type") not in ("record", "error"):
        raise InvalidSchema('it is not one record: an Avro schema for a table begins with {"type": "record", …}')
    return schema


def _has_choice(schema: Any) -> bool:
    """Say whether a parsed schema has a union of more than one thing and null."""
    if isinstance(schema, list):
        return sum(one != "null" for one in schema) > 1 or any(_has_choice(one) for one in schema)
    if not isinstance(schema, dict):
        return False
    if schema["type"] in ("record", "error"):
        return any(_has_choice(field["type"]) for field in schema["fields"])
    return any(_has_choice(schema.get(part)) for part in ("type", "items", "values"))


def _without_logical(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {name: _without_logical(value) for name, value in schema.items() if name != "logicalType"}
    return [_without_logical(one) for one in schema] if isinstance(schema, list) else schema


class _Reader:
    """Walks a parsed schema. `path` are the records that it stands in."""

    def __init__(self, named: Mapping[str, Any], *, says_names: bool) -> None:
        self.named = named
        self._says_names = says_names

    def node(self, schema: Any, where: str, path: tuple[str, ...]) -> Node:
        if where.count(".") > MAX_DEPTH:
            raise InvalidSchema(f"{where} lies deeper than {MAX_DEPTH} levels")
        if isinstance(schema, list):
            return self._union(schema, where, path)
        if isinstance(schema, str) and schema not in _PRIMITIVES:
            schema = self.named[schema]
        kind = schema if isinstance(schema, str) else schema["type"]
        if not isinstance(kind, str):
            return self.node(kind, where, path)
        if kind in _PRIMITIVES:
            return _primitive(kind, schema if isinstance(schema, dict) else {})
        if kind == "fixed":
            return _fixed(schema)
        if kind == "enum":
            return plain(TypeKind.STRING), None, False
        if kind == "array":
            return self._array(schema, where, path)
        if kind == "map":
            value, convert, nullable = self.node(schema["values"], f"{where}.values", path)
            found = map_of(plain(TypeKind.STRING), value, required=not nullable)
            return found, None if convert is None else _map_convert(convert), False
        if kind in ("record", "error"):
            return self._record(schema, where, path)
        return self.node(self.named[kind], where, path)

    def _array(self, schema: Mapping[str, Any], where: str, path: tuple[str, ...]) -> Node:
        if self._least_bytes(schema["items"], path) == 0:
            raise InvalidSchema(
                f"{where} is an array of items that take no bytes: a few bytes could claim any number"
            )
        element, convert, nullable = self.node(schema["items"], f"{where}.items", path)
        found = list_of(element, required=not nullable)
        return found, None if convert is None else _list_convert(convert), False

    def _least_bytes(self, schema: Any, path: tuple[str, ...]) -> int:
        """Return how many bytes a value takes at least: 0, or something more."""
        if isinstance(schema, list):
            return 1
        if isinstance(schema, str):
            return int(schema != "null") if schema in _PRIMITIVES else self._least_bytes(self.named[schema], path)
        kind = schema["type"]
        if kind == "fixed":
            return int(schema["size"])
        if kind in ("record", "error"):
            if schema["name"] in path:
                return 1  # It is refused as soon as it is walked.
            inner = (*path, schema["name"])
            return max((self._least_bytes(field["type"], inner) for field in schema["fields"]), default=0)
        if kind in ("enum", "array", "map"):
            return 1
        return self._least_bytes(kind, path)

    def _record(self, schema: Mapping[str, Any], where: str, path: tuple[str, ...]) -> Node:
        name = schema["name"]
        if name in path:
            raise InvalidSchema(
                f"{where} is a {name} inside of a {name}: a table cannot hold a type that holds itself"
            )
        fields: list[TypedField] = []
        converts: list[tuple[str, Convert]] = []
        for field in schema["fields"]:
            found, convert, nullable = self.node(field["type"], f"{where}.{field['name']}", (*path, name))
            fields.append(TypedField(field["name"], found, not nullable))
            if convert is not None:
                converts.append((field["name"], convert))
        if not fields:
            return plain(TypeKind.STRING), lambda value: None if value is None else "{}", False
        return FieldType(TypeKind.STRUCT, tuple(fields)), _struct_convert(converts) if converts else None, False

    def _union(self, schema: list[Any], where: str, path: tuple[str, ...]) -> Node:
        members = [one for one in schema if one != "null"]
        nullable = len(members) < len(schema)
        if not members:
            return plain(TypeKind.STRING), None, True
        if len(members) == 1:
            found, convert, _ = self.node(members[0], where, path)
            unwrap = _unwrapped(convert) if self._says_names and self._is_named(members[0]) else convert
            return found, _unless_null(unwrap), nullable
        plains = {one if isinstance(one, str) else one["type"] for one in members if not self._is_named(one)}
        if {"int", "long"} <= plains or {"float", "double"} <= plains:
            if len(members) == 2 and plains in ({"int", "long"}, {"float", "double"}):
                return plain(TypeKind.LONG if "int" in plains else TypeKind.DOUBLE), None, nullable
            raise InvalidSchema(f"{where} is a union with two sizes of one number: leave out the smaller")
        return self._members(members, where, path, nullable)

    def _members(self, members: list[Any], where: str, path: tuple[str, ...], nullable: bool) -> Node:
        fields: list[TypedField] = []
        by_name: dict[str, tuple[str, Convert | None]] = {}
        by_class: dict[type, tuple[str, Convert | None]] = {}
        for number, member in enumerate(members):
            column = f"member{number}"
            found, convert, _ = self.node(member, f"{where}.{column}", path)
            fields.append(TypedField(column, found, False))
            if self._is_named(member):
                by_name[member if isinstance(member, str) else member["name"]] = (column, convert)
            else:
                by_class[_CLASSES[member if isinstance(member, str) else member["type"]]] = (column, convert)
        return FieldType(TypeKind.STRUCT, tuple(fields)), _member_convert(by_name, by_class), nullable

    def _is_named(self, schema: Any) -> bool:
        kind = schema if isinstance(schema, str) else schema["type"]
        return kind in _NAMED or kind in self.named


_CLASSES: Final[Mapping[str, type]] = {
    "boolean": bool,
    "int": int,
    "long": int,
    "float": float,
    "double": float,
    "bytes": bytes,
    "string": str,
    "array": list,
    "map": dict,
}
"""What fastavro makes of the unnamed members of a union; there is at most one of each."""


def _primitive(kind: str, schema: Mapping[str, Any]) -> Node:
    logical = schema.get("logicalType")
    if (kind, logical) in _LOGICAL:
        wanted, convert = _LOGICAL[kind, logical]
        return plain(wanted), convert, False
    if kind == "bytes" and logical == "decimal" and (node := _decimal(schema)) is not None:
        return node
    return plain(_PRIMITIVES[kind]), None, kind == "null"


def _fixed(schema: Mapping[str, Any]) -> Node:
    if schema.get("logicalType") == "decimal" and (node := _decimal(schema)) is not None:
        return node
    return FieldType(TypeKind.FIXED, length=schema["size"]), None, False


def _decimal(schema: Mapping[str, Any]) -> Node | None:
    """Return a decimal; `None` if it is not one that a table can hold: it stays bytes then, as Avro says."""
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision <= MAX_DECIMAL_PRECISION:
        return None
    if precision == 0:
        return None
    limit = 10**precision

    def convert(value: bytes | None) -> Decimal | None:
        if value is None:
            return None
        unscaled = int.from_bytes(value, "big", signed=True)
        if not -limit < unscaled < limit:
            raise Misfit(f"a decimal of {precision} digits cannot hold {len(value)} bytes of number")
        return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale))

    return FieldType(TypeKind.DECIMAL, precision=precision, scale=scale), convert, False


def _time_of_day(factor: int) -> Convert:
    def convert(value: int) -> int:
        if not 0 <= value * factor < _DAY_US:
            raise Misfit(f"{value} is no time of a day")
        return value * factor

    return convert


_LOGICAL: Final[Mapping[tuple[str, object], tuple[TypeKind, Convert]]] = {
    ("int", "date"): (TypeKind.DATE, days),
    ("int", "time-millis"): (TypeKind.LONG, _time_of_day(1000)),
    ("long", "time-micros"): (TypeKind.LONG, _time_of_day(1)),
    ("long", "timestamp-millis"): (TypeKind.TIMESTAMPTZ, millis),
    ("long", "timestamp-micros"): (TypeKind.TIMESTAMPTZ, micros),
    ("long", "local-timestamp-millis"): (TypeKind.TIMESTAMP, millis),
    ("long", "local-timestamp-micros"): (TypeKind.TIMESTAMP, micros),
}


def _unless_null(convert: Convert | None) -> Convert | None:
    return None if convert is None else lambda value: None if value is None else convert(value)


def _unwrapped(convert: Convert | None) -> Convert:
    """Take a named type out of a union: fastavro says its name beside it."""
    return (lambda value: value[1]) if convert is None else lambda value: convert(value[1])


def _list_convert(convert: Convert) -> Convert:
    return lambda value: [convert(one) for one in value]


def _map_convert(convert: Convert) -> Convert:
    return lambda value: {name: convert(one) for name, one in value.items()}


def _struct_convert(converts: list[tuple[str, Convert]]) -> Convert:
    def convert_struct(value: dict[str, Any]) -> dict[str, Any]:
        for name, convert in converts:
            value[name] = convert(value[name])
        return value

    return convert_struct


def _member_convert(
    by_name: Mapping[str, tuple[str, Convert | None]], by_class: Mapping[type, tuple[str, Convert | None]]
) -> Convert:
    def convert_member(value: Any) -> dict[str, Any] | None:
        if value is None:
            return None
        if type(value) is tuple:
            (column, convert), value = by_name[value[0]], value[1]
        else:
            column, convert = by_class[type(value)]
        return {column: value if convert is None else convert(value)}

    return convert_member
