"""Where the lengths stand in a request: found by walking the bytes along the table of facts, not by our codec."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from struct import pack

from headrace.wire.schema import FIXED_BYTES, Api, Field
from tests.integration.wire.raw import varint

NULL = -1
_HEADER_BYTES = 8


@dataclass(frozen=True, slots=True)
class Length:
    """One length field of one request."""

    name: str
    start_byte: int
    end_byte: int
    kind: str
    """`array`, `string`, `bytes` or `tags`."""
    content_bytes: int
    """How many bytes of a string or of bytes follow; none are counted for arrays."""
    is_nullable: bool
    is_compact: bool

    @property
    def size_bytes(self) -> int:
        return self.end_byte - self.start_byte

    def replaced(self, payload: bytes, length: int) -> bytes:
        """Return the request with another length here, in the same encoding."""
        if self.is_compact:
            fresh = varint(length + 1 & 0xFFFF_FFFF)
        else:
            fresh = pack(">h" if self.size_bytes == 2 else ">i", length)
        return payload[: self.start_byte] + fresh + payload[self.end_byte :]


def lengths_of(api: Api, version: int, payload: bytes) -> list[Length]:
    """Return every length in a request (the frame without its size), the client id's included."""
    walk = _Walk(api, version, payload)
    return list(walk.all())


class _Walk:
    def __init__(self, api: Api, version: int, payload: bytes) -> None:
        self._structs = {struct.name: struct.fields for struct in api.request.structs}
        self._fields = api.request.fields
        self._version = version
        self._is_flexible = api.is_flexible_in(version)
        self._payload = payload
        self._at = _HEADER_BYTES

    def all(self) -> Iterator[Length]:
        yield from self._sized("client id", "string", is_nullable=True)
        if self._is_flexible:
            yield from self._tags()
        yield from self._struct(self._fields)
        assert self._at == len(self._payload), "the walk has lost its way"

    def _struct(self, fields: Sequence[Field]) -> Iterator[Length]:
        for field in fields:
            if field.is_in(self._version) and field.tag is None:
                yield from self._field(field)
        if self._is_flexible:
            yield from self._tags()

    def _tags(self) -> Iterator[Length]:
        """Pass over tagged fields. Their count is no compact one: what is null elsewhere is a plain zero here."""
        start = self._at
        count = self._take_varint()
        yield Length("tags", start, self._at, "tags", 0, is_nullable=True, is_compact=True)
        for _ in range(count):
            self._take_varint()
            start = self._at
            size = self._take_varint()
            yield Length("tagged field", start, self._at, "tags", size, is_nullable=True, is_compact=True)
            self._at += size

    def _field(self, field: Field) -> Iterator[Length]:
        is_nullable = field.is_nullable_in(self._version)
        if not field.is_array:
            yield from self._one(field, field.type, is_nullable=is_nullable)
            return
        start = self._at
        count = self._take_varint() - 1 if self._is_flexible else self._take_number(4)
        yield Length(field.name, start, self._at, "array", 0, is_nullable, self._is_flexible)
        for _ in range(max(count, 0)):
            # Only an array can be null as a whole; its elements cannot.
            yield from self._one(field, field.element, is_nullable=False)

    def _one(self, field: Field, kind: str, *, is_nullable: bool) -> Iterator[Length]:
        if kind in FIXED_BYTES:
            self._at += FIXED_BYTES[kind]
        elif kind in ("string", "bytes", "records"):
            yield from self._sized(field.name, "string" if kind == "string" else "bytes", is_nullable=is_nullable)
        elif not is_nullable or self._take_number(1) >= 0:
            yield from self._struct(field.fields or self._structs[kind])

    def _sized(self, name: str, kind: str, *, is_nullable: bool) -> Iterator[Length]:
        """Pass over a string or bytes."""
        start = self._at
        is_compact = self._is_flexible and name != "client id"
        size = self._take_varint() - 1 if is_compact else self._take_number(2 if kind == "string" else 4)
        content_bytes = max(size, 0)
        yield Length(name, start, self._at, kind, content_bytes, is_nullable, is_compact)
        self._at += content_bytes

    def _take_number(self, size_bytes: int) -> int:
        self._at += size_bytes
        return int.from_bytes(self._payload[self._at - size_bytes : self._at], "big", signed=True)

    def _take_varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._payload[self._at]
            self._at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
