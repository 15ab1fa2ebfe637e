"""Names of things. Each is an `int` or `str` at run time; the type keeps them apart for the reader."""

from typing import NewType

DomainId = NewType("DomainId", int)
"""The unit of atomicity: what one commit can change together. One domain until a decision page says more."""

StreamId = NewType("StreamId", int)
"""A log. 64 bits, allocated once, never reused."""

ProducerId = NewType("ProducerId", int)
"""An idempotent producer; −1 on the wire means none."""

WriterId = NewType("WriterId", str)
"""One process incarnation that commits frames: 32 hexadecimal digits, never reused."""

ObjectId = NewType("ObjectId", str)
"""A WAL object: the writer that staged it and a running number, `<writer>-<number:08d>`."""

ObjectKey = NewType("ObjectKey", str)
"""Where an object lies in the object store: a relative path of plain segments."""

SessionId = NewType("SessionId", str)
"""A metadata session: ephemeral keys and leases live and die with it."""

PinId = NewType("PinId", str)
"""A read under way that reaches only the object store: 32 hexadecimal digits, never reused."""
