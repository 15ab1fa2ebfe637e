"""A topic as every part sees it: a name, an id, its streams, and what its configuration demands."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NewType

from headrace.model.ids import StreamId

TopicId = NewType("TopicId", bytes)
"""A topic's UUID: 16 bytes, given once; a topic that is created again under the same name has another one."""

NO_LIMIT_MS = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRules:
    """What a topic's configuration demands of every batch, ready for use on the way in.

    `compression` is the codec's name that batches are stored with, or `None`: as the producer sent them.
    `opens_compressed` says that compressed batches are opened and their records checked, as Kafka does.
    """

    max_message_bytes: int
    is_log_append_time: bool = False
    timestamp_before_max_ms: int = NO_LIMIT_MS
    timestamp_after_max_ms: int = NO_LIMIT_MS
    compression: str | None = None
    compression_level: int | None = None
    is_compacted: bool = False
    opens_compressed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long records are kept, by their age and by the size of their partition; `None` is without end."""

    max_age_ms: int | None = None
    max_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """One topic. Partition n is stream `streams[n]`; `overrides` are the configs that were set for this topic.

    `defaults` are those that brokers give it and that differ from Kafka's own.
    """

    id: TopicId
    name: str
    streams: tuple[StreamId, ...]
    rules: TopicRules
    overrides: Mapping[str, str] = field(default_factory=dict)
    created_at_ms: int = 0
    retention: Retention = field(default_factory=Retention)
    defaults: Mapping[str, str] = field(default_factory=dict)

    @property
    def configs(self) -> Mapping[str, str]:
        """Return what was set for this topic, and the brokers' defaults for the rest."""
        return {**self.defaults, **self.overrides}
