"""JSON Schema: objects become structs, and every value is checked against the whole schema before it does.

    integer → long          number → double       boolean → boolean
    string → string, with format date-time → timestamptz, with format date → date
    array of one kind of items → list             object with properties → struct
    object with additionalProperties alone → map of string
    oneOf or anyOf of one thing and null, or a type list with null → that thing, nullable
    anything else → string: the JSON text of the value

`$ref` leads to places in the schema itself; one that leads to another document, or round in a circle, is refused.
Properties that the schema does not name are not in `data`; the raw value has them.

Must stay true: what the validator has let through converts, or is a misfit; nothing is ever fetched from a network.
"""

import datetime
import json
from collections.abc import Mapping
from typing import Any

import jsonschema_rs
import msgspec

from headrace.tables.typed.codec import Convert, Misfit, micros, micros_of
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

_STRING = plain(TypeKind.STRING)
_FORMATS = {"date-time": TypeKind.TIMESTAMPTZ, "date": TypeKind.DATE}
_SHAPES = frozenset(
    {"type", "properties", "items", "enum", "const", "oneOf", "anyOf", "$ref", "additionalProperties"}
)

Node = tuple[FieldType, Convert | None, bool]
"""A type, what converts its values (`None`: they are taken as they are), and whether null is one of them."""


class JsonCodec:
    """`Codec` of a JSON Schema."""

    def __init__(self, text: str) -> None:
        """Raises `InvalidSchema`."""
        schema = _parsed(text)
        _refuse_other_documents(schema)
        try:
            self._validator = jsonschema_rs.validator_for(schema, offline=True, validate_formats=False)
        except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
            raise InvalidSchema(f"it is no JSON Schema: {getattr(error, 'message', error)}") from error
        struct, convert, _ = _Reader(schema).node(schema, "the schema", ())
        if struct.kind is not TypeKind.STRUCT:
            raise InvalidSchema("it does not describe an object with properties, so there are no fields for columns")
        check_struct(struct)
        self.struct = struct
        self._convert = convert

    def decode(self, value: bytes) -> dict[str, Any]:
        try:
            found = msgspec.json.decode(value)
            if not self._validator.is_valid(found):
                raise Misfit(self._problem(found))
            return found if self._convert is None else self._convert(found)  # type: ignore[no-any-return]
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Misfit(f"it is not JSON: {error}") from error
        except RecursionError as error:
            raise Misfit("it is nested too deep") from error
        except (ValueError, OverflowError) as error:
            raise Misfit(f"it cannot be taken: {error}") from error

    def _problem(self, found: Any) -> str:
        error = next(self._validator.iter_errors(found), None)
        if error is None:
            return "it does not match the schema"
        where = ".".join(map(str, error.instance_path))
        return f"{where or 'the value'}: {error.message}"


def _parsed(text: str) -> Any:
    try:
        schema = msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        hint = "; a .proto file needs headrace.table.schema.type=protobuf" if "message" in text else ""
        raise InvalidSchema(f"it is not JSON: {error}{hint}") from error
    if isinstance(schema, dict) and schema.get("type") in ("record", "enum", "fixed"):
        raise InvalidSchema(
            f"its type is {schema['type']}, which is Avro's: set headrace.table.schema.type=avro for an Avro schema"
        )
    if not isinstance(schema, dict):
        raise InvalidSchema("it is not a JSON object")
    return schema


def _refuse_other_documents(schema: Any) -> None:
    """Refuse references that leave the schema, wherever they stand: nobody is asked for another one."""
    ahead = [schema]
    while ahead:
        found = ahead.pop()
        if isinstance(found, dict):
            for keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
                target = found.get(keyword)
                if isinstance(target, str) and not target.startswith("#"):
                    raise InvalidSchema(f"{keyword} {target!r} leads to another document: copy it into $defs")
            ahead.extend(found.values())
        elif isinstance(found, list):
            ahead.extend(found)


