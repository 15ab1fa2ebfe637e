"""The transactions that change topics: create, grow, configure, delete. Plain functions of what was read.

A topic's record, the claim on its name, its streams and the revision that caches go by change together, so a topic
is there as a whole or not at all. The registry and the domain of the streams are locked for it.

Must stay true:
- No two topics have names that look alike (`names.alike`), decided inside the transaction, by one key.
- Streams are only ever added to a topic: those that exist are never touched, whatever else changes.
- Every change raises the revision and names the topic in it.
- A change whose outcome was lost can be applied again: it recognises what it has done and does it once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from headrace.errors import Exists, Missing
from headrace.index.rule import StalePlan
from headrace.index.streams import created_streams, ended_streams, next_streams
from headrace.index.values import DOMAIN_STATE, DomainState, StreamKind
from headrace.metadata import keys
from headrace.metadata.keys import REGISTRY, DomainKeys
from headrace.metadata.port import Decision, Key, MetadataStore, Reads, Seen, Unit
from headrace.model.ids import StreamId
from headrace.model.topics import TopicId
from headrace.topics.names import alike
from headrace.topics.problems import InvalidPartitionCount, InvalidTopicName
from headrace.topics.records import (
    DELETED_TOPIC,
    NAME_CLAIM,
    TOPIC_RECORD,
    TOPICS_REVISION,
    DeletedTopic,
    NameClaim,
    TopicRecord,
    TopicsRevision,
)

MAX_REMEMBERED_CHANGES = 32
"""How far a broker may fall behind and still catch up by reading single topics."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TopicChange(Generic[T]):
    """One transaction over topics, ready to be applied."""

    units: Sequence[Unit]
    reads: Reads
    decide: Callable[[Seen], Decision[T]]

    async def apply(self, store: MetadataStore) -> T:
        """Run it and return its result."""
        return (await store.transact(self.units, self.reads, self.decide)).result


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDraft:
    """A topic that is to be created. Whoever asks chooses the id, and recognises the topic by it afterwards."""

    id: TopicId
    name: str
    partition_count: int
    overrides: Mapping[str, str]


def create_topic(
    domain_keys: DomainKeys, draft: TopicDraft, *, now_ms: int, validate_only: bool = False
) -> TopicChange[TopicRecord]:
    """Return the change that creates a topic with its streams.

    Raises `Exists` if there is one of that name, `InvalidTopicName` if one of a name that looks like it. A topic with
    the draft's own id is what an earlier try has made: it is returned as it is.
    """
    topic_key, claim_key = keys.topic(draft.name), keys.topic_name(alike(draft.name))

    def decide(seen: Seen) -> Decision[TopicRecord]:
        known = TOPIC_RECORD.seen(seen, topic_key)
        if known is not None and known.id == draft.id:
            return Decision(result=known)
        if known is not None:
            raise Exists(f"topic '{draft.name}' already exists")
        _check_free(seen, claim_key, draft)
        domain = DOMAIN_STATE.seen(seen, domain_keys.state) or DomainState()
        streams = tuple(next_streams(domain, draft.partition_count))
        record = TopicRecord(draft.id, draft.name, streams, dict(draft.overrides), now_ms)
        if validate_only:
            return Decision(result=record)
        puts = created_streams(
            domain_keys, domain, _owners(draft.id, 0, len(streams)), kind=StreamKind.PARTITION, now_ms=now_ms
        )
        puts[claim_key] = NAME_CLAIM.encode(NameClaim(draft.name))
        return Decision(result=record, puts=puts | _changed(seen, record))

    read = [topic_key, claim_key, keys.deleted_topic(draft.id), keys.TOPICS_REVISION, domain_keys.state]
    return TopicChange([REGISTRY, domain_keys.unit], Reads(keys=read), decide)


def grow_topic(
    domain_keys: DomainKeys,
    name: str,
    total_count: int,
    *,
    now_ms: int,
    is_repeat: bool = False,
    validate_only: bool = False,
) -> TopicChange[TopicRecord]:
    """Return the change that gives a topic more partitions, `total_count` in all; those it has are not touched.

    Raises `Missing`, or `InvalidPartitionCount` if the topic would not grow. `is_repeat` says that an earlier try
    may have done it: then a topic that is large enough is no error.
    """
    topic_key = keys.topic(name)

    def decide(seen: Seen) -> Decision[TopicRecord]:
        record = _existing(seen, name)
        count = len(record.streams)
        if is_repeat and count >= total_count:
            return Decision(result=record)
        if total_count <= count:
            raise InvalidPartitionCount(
                f"topic '{name}' has {count} partitions already: ask for more than that, not for {total_count}"
            )
        domain = DOMAIN_STATE.seen(seen, domain_keys.state) or DomainState()
        added = next_streams(domain, total_count - count)
        grown = msgspec.structs.replace(record, streams=(*record.streams, *added))
        if validate_only:
            return Decision(result=grown)
        owners = _owners(record.id, count, total_count)
        puts = created_streams(domain_keys, domain, owners, kind=StreamKind.PARTITION, now_ms=now_ms)
        return Decision(result=grown, puts=puts | _changed(seen, grown))

    read = [topic_key, keys.TOPICS_REVISION, domain_keys.state]
    return TopicChange([REGISTRY, domain_keys.unit], Reads(keys=read), decide)


