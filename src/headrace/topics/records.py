"""What topics are at rest: every value, in the order its fields lie on disk.

Structs are arrays at rest: a field is never moved or removed, a new one goes last and has a default.
`docs/data-at-rest.md` shows which key holds which.
"""

import msgspec

from headrace.metadata.values import ValueCodec
from headrace.model.ids import StreamId
from headrace.model.topics import TopicId


class TopicRecord(msgspec.Struct, frozen=True, array_like=True):
    """One topic. Partition n is stream `streams[n]`; streams are only ever added, at the end."""

    id: TopicId
    name: str
    streams: tuple[StreamId, ...]
    overrides: dict[str, str]
    created_at_ms: int


class NameClaim(msgspec.Struct, frozen=True, array_like=True):
    """Which topic holds a name, against all names that look like it."""

    name: str


class TopicsRevision(msgspec.Struct, frozen=True, array_like=True):
    """How often topics have changed, and the names of those that changed last, oldest first.

    It lets a broker that fell behind a little read only what it missed.
    """

    number: int = 0
    changed: tuple[str, ...] = ()


class DeletedTopic(msgspec.Struct, frozen=True, array_like=True):
    """What is left of a deleted topic: the streams that are still to be removed.

    `seq` is the commit record that ended them: until it is folded, none of them can be gone.
    """

    name: str
    streams: tuple[StreamId, ...]
    deleted_at_ms: int
    seq: int


TOPIC_RECORD = ValueCodec(TopicRecord)
NAME_CLAIM = ValueCodec(NameClaim)
TOPICS_REVISION = ValueCodec(TopicsRevision)
DELETED_TOPIC = ValueCodec(DeletedTopic)
