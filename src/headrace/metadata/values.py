"""How a value lies in the metadata store: one version byte, a CRC-32C, then MessagePack.

Must stay true: a value that cannot be read is never taken for one that is absent. A newer version is
refused with `Unsupported`, anything else that does not fit raises `Corrupt`, and both name the key.
"""

from typing import Generic, TypeVar

import msgspec
from crc32c import crc32c

from headrace.errors import Corrupt, Unsupported
from headrace.metadata.port import Key, Seen

T = TypeVar("T")

_PREFIX_BYTES = 5


class ValueCodec(Generic[T]):
    """Encodes and decodes the values of one kind. Structs are `array_like`; a new field goes last, with a default."""

    __slots__ = ("_decoder", "_encode", "_version", "_version_byte")

    def __init__(self, kind: type[T], *, version: int = 1) -> None:
        self._encode = msgspec.msgpack.Encoder().encode
        self._decoder = msgspec.msgpack.Decoder(kind)
        self._version = version
        self._version_byte = bytes([version])

    def encode(self, value: T) -> bytes:
        """Return the bytes to store."""
        body = self._encode(value)
        return self._version_byte + crc32c(body).to_bytes(4, "big") + body

    def decode(self, raw: bytes, key: Key) -> T:
        """Return the value, or raise `Corrupt` or `Unsupported`; `key` is for the message only."""
        body = raw[_PREFIX_BYTES:]
        if raw[:1] != self._version_byte:
            self._refuse_version(raw, key)
        if crc32c(body) != int.from_bytes(raw[1:_PREFIX_BYTES], "big"):
            raise Corrupt(f"metadata value of {key} fails its checksum ({len(raw)} bytes): restore it from a backup")
        try:
            return self._decoder.decode(body)
        except msgspec.MsgspecError as error:
            raise Corrupt(f"metadata value of {key} does not decode: {error}") from error

    def seen(self, seen: Seen, key: Key) -> T | None:
        """Return the value that a transaction has read, or `None` if the key does not exist."""
        raw = seen.get(key)
        return None if raw is None else self.decode(raw, key)

    def _refuse_version(self, raw: bytes, key: Key) -> None:
        found = raw[0] if raw else None
        if found is not None and found > self._version:
            raise Unsupported(
                f"metadata value of {key} has version {found}, this release reads up to {self._version}: upgrade it"
            )
        raise Corrupt(f"metadata value of {key} begins with {found!r}, not with version {self._version}")
