"""How a value lies in the metadata store: one version byte, MessagePack, and a CRC-32C over both.

Must stay true: a value that cannot be read is never taken for one that is absent. A newer version is
refused with `Unsupported`, anything else that does not fit raises `Corrupt`, and both name the key.

The CRC stands at the end and little-endian, because then the CRC of the whole value is a constant: one call and one
comparison check it, without cutting the value up. Hundreds of values are read per commit.
"""

from typing import Generic, TypeVar

import msgspec
from crc32c import crc32c

from headrace.errors import Corrupt, Unsupported
from headrace.metadata.port import Key, Seen

T = TypeVar("T")

_CRC_BYTES = 4
_RESIDUE = crc32c(b"\0" + crc32c(b"\0").to_bytes(_CRC_BYTES, "little"))
"""The CRC-32C of anything that ends in its own CRC-32C."""


class ValueCodec(Generic[T]):
    """Encodes and decodes the values of one kind. Structs are `array_like`; a new field goes last, with a default."""

    __slots__ = ("_decoder", "_encode", "_version", "_version_byte", "kind")

    def __init__(self, kind: type[T], *, version: int = 1) -> None:
        self.kind = kind
        self._encode = msgspec.msgpack.Encoder().encode
        self._decoder = msgspec.msgpack.Decoder(kind)
        self._version = version
        self._version_byte = bytes([version])

    def encode(self, value: T) -> bytes:
        """Return the bytes to store."""
        body = self._version_byte + self._encode(value)
        return body + crc32c(body).to_bytes(_CRC_BYTES, "little")

    def decode(self, raw: bytes, key: Key) -> T:
        """Return the value, or raise `Corrupt` or `Unsupported`; `key` is for the message only."""
        if not raw or raw[0] != self._version:
            self._refuse_version(raw, key)
        if crc32c(raw) != _RESIDUE:
            raise Corrupt(f"metadata value of {key} fails its checksum ({len(raw)} bytes): restore it from a backup")
        try:
            return self._decoder.decode(raw[1:-_CRC_BYTES])
        except msgspec.MsgspecError as error:
            raise Corrupt(f"metadata value of {key} does not decode: {error}") from error

    def seen(self, seen: Seen, key: Key) -> T | None:
        """Return the value that a transaction has read, or `None` if the key does not exist."""
        found = seen.values.get(key)
        return None if found is None else self.decode(found.value, key)

    def _refuse_version(self, raw: bytes, key: Key) -> None:
        found = raw[0] if raw else None
        if found is not None and found > self._version:
            raise Unsupported(
                f"metadata value of {key} has version {found}, this release reads up to {self._version}: upgrade it"
            )
        raise Corrupt(f"metadata value of {key} begins with {found!r}, not with version {self._version}")
