"""Protobuf: a message becomes a struct; a value is one message in protobuf's binary form.

    int32, sint32, sfixed32 → int                int64, sint64, sfixed64, uint32, fixed32 → long
    uint64, fixed64 → decimal(20, 0)             float, double, bool, string, bytes → the same
    enum → string: its name, or the number that has none
    message → struct        repeated → list      map → map
    Timestamp → timestamptz (whole microseconds) Duration → long: microseconds
    the wrappers (Int64Value…) → their value, nullable
    Struct, Value, ListValue, FieldMask, and messages without fields → string: their JSON text

What has presence (optional, oneof, messages, all of proto2 but `required`) is nullable; what has none holds its
default. Fields that the schema does not know are left out: a producer may be ahead of the topic's schema.

Must stay true: protobuf's runtime checks lengths, depth (100) and UTF-8 of whatever the bytes are.
"""

from collections.abc import Mapping
from typing import Any, Final

from google.protobuf import descriptor_pb2, json_format, message_factory
from google.protobuf.message import DecodeError

from headrace.tables.typed.codec import INT64_MAX, INT64_MIN, Convert, Misfit, micros
from headrace.tables.typed.model import (
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
from headrace.tables.typed.proto_files import message_descriptor, message_index

_UINT64: Final = FieldType(TypeKind.DECIMAL, precision=20, scale=0)
_PACKAGE: Final = "google.protobuf."
_WRAPPERS: Final = frozenset(
    f"{_PACKAGE}{kind}Value"
    for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_OUR_CALLS: Final = frozenset({"HasField", "IsInitialized", "FindInitializationErrors"})
"""What is asked of every message: a field of that name would stand in its place."""

_JSON_TEXT: Final = frozenset(f"{_PACKAGE}{kind}" for kind in ("Struct", "Value", "ListValue", "FieldMask"))

Node = tuple[FieldType, Convert | None]
"""A type, and what converts its values; `None`: they are taken as they are."""


class ProtobufCodec:
    """`Codec` of one message of a `.proto` file."""

    def __init__(self, text: str, message: str) -> None:
        """Raises `InvalidSchema`."""
        descriptor = message_descriptor(text, message)
        self.index = message_index(descriptor)
        struct, convert = _message(descriptor, descriptor.name, ())
        check_struct(struct)
        assert convert is not None, "a message that is a struct is converted"
        self.struct = struct
        self._convert = convert
        self._class = message_factory.GetMessageClass(descriptor)

    def decode(self, value: bytes) -> dict[str, Any]:
        try:
            found = self._class.FromString(value)
            if not found.IsInitialized():
                raise Misfit(f"required fields are missing: {', '.join(found.FindInitializationErrors())}")
            return self._convert(found)  # type: ignore[no-any-return]
        except Misfit:
            raise
        except (DecodeError, json_format.Error, ValueError, OverflowError, RecursionError) as error:
            raise Misfit(f"it is not a message of this schema: {error}") from error


def _message(descriptor: Any, where: str, path: tuple[str, ...]) -> Node:
    name = descriptor.full_name
    if name in path:
        raise InvalidSchema(f"{where} is a {name} inside of a {name}: a table cannot hold a type that holds itself")
    if where.count(".") > MAX_DEPTH:
        raise InvalidSchema(f"{where} lies deeper than {MAX_DEPTH} levels")
    if name in _JSON_TEXT or not descriptor.fields:
        return plain(TypeKind.STRING), _json_text
    if name == f"{_PACKAGE}Timestamp":
        return plain(TypeKind.TIMESTAMPTZ), lambda time: micros(time.seconds * 1_000_000 + time.nanos // 1000)
    if name == f"{_PACKAGE}Duration":
        return plain(TypeKind.LONG), _duration
    if name in _WRAPPERS:
        return _scalar(descriptor.fields_by_name["value"])[0], lambda box: box.value
    fields: list[TypedField] = []
    converts: list[tuple[str, Convert | None, bool]] = []
    for field in descriptor.fields:
        if field.name in _OUR_CALLS:
            raise InvalidSchema(f"{where} has a field called {field.name}, as protobuf's own calls are: rename it")
        found, convert = _field(field, f"{where}.{field.name}", (*path, name))
        has_presence = field.has_presence and not field.is_required
        fields.append(TypedField(field.name, found, not has_presence))
        converts.append((field.name, convert, has_presence))
    return FieldType(TypeKind.STRUCT, tuple(fields)), _struct_convert(converts)


def _field(field: Any, where: str, path: tuple[str, ...]) -> Node:
    if not field.is_repeated:
        return _single(field, where, path)
    entry = field.message_type
    if entry is not None and entry.GetOptions().map_entry:
        key, key_convert = _single(entry.fields_by_name["key"], f"{where}.key", path)
        value, convert = _single(entry.fields_by_name["value"], f"{where}.value", path)
        assert key_convert is None, "the keys of a map are whole numbers, booleans and strings"
        return map_of(key, value, required=True), _map_convert(convert)
    element, convert = _single(field, where, path)
    return list_of(element, required=True), list if convert is None else _list_convert(convert)


def _single(field: Any, where: str, path: tuple[str, ...]) -> Node:
    return _scalar(field) if field.message_type is None else _message(field.message_type, where, path)


def _scalar(field: Any) -> Node:
    if field.enum_type is not None:
        names = {value.number: value.name for value in reversed(field.enum_type.values)}
        return plain(TypeKind.STRING), lambda number: names.get(number) or str(number)
    if field.type in (field.TYPE_UINT64, field.TYPE_FIXED64):
        return _UINT64, None
    return plain(_KINDS[field.type]), None


_Types: Final = descriptor_pb2.FieldDescriptorProto
_KINDS: Final[Mapping[int, TypeKind]] = {
    _Types.TYPE_INT32: TypeKind.INT,
    _Types.TYPE_SINT32: TypeKind.INT,
    _Types.TYPE_SFIXED32: TypeKind.INT,
    _Types.TYPE_UINT32: TypeKind.LONG,
    _Types.TYPE_FIXED32: TypeKind.LONG,
    _Types.TYPE_INT64: TypeKind.LONG,
    _Types.TYPE_SINT64: TypeKind.LONG,
    _Types.TYPE_SFIXED64: TypeKind.LONG,
    _Types.TYPE_FLOAT: TypeKind.FLOAT,
    _Types.TYPE_DOUBLE: TypeKind.DOUBLE,
    _Types.TYPE_BOOL: TypeKind.BOOLEAN,
    _Types.TYPE_STRING: TypeKind.STRING,
    _Types.TYPE_BYTES: TypeKind.BINARY,
}


def _duration(value: Any) -> int:
    found: int = value.seconds * 1_000_000 + value.nanos // 1000
    if not INT64_MIN <= found <= INT64_MAX:
        raise Misfit(f"a duration of {value.seconds} s has more than 64 bits of microseconds")
    return found


def _json_text(message: Any) -> str:
    text: str = json_format.MessageToJson(message, indent=None, ensure_ascii=False)
    return text


def _list_convert(convert: Convert) -> Convert:
    return lambda values: [convert(one) for one in values]


def _map_convert(convert: Convert | None) -> Convert:
    if convert is None:
        return lambda values: list(values.items())
    return lambda values: [(key, convert(one)) for key, one in values.items()]


def _struct_convert(converts: list[tuple[str, Convert | None, bool]]) -> Convert:
    always = [(name, convert) for name, convert, has_presence in converts if not has_presence]
    perhaps = [(name, convert) for name, convert, has_presence in converts if has_presence]

    def convert_struct(message: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, convert in always:
            value = getattr(message, name)
            found[name] = value if convert is None else convert(value)
        for name, convert in perhaps:
            if message.HasField(name):
                value = getattr(message, name)
                found[name] = value if convert is None else convert(value)
        return found

    return convert_struct