class _Reader:
    """Walks a schema from its root. `path` are the references that led to where it stands."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root

    def node(self, schema: Any, where: str, path: tuple[str, ...]) -> Node:
        if where.count(".") > MAX_DEPTH:
            raise InvalidSchema(f"{where} lies deeper than {MAX_DEPTH} levels")
        while isinstance(schema, dict) and isinstance(schema.get("$ref"), str):
            target = schema["$ref"]
            if target in path or target == "#":
                raise InvalidSchema(f"{where} leads back to {target}: a table cannot hold a type that holds itself")
            path = (*path, target)
            schema = {**self._resolved(target, where), **{k: v for k, v in schema.items() if k != "$ref"}}
        if not isinstance(schema, dict):
            return _any()
        for keyword in ("oneOf", "anyOf"):
            if keyword in schema:
                return self._choice(schema, keyword, where, path)
        return self._typed(schema, where, path)

    def _resolved(self, target: str, where: str) -> dict[str, Any]:
        found: Any = self._root
        for step in target[1:].strip("/").split("/"):
            step = step.replace("~1", "/").replace("~0", "~")
            found = found.get(step) if isinstance(found, dict) else None
        if not isinstance(found, dict):
            raise InvalidSchema(f"{where} refers to {target}, which is not in the schema")
        return found

    def _choice(self, schema: Mapping[str, Any], keyword: str, where: str, path: tuple[str, ...]) -> Node:
        choices = schema[keyword]
        others = [one for one in choices if one != {"type": "null"}] if isinstance(choices, list) else []
        if len(others) == 1 and not (_SHAPES - {keyword}) & schema.keys():
            found, convert, nullable = self.node(others[0], where, path)
            return found, convert, nullable or len(others) < len(choices)
        return _any()

    def _typed(self, schema: Mapping[str, Any], where: str, path: tuple[str, ...]) -> Node:
        named = schema.get("type")
        kinds = {named} if isinstance(named, str) else set(named) if isinstance(named, list) else set()
        nullable = "null" in kinds
        kinds.discard("null")
        if kinds == {"integer", "number"}:
            kinds = {"number"}
        if len(kinds) != 1:
            values = schema.get("enum", [schema.get("const")])
            strings = [one for one in values if one is not None]
            if not kinds and strings and all(isinstance(one, str) for one in strings):
                return _STRING, None, len(strings) < len(values)
            return _any()
        kind = kinds.pop()
        if kind == "object":
            return self._object(schema, where, path, nullable)
        if kind == "array":
            return self._array(schema, where, path, nullable)
        return _scalar(kind, schema.get("format"), nullable)

    def _array(self, schema: Mapping[str, Any], where: str, path: tuple[str, ...], nullable: bool) -> Node:
        items = schema.get("items")
        if not isinstance(items, dict) or "prefixItems" in schema:
            return _any()
        element, convert, may_be_null = self.node(items, f"{where}.items", path)
        found = list_of(element, required=not may_be_null)
        return found, None if convert is None else _list_convert(convert), nullable

    def _object(self, schema: Mapping[str, Any], where: str, path: tuple[str, ...], nullable: bool) -> Node:
        properties = schema.get("properties")
        others = schema.get("additionalProperties")
        if not properties:
            if isinstance(others, dict) and "patternProperties" not in schema:
                value, convert, may_be_null = self.node(others, f"{where}.additionalProperties", path)
                found = map_of(_STRING, value, required=not may_be_null)
                return found, None if convert is None else _map_convert(convert), nullable
            return _any(nullable)
        required = set(schema.get("required", ()))
        fields: list[TypedField] = []
        converts: list[tuple[str, str, Convert | None]] = []
        for name, inner in properties.items():
            if inner is False:
                continue
            column = name.replace(".", "_")
            found, convert, may_be_null = self.node(inner, f"{where}.{name}", path)
            fields.append(TypedField(column, found, name in required and not may_be_null))
            converts.append((name, column, convert))
        if not fields:
            return _any(nullable)
        if all(convert is None and name == column for name, column, convert in converts):
            return FieldType(TypeKind.STRUCT, tuple(fields)), None, nullable
        return FieldType(TypeKind.STRUCT, tuple(fields)), _struct_convert(converts), nullable


def _any(nullable: bool = True) -> Node:
    return _STRING, _text_of, nullable


def _scalar(kind: str, format_: object, nullable: bool) -> Node:
    if kind == "string":
        wanted = _FORMATS.get(format_, TypeKind.STRING) if isinstance(format_, str) else TypeKind.STRING
        converts: dict[TypeKind, Convert] = {TypeKind.TIMESTAMPTZ: _time, TypeKind.DATE: _date}
        return plain(wanted), _unless_null(converts.get(wanted)), nullable
    if kind == "integer":
        return plain(TypeKind.LONG), _whole, nullable
    if kind == "number":
        return plain(TypeKind.DOUBLE), _real, nullable
    if kind == "boolean":
        return plain(TypeKind.BOOLEAN), None, nullable
    return _any()


def _unless_null(convert: Convert | None) -> Convert | None:
    return None if convert is None else lambda value: None if value is None else convert(value)


def _list_convert(convert: Convert) -> Convert:
    return lambda value: None if value is None else [convert(one) for one in value]


def _map_convert(convert: Convert) -> Convert:
    return lambda value: None if value is None else {name: convert(one) for name, one in value.items()}


def _struct_convert(converts: list[tuple[str, str, Convert | None]]) -> Convert:
    """Convert an object in place: it was decoded a moment ago, and nobody else has it."""
    # Most fields are numbers of the right class already: a look at the class costs less than a call.
    wholes = [name for name, _, convert in converts if convert is _whole]
    reals = [name for name, _, convert in converts if convert is _real]
    others = [(name, convert) for name, _, convert in converts if convert not in (None, _whole, _real)]
    renamed = [(name, column) for name, column, _ in converts if name != column]

    def convert_struct(value: Any) -> Any:
        if value is None:
            return None
        for name in wholes:
            if name in value and type(value[name]) is not int:
                value[name] = _whole(value[name])
        for name in reals:
            if name in value and type(value[name]) is not float:
                value[name] = _real(value[name])
        for name, convert in others:
            if name in value:
                value[name] = convert(value[name])
        for name, column in renamed:
            # Whatever else has the column's name is a property that the schema does not know.
            value[column] = value.pop(name, None)
        return value

    return convert_struct


def _whole(value: int | float | None) -> int | None:
    """Return a whole number; whether it fits into 64 bits is for the column to say."""
    return value if value is None or type(value) is int else int(value)


def _real(value: int | float | None) -> float | None:
    return None if value is None else float(value)


def _time(value: str) -> int:
    try:
        found = msgspec.convert(value, datetime.datetime)
    except msgspec.ValidationError as error:
        raise Misfit(f"{value!r} is no date-time") from error
    if found.tzinfo is None:
        raise Misfit(f"the date-time {value!r} has no offset from UTC")
    return micros(micros_of(found))  # An offset may lead out of the years that Python has.


def _date(value: str) -> datetime.date:
    try:
        return msgspec.convert(value, datetime.date)
    except msgspec.ValidationError as error:
        raise Misfit(f"{value!r} is no date") from error


def _text_of(value: Any) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