def configure_topic(
    name: str,
    changes: Mapping[str, str | None],
    *,
    replace: bool,
    check: Callable[[Mapping[str, str], Mapping[str, str]], None],
    validate_only: bool = False,
) -> TopicChange[TopicRecord]:
    """Return the change that sets configs, or unsets those that are `None`; with `replace`, all that are not named.

    `check` is told the configs before and after, and raises what is wrong with them as they would then be together.
    Raises `Missing`.
    """

    def decide(seen: Seen) -> Decision[TopicRecord]:
        record = _existing(seen, name)
        merged = {} if replace else dict(record.overrides)
        for config, value in changes.items():
            if value is None:
                merged.pop(config, None)
            else:
                merged[config] = value
        check(record.overrides, merged)
        configured = msgspec.structs.replace(record, overrides=merged)
        if validate_only or configured == record:
            return Decision(result=configured)
        return Decision(result=configured, puts=_changed(seen, configured))

    return TopicChange([REGISTRY], Reads(keys=[keys.topic(name), keys.TOPICS_REVISION]), decide)


def delete_topic(
    domain_keys: DomainKeys,
    topic_id: TopicId,
    name: str,
    streams: Sequence[StreamId],
    *,
    now_ms: int,
    is_repeat: bool = False,
) -> TopicChange[None]:
    """Return the change that deletes a topic: its name is free at once, its streams take no append any more.

    What the streams hold is removed later, in steps (`removing.py`). Raises `Missing` if there is no such topic
    (with `is_repeat` that is no error: an earlier try may have deleted it), `StalePlan` if it has other streams.
    """
    topic_key = keys.topic(name)

    def decide(seen: Seen) -> Decision[None]:
        record = TOPIC_RECORD.seen(seen, topic_key)
        if record is None or record.id != topic_id:
            if is_repeat:
                return Decision(result=None)
            raise Missing(f"topic '{name}' does not exist, or is another one by now")
        if record.streams != tuple(streams):
            raise StalePlan(f"topic '{name}' has {len(record.streams)} partitions by now, not {len(streams)}")
        domain = DOMAIN_STATE.seen(seen, domain_keys.state) or DomainState()
        left = DeletedTopic(name, record.streams, now_ms, domain.next_seq)
        puts = ended_streams(domain_keys, seen, streams, now_ms=now_ms)
        puts[keys.deleted_topic(topic_id)] = DELETED_TOPIC.encode(left)
        puts |= _raised(seen, name)
        return Decision(result=None, puts=puts, deletes=[topic_key, keys.topic_name(alike(name))])

    read = [topic_key, keys.TOPICS_REVISION, domain_keys.state, *map(domain_keys.head, streams)]
    return TopicChange([REGISTRY, domain_keys.unit], Reads(keys=read), decide)


def forget_streams(topic_id: TopicId, gone: frozenset[StreamId]) -> TopicChange[bool]:
    """Return the change that strikes streams off what is left of a deleted topic; it says whether that was all."""
    key = keys.deleted_topic(topic_id)

    def decide(seen: Seen) -> Decision[bool]:
        known = DELETED_TOPIC.seen(seen, key)
        if known is None:
            return Decision(result=True)
        left = tuple(stream for stream in known.streams if stream not in gone)
        if not left:
            return Decision(result=True, deletes=[key])
        if left == known.streams:
            return Decision(result=False)
        return Decision(result=False, puts={key: DELETED_TOPIC.encode(msgspec.structs.replace(known, streams=left))})

    return TopicChange([REGISTRY], Reads(keys=[key]), decide)


def _check_free(seen: Seen, claim_key: Key, draft: TopicDraft) -> None:
    claim = NAME_CLAIM.seen(seen, claim_key)
    if claim is not None:
        raise InvalidTopicName(
            f"topic '{draft.name}' collides with the existing topic '{claim.name}': "
            "names that differ only by '.' and '_' look the same in metrics"
        )
    if DELETED_TOPIC.seen(seen, keys.deleted_topic(draft.id)) is not None:
        raise Missing(f"topic '{draft.name}' was created, and somebody has deleted it since")


def _existing(seen: Seen, name: str) -> TopicRecord:
    record = TOPIC_RECORD.seen(seen, keys.topic(name))
    if record is None:
        raise Missing(f"topic '{name}' does not exist")
    return record


def _owners(topic_id: TopicId, start: int, end: int) -> list[str]:
    """Return what the streams of partitions `start` to `end` say of their owner."""
    return [f"{topic_id.hex()}/{partition}" for partition in range(start, end)]


def _changed(seen: Seen, record: TopicRecord) -> dict[Key, bytes]:
    return {keys.topic(record.name): TOPIC_RECORD.encode(record), **_raised(seen, record.name)}


def _raised(seen: Seen, name: str) -> dict[Key, bytes]:
    """Return the put that tells every cache that this topic has changed."""
    known = TOPICS_REVISION.seen(seen, keys.TOPICS_REVISION) or TopicsRevision()
    changed = (*known.changed, name)[-MAX_REMEMBERED_CHANGES:]
    return {keys.TOPICS_REVISION: TOPICS_REVISION.encode(TopicsRevision(known.number + 1, changed))}
