"""A `.proto` file becomes a descriptor, so that protobuf's own runtime reads the values: proto2 and proto3.

Types are named as they stand in the file; the runtime's pool finds them by protobuf's scoping rules. Services,
options, extensions and reserved ranges change no value and are left out. Only the well-known types can be imported.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

from antlr4.error.ErrorListener import ErrorListener
from google.protobuf import (
    any_pb2,
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)
from proto_schema_parser import ast
from proto_schema_parser.parser import Parser

from headrace.tables.typed.model import MAX_DEPTH, InvalidSchema

FILE_NAME: Final = "topic.proto"

WELL_KNOWN: Final = {
    module.DESCRIPTOR.name: module
    for module in (any_pb2, duration_pb2, empty_pb2, field_mask_pb2, struct_pb2, timestamp_pb2, wrappers_pb2)
}

_Field: Final = descriptor_pb2.FieldDescriptorProto
_SCALARS: Final[dict[str, int]] = {
    name: getattr(_Field, f"TYPE_{name.upper()}")
    for name in (
        *("double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string", "bytes", "uint32"),
        *("sfixed32", "sfixed64", "sint32", "sint64"),
    )
}


def message_descriptor(text: str, message: str) -> Any:
    """Return the descriptor of one message of a file: the one that is named, or the only one at its top.

    Raises `InvalidSchema`.
    """
    file = _file_descriptor(text)
    pool = descriptor_pool.DescriptorPool()
    try:
        for name in file.dependency:
            _add_well_known(pool, name)
        pool.Add(file)
        found = pool.FindFileByName(FILE_NAME)
    except (TypeError, KeyError, ValueError) as error:
        raise InvalidSchema(f"it is no valid .proto file: {error}") from error
    return _chosen(found, message)


def message_index(descriptor: Any) -> list[int]:
    """Return a message's place in its file, as Confluent's framing names it: from the outermost message inwards."""
    path: list[int] = []
    while descriptor is not None:
        parent = descriptor.containing_type
        around = descriptor.file.message_types_by_name.values() if parent is None else parent.nested_types
        written = [one.full_name for one in around if not one.GetOptions().map_entry]
        path.append(written.index(descriptor.full_name))
        descriptor = parent
    return path[::-1]


def _add_well_known(pool: Any, name: str) -> None:
    file = descriptor_pb2.FileDescriptorProto()
    WELL_KNOWN[name].DESCRIPTOR.CopyToProto(file)
    pool.Add(file)


def _chosen(file: Any, wanted: str) -> Any:
    found = {descriptor.full_name: descriptor for descriptor in _messages(file.message_types_by_name.values())}
    if not found:
        raise InvalidSchema("it has no message")
    if not wanted:
        top = list(file.message_types_by_name.values())
        if len(top) == 1:
            return top[0]
        raise InvalidSchema(
            f"it has the messages {', '.join(sorted(file.message_types_by_name))}: say which one the values are with"
            " headrace.table.schema.message"
        )
    for name in (wanted, f"{file.package}.{wanted}"):
        if name in found:
            return found[name]
    raise InvalidSchema(f"it has no message {wanted}; it has {', '.join(sorted(found))}")


def _messages(descriptors: Any) -> Iterator[Any]:
    for descriptor in descriptors:
        if not descriptor.GetOptions().map_entry:
            yield descriptor
            yield from _messages(descriptor.nested_types)


def _file_descriptor(text: str) -> Any:
    parser = Parser(setup_lexer=_be_strict, setup_parser=_be_strict)
    try:
        parsed = parser.parse(text)
    except InvalidSchema:
        raise
    except Exception as error:  # The generated parser raises whatever it stumbles over.
        raise InvalidSchema(f"it is no .proto file: {type(error).__name__}: {error}") from error
    if parsed.edition is not None or parsed.syntax not in (None, "proto2", "proto3"):
        raise InvalidSchema(f"its syntax is {parsed.edition or parsed.syntax}; proto2 and proto3 are read")
    file = descriptor_pb2.FileDescriptorProto(name=FILE_NAME, syntax=parsed.syntax or "proto2")
    is_proto3 = parsed.syntax == "proto3"
    for element in parsed.file_elements:
        if isinstance(element, ast.Package):
            file.package = element.name
        elif isinstance(element, ast.Import):
            if element.name not in WELL_KNOWN:
                raise InvalidSchema(
                    f"it imports {element.name}: copy its messages into this file; only {', '.join(WELL_KNOWN)} can"
                    " be imported"
                )
            if element.name not in file.dependency:
                file.dependency.append(element.name)
        elif isinstance(element, ast.Message):
            _fill_message(file.message_type.add(), element, is_proto3, 1)
        elif isinstance(element, ast.Enum):
            _fill_enum(file.enum_type.add(), element)
    return file


class _Strict(ErrorListener):  # type: ignore[misc]
    """Ends at the first mistake: the parser would print it, leave out what it did not understand and go on."""

    def syntaxError(  # noqa: N802
        self,
        recognizer: Any,
        offendingSymbol: Any,  # noqa: N803
        line: int,
        column: int,
        msg: str,
        e: Any,
    ) -> None:
        raise InvalidSchema(f"it is no .proto file: line {line}, column {column + 1}: {msg}")


def _be_strict(recognizer: Any) -> None:
    recognizer.removeErrorListeners()
    recognizer.addErrorListener(_Strict())


def _fill_message(target: Any, message: ast.Message | ast.Group, is_proto3: bool, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise InvalidSchema(f"the message {message.name} lies deeper than {MAX_DEPTH} levels")
    target.name = message.name
    optional: list[Any] = []
    for element in message.elements:
        if isinstance(element, ast.Field):
            field = _field(target, element)
            if is_proto3 and element.cardinality is ast.FieldCardinality.OPTIONAL:
                optional.append(field)
        elif isinstance(element, ast.MapField):
            _map_field(target, element)
        elif isinstance(element, ast.OneOf):
            number = len(target.oneof_decl)
            target.oneof_decl.add(name=element.name)
            for inner in element.elements:
                if isinstance(inner, ast.Field):
                    _field(target, inner).oneof_index = number
                elif isinstance(inner, ast.Group):
                    raise InvalidSchema(f"{message.name}.{inner.name} is a group, which protobuf has given up")
        elif isinstance(element, ast.Message):
            _fill_message(target.nested_type.add(), element, is_proto3, depth + 1)
        elif isinstance(element, ast.Enum):
            _fill_enum(target.enum_type.add(), element)
        elif isinstance(element, ast.Group):
            raise InvalidSchema(f"{message.name}.{element.name} is a group, which protobuf has given up")
    for field in optional:
        # An optional field of proto3 is the only one in a oneof of its own: protobuf's own rule.
        field.proto3_optional = True
        field.oneof_index = len(target.oneof_decl)
        target.oneof_decl.add(name=f"_{field.name}")


_LABELS: Final = {
    ast.FieldCardinality.REQUIRED: _Field.LABEL_REQUIRED,
    ast.FieldCardinality.REPEATED: _Field.LABEL_REPEATED,
}


def _field(target: Any, element: ast.Field) -> Any:
    label = _LABELS.get(element.cardinality, _Field.LABEL_OPTIONAL) if element.cardinality else _Field.LABEL_OPTIONAL
    field = target.field.add(name=element.name, number=element.number, label=label)
    _set_type(field, element.type)
    for option in element.options:
        if option.name == "packed" and isinstance(option.value, bool):
            field.options.packed = option.value
    return field


def _set_type(field: Any, name: str) -> None:
    if name in _SCALARS:
        field.type = _SCALARS[name]
    else:
        field.type_name = name


def _map_field(target: Any, element: ast.MapField) -> None:
    entry = target.nested_type.add(name=_entry_name(element.name))
    entry.options.map_entry = True
    add = partial(entry.field.add, label=_Field.LABEL_OPTIONAL)
    _set_type(add(name="key", number=1), element.key_type)
    _set_type(add(name="value", number=2), element.value_type)
    target.field.add(
        name=element.name,
        number=element.number,
        label=_Field.LABEL_REPEATED,
        type=_Field.TYPE_MESSAGE,
        type_name=entry.name,
    )


def _entry_name(name: str) -> str:
    """Return what protobuf calls the message of a map's entries."""
    words: Sequence[str] = name.split("_")
    return "".join(word[:1].upper() + word[1:] for word in words) + "Entry"


def _fill_enum(target: Any, enum: ast.Enum) -> None:
    target.name = enum.name
    for element in enum.elements:
        if isinstance(element, ast.EnumValue):
            target.value.add(name=element.name, number=element.number)
        elif isinstance(element, ast.Option) and element.name == "allow_alias" and element.value is True:
            target.options.allow_alias = True
