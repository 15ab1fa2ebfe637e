"""Write the source of a reader: straight-line Python for one message in one version.

Neighbouring fields of fixed size are unpacked together, and with them the first byte of the length that follows.
Must stay true of every reader: a length or count is compared with the bytes that remain before anything of that size
is made; whatever the bytes are, the outcome is a message or a `WireError`; records stay views of the frame.
"""

from struct import Struct, unpack_from
from struct import error as struct_error
from typing import Any

from headrace.wire.errors import WireError, refuse_count, refuse_length, refuse_null, refuse_rest
from headrace.wire.messages import default_of, message_class
from headrace.wire.schema import FIXED_BYTES, FIXED_FORMATS, Field, MessageSchema
from headrace.wire.varint import read_rest

MAX_STRING_BYTES = 0x7FFF
# All elements of all arrays, and all tagged fields, in one request. One can be as small as a byte, and costs some
# hundred as an object: without a limit, a frame of 100 MB of empty names would become gigabytes, and take seconds.
MAX_REQUEST_ELEMENTS = 1 << 18


def skip_tags(data: memoryview, count: int, position: int, end: int) -> int:
    """Pass over `count` tagged fields that nobody here knows; return where they end."""
    for _ in range(count):
        tag = data[position]
        position += 1
        if tag > 127:
            tag, position = read_rest(data, tag, position)
        size = data[position]
        position += 1
        if size > 127:
            size, position = read_rest(data, size, position)
        if size > end - position:
            refuse_length(f"tagged field {tag}", size, position, end)
        position += size
    return position


