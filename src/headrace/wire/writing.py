"""Write the source of a writer: straight-line Python for one message in one version.

A writer appends pieces to a list and copies no records. Neighbouring values of fixed size, arrays of numbers among
them, are packed together. Structs that hold things which are mostly empty (errors, aborted transactions, tags) have
a short way for when all of these are empty.
"""

from struct import Struct
from struct import error as struct_error
from typing import Any, NamedTuple

from headrace.wire.errors import WireError, refuse_uuid, refuse_value
from headrace.wire.messages import Buffer, default_of, message_class
from headrace.wire.packing import Packers
from headrace.wire.reading import MAX_STRING_BYTES
from headrace.wire.schema import FIXED_FORMATS, UUID_BYTES, Field, MessageSchema
from headrace.wire.varint import ONE_BYTE, varint

# There are no replicas to list: replicas and in-sync replicas are one node, the leader, and these are none.
USUALLY_EMPTY = frozenset({"OfflineReplicas", "EligibleLeaderReplicas", "LastKnownElr"})


def string_varint(length: int) -> bytes:
    """Return the bytes of a compact string's length that does not fit into one byte."""
    if length > MAX_STRING_BYTES + 1:
        raise WireError(f"a string of {length - 1} bytes is longer than the {MAX_STRING_BYTES} that Kafka allows")
    return varint(length)


def records_bytes(parts: list[Buffer]) -> int:
    """Return how many bytes records in several parts have."""
    return sum(map(len, parts))


def put_parts(parts: list[Buffer], out: list[Buffer], cuts: list[int]) -> None:
    """Append records as they are, and remember where: what lies between the cuts is joined later, records never."""
    for part in parts:
        if part:
            cuts.append(len(out))
            out.append(part)


class Item(NamedTuple):
    """A value in a run: what it is to `struct` (or to `Packers`, if it is an array) and the expression for it."""

    fmt: str
    value: str
    # For an array of numbers: the variable that has it, and the length that it usually has.
    content: str = ""
    usual_length: int = 0