class ReaderSource:
    """The source of `read(b, p=0)` and the names it needs; `p` is where the message begins in the memoryview `b`.

    The reader of a request also takes `left`, the number of elements that it may have.
    """

    def __init__(self, schema: MessageSchema, version: int) -> None:
        self._schema = schema
        self._version = version
        self._is_flexible = schema.is_flexible_in(version)
        self._is_limited = schema.name.endswith("Request") or schema.name == "RequestHeader"
        self._title = f"{schema.name} v{version}"
        self._message = message_class(schema.name)
        self._lines: list[str] = []
        self._depth = 1
        self._run: list[tuple[str, str]] = []
        self._variables = 0
        self._unpackers: dict[str, str] = {}
        self.names: dict[str, Any] = {
            "WireError": WireError,
            "read_rest": read_rest,
            "refuse_count": refuse_count,
            "refuse_length": refuse_length,
            "refuse_null": refuse_null,
            "refuse_rest": refuse_rest,
            "skip_tags": skip_tags,
            "struct_error": struct_error,
            "unpack_from": unpack_from,
        }

    def render(self) -> str:
        """Return the source."""
        self._emit("end = len(b)")
        self._emit("try:")
        self._depth += 1
        made = self._struct(self._schema.fields, self._message, self._title)
        if self._schema.is_header:
            self._emit(f"return {made}, p")
        elif self._is_limited:
            # Bytes behind a request are passed over, as Apache Kafka's broker does: librdkafka 2.16 asks for all
            # topics with a count of four bytes where Metadata 13 has one byte, and three are left behind.
            self._emit(f"return {made}")
        else:
            self._emit("if p != end:")
            self._emit(f"    refuse_rest({self._title!r}, p, end)")
            self._emit(f"return {made}")
        self._depth -= 1
        self._emit("except (struct_error, IndexError, UnicodeDecodeError) as error:")
        self._emit(f"    raise WireError(f'{self._title} is broken at byte {{p}} of {{end}}: {{error}}') from error")
        limit = f", left={MAX_REQUEST_ELEMENTS}" if self._is_limited else ""
        return f"def read(b, p=0{limit}):\n" + "\n".join(self._lines) + "\n"

    def _struct(self, fields: tuple[Field, ...], made: type[Any], path: str) -> str:
        """Emit what reads a struct; return the expression that makes it, good until the next flush."""
        here = [field for field in fields if field.is_in(self._version)]
        values = {field.name: self._field(field, f"{path} {field.name}") for field in here if field.tag is None}
        tagged = [field for field in here if field.tag is not None]
        if self._is_flexible:
            values |= self._tags(tagged, path)
        self._flush()
        name = self._name(made.__name__, made)
        last = max((place for place, field in enumerate(fields) if field.name in values), default=-1)
        arguments = [values.get(field.name) or self._default(field) for field in fields[: last + 1]]
        return f"{name}({', '.join(arguments)})"

    def _field(self, field: Field, path: str) -> str:
        if field.is_array:
            return self._array(field, path)
        if field.type in FIXED_FORMATS:
            return self._take(FIXED_FORMATS[field.type])
        if field.type in ("string", "bytes", "records"):
            return self._sized(field.type, field, path)
        return self._inner_struct(field, path)

    def _inner_struct(self, field: Field, path: str) -> str:
        fields, made = self._schema.structs[field.element], getattr(self._message, field.element)
        value = self._variable()
        if not field.is_nullable_in(self._version):
            made_by = self._struct(fields, made, path)
            self._emit(f"{value} = {made_by}")
            return value
        marker = self._take("b")
        self._flush()
        self._emit(f"if {marker} < 0:")
        self._emit(f"    {value} = None")
        self._emit("else:")
        self._depth += 1
        self._emit(f"{value} = {self._struct(fields, made, path)}")
        self._depth -= 1
        return value

    def _sized(self, kind: str, field: Field, path: str) -> str:
        """Emit what reads a string, bytes or records."""
        value, end = self._variable(), self._variable()
        length, is_compact = self._length(kind, field)
        is_nullable = field.is_nullable_in(self._version)
        self._null(value, length, is_compact, is_nullable, path)
        self._depth += 1
        self._emit(f"{end} = p + {length}{' - 1' if is_compact else ''}")
        too_long = f" or {length} > {MAX_STRING_BYTES + 1}" if is_compact and kind == "string" else ""
        self._emit(f"if {end} > end{too_long}:")
        self._emit(f"    refuse_length({path!r}, {end} - p, p, end)")
        made = {"string": "str(b[p:{0}], 'utf-8')", "bytes": "bytes(b[p:{0}])", "records": "b[p:{0}]"}[kind]
        self._emit(f"{value} = {made.format(end)}")
        self._emit(f"p = {end}")
        self._depth -= 1
        return value

    def _length(self, kind: str, field: Field) -> tuple[str, bool]:
        """Read a length or count; compact ones are one more than what they count."""
        if not self._is_flexible or field.rigid:
            length = self._take("h" if kind == "string" else "i")
            self._flush()
            return length, False
        length = self._take("B")
        self._flush()
        self._emit(f"if {length} > 127:")
        if kind == "records":
            self._three_byte_varint(length)
        else:
            self._emit(f"    {length}, p = read_rest(b, {length}, p)")
        return length, True

    def _three_byte_varint(self, length: str) -> None:
        """Emit the rest of a varint in place for lengths from 16 KiB to 2 MiB, which most large batches have."""
        self._depth += 1
        self._emit("if b[p] > 127 and b[p + 1] < 128:")
        self._emit(f"    {length} = {length} & 127 | (b[p] & 127) << 7 | b[p + 1] << 14")
        self._emit("    p += 2")
        self._emit("else:")
        self._emit(f"    {length}, p = read_rest(b, {length}, p)")
        self._depth -= 1

    def _null(self, value: str, length: str, is_compact: bool, is_nullable: bool, path: str) -> None:
        """Emit the branch for null and refused lengths, and open the one for a value."""
        if is_compact:
            self._emit(f"if not {length}:")
        elif is_nullable:
            self._emit(f"if {length} == -1:")
        else:
            self._emit(f"if {length} < 0:")
            self._emit(f"    refuse_length({path!r}, {length}, p, end)")
        if is_compact and not is_nullable:
            self._emit(f"    refuse_null({path!r}, p)")
        elif is_nullable:
            self._emit(f"    {value} = None")
            if not is_compact:
                self._emit(f"elif {length} < 0:")
                self._emit(f"    refuse_length({path!r}, {length}, p, end)")
        self._emit("else:")

    def _array(self, field: Field, path: str) -> str:
        value, item = self._variable(), self._variable()
        count, is_compact = self._length("array", field)
        self._null(value, count, is_compact, field.is_nullable_in(self._version), path)
        self._depth += 1
        if is_compact:
            self._emit(f"{count} -= 1")
        least_bytes = self._least_bytes(field.element)
        if self._is_limited:
            self._emit(f"left -= {count}")
            self._emit(f"if {count} * {least_bytes} > end - p or left < 0:")
            self._emit(f"    refuse_count({path!r}, {count}, p, end, left)")
        else:
            self._emit(f"if {count} * {least_bytes} > end - p:")
            self._emit(f"    refuse_length({path!r}, {count}, p, end)")
        if field.element in FIXED_FORMATS and field.element != "uuid":
            self._emit(f"{value} = list(unpack_from(f'>{{{count}}}{FIXED_FORMATS[field.element]}', b, p))")
            self._emit(f"p += {count} * {least_bytes}")
        else:
            self._emit(f"{value} = []")
            self._emit(f"{item} = {value}.append")
            self._emit(f"for _ in range({count}):")
            self._depth += 1
            self._emit(f"{item}({self._element(field, path)})")
            self._depth -= 1
        self._depth -= 1
        return value

    def _element(self, field: Field, path: str) -> str:
        if field.element in self._schema.structs:
            made = getattr(self._message, field.element)
            return self._struct(self._schema.structs[field.element], made, path)
        element = self._field(Field(name=field.name, type=field.element), path)
        self._flush()
        return element

    def _tags(self, tagged: list[Field], path: str) -> dict[str, str]:
        """Emit what reads the tagged fields at the end of a struct; unknown ones are passed over."""
        count = self._take("B")
        self._flush()
        if not tagged:
            self._emit(f"if {count}:")
            self._depth += 1
            self._tag_count(count, path)
            self._emit(f"p = skip_tags(b, {count}, p, end)")
            self._depth -= 1
            return {}
        values = {field.name: self._variable() for field in tagged}
        for field in tagged:
            self._emit(f"{values[field.name]} = {self._default(field)}")
        self._emit(f"if {count}:")
        self._depth += 1
        self._tag_count(count, path)
        self._emit(f"for _ in range({count}):")
        self._depth += 1
        tag, size, end = self._variable(), self._variable(), self._variable()
        for number in (tag, size):
            self._emit(f"{number} = b[p]")
            self._emit("p += 1")
            self._emit(f"if {number} > 127:")
            self._emit(f"    {number}, p = read_rest(b, {number}, p)")
        self._emit(f"{end} = p + {size}")
        self._emit(f"if {end} > end:")
        self._emit(f"    refuse_length({path + ' tagged fields'!r}, {size}, p, end)")
        for place, field in enumerate(tagged):
            self._emit(f"{'elif' if place else 'if'} {tag} == {field.tag}:")
            self._depth += 1
            read = self._field(field, f"{path} {field.name}")
            self._flush()
            self._emit(f"{values[field.name]} = {read}")
            self._emit(f"if p != {end}:")
            self._emit(f"    refuse_rest({path + ' ' + field.name!r}, p, {end})")
            self._depth -= 1
        self._emit("else:")
        self._emit(f"    p = {end}")
        self._depth -= 2
        return values

    def _tag_count(self, count: str, path: str) -> None:
        """Emit the rest of the number of tagged fields, and its limit: each takes time, if no memory."""
        self._emit(f"if {count} > 127:")
        self._emit(f"    {count}, p = read_rest(b, {count}, p)")
        if self._is_limited:
            self._emit(f"left -= {count}")
            self._emit("if left < 0:")
            self._emit(f"    refuse_count({path + ' tagged fields'!r}, {count}, p, end, left)")

    def _least_bytes(self, element: str) -> int:
        """Return the fewest bytes that one element of an array takes in this version."""
        least = self._least_field_bytes(Field(name="element", type=element))
        assert least > 0, f"{self._title}: a count of {element} would not be bounded by the bytes that remain"
        return least

    def _least_field_bytes(self, field: Field) -> int:
        if field.type in FIXED_BYTES:
            return FIXED_BYTES[field.type]
        if field.is_array or field.type in ("string", "bytes", "records"):
            return 1 if self._is_flexible else 2 if field.type == "string" else 4
        if field.is_nullable_in(self._version):
            return 1
        fields = self._schema.structs[field.type]
        inner = sum(self._least_field_bytes(f) for f in fields if f.tag is None and f.is_in(self._version))
        return inner + (1 if self._is_flexible else 0)

    def _default(self, field: Field) -> str:
        value = default_of(field, vars(self._message))
        if isinstance(value, list):
            return "[]"
        return (
            self._name(f"default_{field.attribute}", value) if field.element in self._schema.structs else repr(value)
        )

    def _take(self, fmt: str) -> str:
        variable = self._variable()
        self._run.append((fmt, variable))
        return variable

    def _flush(self) -> None:
        if not self._run:
            return
        if [fmt for fmt, _ in self._run] == ["B"]:
            # A byte alone is a third cheaper to index than to unpack.
            self._emit(f"{self._run.pop()[1]} = b[p]")
            self._emit("p += 1")
            return
        layout = ">" + "".join(fmt for fmt, _ in self._run)
        unpacker = self._unpackers.get(layout)
        if unpacker is None:
            unpacker = self._unpackers[layout] = f"unpack_{len(self._unpackers)}"
            self.names[unpacker] = Struct(layout).unpack_from
        self._emit(f"{', '.join(variable for _, variable in self._run)}, = {unpacker}(b, p)")
        self._emit(f"p += {Struct(layout).size}")
        self._run.clear()

    def _name(self, name: str, value: Any) -> str:
        """Make a value known to the source, under a name of its own."""
        while self.names.get(name, value) is not value:
            name += "_"
        self.names[name] = value
        return name

    def _variable(self) -> str:
        self._variables += 1
        return f"v{self._variables}"

    def _emit(self, line: str) -> None:
        self._lines.append("    " * self._depth + line)