class WriterSource:
    """The source of `write(m, out, cuts)`, which appends message `m` to `out`, and the names it needs."""

    def __init__(self, schema: MessageSchema, version: int) -> None:
        self._schema = schema
        self._version = version
        self._is_flexible = schema.is_flexible_in(version)
        self._title = f"{schema.name} v{version}"
        self._message = message_class(schema.name)
        self._lines: list[str] = []
        self._depth = 1
        self._run: list[Item] = []
        self._variables = 0
        self._packers: dict[str, str] = {}
        self.names: dict[str, Any] = {
            "ONE_BYTE": ONE_BYTE,
            "WireError": WireError,
            "put_parts": put_parts,
            "records_bytes": records_bytes,
            "refuse_uuid": refuse_uuid,
            "refuse_value": refuse_value,
            "string_varint": string_varint,
            "struct_error": struct_error,
            "varint": varint,
        }

    def render(self) -> str:
        """Return the source."""
        self._emit("w = out.append")
        self._emit("try:")
        self._depth += 1
        self._struct(self._schema.fields, "m", self._title)
        self._flush()
        self._emit("pass")
        self._depth -= 1
        self._emit("except (struct_error, AttributeError, TypeError, ValueError) as error:")
        self._emit(f"    raise WireError(f'{self._title} cannot be written: {{error}}') from error")
        return "def write(m, out, cuts):\n" + "\n".join(self._lines) + "\n"

    def _struct(self, fields: tuple[Field, ...], owner: str, path: str) -> None:
        for field in fields:
            if field.tag is None or not field.is_in(self._version):
                self._struct_part(field, owner, path)
        if self._is_flexible:
            tagged = [field for field in fields if field.tag is not None and field.is_in(self._version)]
            self._tags(sorted(tagged, key=lambda field: field.tag or 0), owner, path)

    def _element_struct(self, fields: tuple[Field, ...], owner: str, path: str) -> None:
        """Emit an element of an array, with the short way if it has one."""
        mostly_empty = [field for field in fields if field.is_in(self._version) and self._is_mostly_empty(field)]
        if len(mostly_empty) < 2:
            self._struct(fields, owner, path)
            self._flush()
            return
        self._flush()
        conditions = []
        for field in mostly_empty:
            value = self._variable()
            self._emit(f"{value} = {owner}.{field.attribute}")
            conditions.append(self._is_not_empty(field, value))
        self._emit(f"if {' or '.join(f'({condition})' for condition in conditions)}:")
        self._depth += 1
        self._struct(fields, owner, path)
        self._flush()
        self._depth -= 1
        self._emit("else:")
        self._depth += 1
        for field in fields:
            if field not in mostly_empty:
                self._struct_part(field, owner, path)
            elif field.tag is None:
                self._empty(field, f"{owner}.{field.attribute}")
        if self._is_flexible:
            self._put("B", "0")
        self._flush()
        self._depth -= 1

    def _struct_part(self, field: Field, owner: str, path: str) -> None:
        if field.is_in(self._version):
            self._field(field, f"{owner}.{field.attribute}", f"{path} {field.name}")
        elif not field.ignorable:
            self._emit(f"if {self._is_set(field, f'{owner}.{field.attribute}')}:")
            self._emit(f"    refuse_value({path + ' ' + field.name!r})")

    def _is_mostly_empty(self, field: Field) -> bool:
        if field.tag is not None:
            return True
        if field.is_array:
            return field.element in self._schema.structs
        return field.type == "string" and field.is_nullable_in(self._version)

    def _is_not_empty(self, field: Field, value: str) -> str:
        if field.tag is not None:
            return self._is_set(field, value)
        # A null that may not be is caught on the long way.
        return value if field.is_nullable_in(self._version) else f"{value} or {value} is None"

    def _empty(self, field: Field, value: str) -> None:
        """Put the length of something that is empty or null."""
        is_nullable = field.is_nullable_in(self._version)
        if self._is_flexible and not field.rigid:
            self._put("B", f"0 if {value} is None else 1" if is_nullable else "1")
        else:
            self._put("h" if field.type == "string" else "i", f"-1 if {value} is None else 0" if is_nullable else "0")

    def _field(self, field: Field, value: str, path: str) -> None:
        if field.is_array:
            self._array(field, value, path)
        elif field.type in FIXED_FORMATS:
            if field.type == "uuid":
                # `struct` would pad or cut it without a word.
                self._emit(f"if len({value}) != {UUID_BYTES}:")
                self._emit(f"    refuse_uuid({path!r}, {value})")
            self._put(FIXED_FORMATS[field.type], value)
        elif field.type in ("string", "bytes", "records"):
            self._sized(field, value)
        else:
            self._inner_struct(field, value, path)

    def _inner_struct(self, field: Field, value: str, path: str) -> None:
        inner = self._variable()
        self._emit(f"{inner} = {value}")
        fields = self._schema.structs[field.element]
        if not field.is_nullable_in(self._version):
            self._struct(fields, inner, path)
            return
        self._flush()
        self._emit(f"if {inner} is None:")
        self._emit("    w(b'\\xff')")
        self._emit("else:")
        self._depth += 1
        self._put("b", "1")
        self._struct(fields, inner, path)
        self._flush()
        self._depth -= 1

    def _sized(self, field: Field, value: str) -> None:
        """Put a string, bytes or records."""
        content, length = self._variable(), self._variable()
        is_compact = self._is_flexible and not field.rigid
        converted = f"{content}.encode()" if field.type == "string" else content
        counted = f"len({content})"
        if field.type == "records":
            counted = f"(len({content}) if {content}.__class__ is not list else records_bytes({content}))"
        more = " + 1" if is_compact else ""
        self._emit(f"{content} = {value}")
        if field.is_nullable_in(self._version):
            self._emit(f"if {content} is None:")
            self._emit(f"    {content} = b''")
            self._emit(f"    {length} = {0 if is_compact else -1}")
            self._emit("else:")
            self._depth += 1
        if converted != content:
            self._emit(f"{content} = {converted}")
        self._emit(f"{length} = {counted}{more}")
        if field.is_nullable_in(self._version):
            self._depth -= 1
        if is_compact:
            self._put_varint(length, "string_varint" if field.type == "string" else "varint")
        else:
            self._put("h" if field.type == "string" else "i", length)
            self._flush()
        self._emit(f"if {content}:")
        if field.type == "records":
            self._emit(f"    if {content}.__class__ is list:")
            self._emit(f"        put_parts({content}, out, cuts)")
            self._emit("    else:")
            self._emit("        cuts.append(len(out))")
            self._emit(f"        w({content})")
        else:
            self._emit(f"    w({content})")

    def _array(self, field: Field, value: str, path: str) -> None:
        content, length = self._variable(), self._variable()
        is_compact = self._is_flexible and not field.rigid
        self._emit(f"{content} = {value}")
        if field.is_nullable_in(self._version):
            self._emit(f"if {content} is None:")
            self._emit(f"    {content} = ()")
            self._emit(f"    {length} = {0 if is_compact else -1}")
            self._emit("else:")
            self._emit(f"    {length} = len({content}){' + 1' if is_compact else ''}")
        else:
            self._emit(f"{length} = len({content}){' + 1' if is_compact else ''}")
        if field.element in FIXED_FORMATS and field.element != "uuid":
            fmt = f"{'B' if is_compact else 'i'}*{FIXED_FORMATS[field.element]}"
            self._run.append(Item(fmt, length, content, 0 if field.name in USUALLY_EMPTY else 1))
            return
        if is_compact:
            self._put_varint(length, "varint")
        else:
            self._put("i", length)
            self._flush()
        item = self._variable()
        self._emit(f"for {item} in {content}:")
        self._depth += 1
        if field.element in self._schema.structs:
            self._element_struct(self._schema.structs[field.element], item, path)
        else:
            self._field(Field(name=field.name, type=field.element), item, path)
            self._flush()
        self._depth -= 1

    def _tags(self, tagged: list[Field], owner: str, path: str) -> None:
        """Put the tagged fields that are not at their default, in the order of their tags."""
        if not tagged:
            self._put("B", "0")
            return
        self._flush()
        count, pieces = self._variable(), self._variable()
        self._emit(f"{count} = 0")
        self._emit(f"{pieces} = []")
        for field in tagged:
            value = self._variable()
            self._emit(f"{value} = {owner}.{field.attribute}")
            self._emit(f"if {self._is_set(field, value)}:")
            self._depth += 1
            self._emit(f"{count} += 1")
            self._emit("w, outer = (tag_out := []).append, w")
            self._field(field, value, f"{path} {field.name}")
            self._flush()
            self._emit("w = outer")
            self._emit("tag_body = b''.join(tag_out)")
            self._emit(f"{pieces} += ({varint(field.tag or 0)!r}, varint(len(tag_body)), tag_body)")
            self._depth -= 1
        self._emit(f"w(ONE_BYTE[{count}])")
        self._emit(f"out += {pieces}")

    def _is_set(self, field: Field, value: str) -> str:
        """Return the condition under which a value is not the field's default."""
        default = default_of(field, vars(self._message))
        if isinstance(default, list):
            return f"{value} is None or {value}"
        if default is None:
            return f"{value} is not None"
        if field.element in self._schema.structs:
            name = f"default_{field.element}"
            self.names[name] = default
            return f"{value} is not {name} and {value} != {name}"
        return f"{value} != {default!r}"

    def _put(self, fmt: str, value: str) -> None:
        self._run.append(Item(fmt, value))

    def _put_varint(self, length: str, make: str) -> None:
        """Put a compact length, which nearly always fits into one byte, and end the run."""
        if not self._run:
            self._emit(f"w(ONE_BYTE[{length}] if {length} < 128 else {make}({length}))")
            return
        before = list(self._run)
        self._emit(f"if {length} < 128:")
        self._depth += 1
        self._put("B", length)
        self._flush()
        self._depth -= 1
        self._emit("else:")
        self._depth += 1
        self._run = before
        self._flush()
        self._emit(f"w({make}({length}))")
        self._depth -= 1

    def _flush(self) -> None:
        if not self._run:
            return
        arrays = [item for item in self._run if item.content]
        if arrays:
            self._emit(f"if {' and '.join(f'len({item.content}) == {item.usual_length}' for item in arrays)}:")
            self._depth += 1
            self._pack_usual()
            self._depth -= 1
            self._emit("else:")
            lengths = ", ".join(f"len({item.content})" for item in arrays)
            packer = self._packer("".join(item.fmt for item in self._run), has_arrays=True)
            values = ", ".join(f"{item.value}, *{item.content}" if item.content else item.value for item in self._run)
            self._emit(f"    w({packer}[{lengths},]({values}))")
        else:
            self._pack_usual()
        self._run.clear()

    def _pack_usual(self) -> None:
        """Emit what packs a run whose arrays have their usual lengths, twice as fast as any lengths."""
        layout, values = "", []
        for item in self._run:
            layout += item.fmt[0] if item.content else item.fmt
            values.append(item.value)
            if item.usual_length:
                layout += item.fmt[-1]
                values.append(f"{item.content}[0]")
        self._emit(f"w({self._packer(layout, has_arrays=False)}({', '.join(values)}))")

    def _packer(self, layout: str, *, has_arrays: bool) -> str:
        name = self._packers.get(layout)
        if name is None:
            name = self._packers[layout] = f"pack_{len(self._packers)}"
            self.names[name] = Packers(layout) if has_arrays else Struct(">" + layout).pack
        return name

    def _variable(self) -> str:
        self._variables += 1
        return f"v{self._variables}"

    def _emit(self, line: str) -> None:
        self._lines.append("    " * self._depth + line)
