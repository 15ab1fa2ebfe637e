"""Object records: what a WAL object is allowed to be, from before its first byte until after its last.

    staged → open (segments, packed objects) → sealed → condemned → forgotten

A *packed* object holds entries of one stream, which a repack has copied there; its id says so, so that whoever reads
an index entry knows without asking whether its bytes share an object with other streams.

Must stay true: an object exists in the store only while it has a record, so no crash can leak one; only a
condemned object is deleted; a condemned object has no entries and never gets one again (I8).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from headrace.errors import Exists
from headrace.index.rule import Rule
from headrace.index.values import OBJECT_RECORD, ObjectRecord, ObjectState
from headrace.metadata.keys import DomainKeys
from headrace.metadata.port import Decision, Key, Reads, Seen
from headrace.model.extents import Extent, WalExtent
from headrace.model.ids import DomainId, ObjectId, ObjectKey, WriterId

PACKED = "p"
"""What the id of a packed object ends with; those of all others end with a digit."""

_OBJECT_ID = re.compile(rf"[0-9a-f]{{32}}-[0-9]{{8,}}{PACKED}?")


def wal_object_id(writer: WriterId, number: int) -> ObjectId:
    """Return the id of a writer's n-th object."""
    return ObjectId(f"{writer}-{number:08d}")


def packed_object_id(writer: WriterId, number: int) -> ObjectId:
    """Return the id of a repacker's n-th object."""
    return ObjectId(f"{wal_object_id(writer, number)}{PACKED}")


def is_packed(object_id: ObjectId) -> bool:
    """Say whether an object holds entries of one stream only, because a repack wrote it."""
    return object_id.endswith(PACKED)


def wal_object_key(domain: DomainId, object_id: ObjectId) -> ObjectKey:
    """Return where a WAL object lies. The first path segments spread over an S3 bucket's key space."""
    return ObjectKey(f"{wal_prefix(domain)}{object_id[:2]}/{object_id}")


def wal_prefix(domain: DomainId) -> str:
    """Return what the keys of a domain's WAL objects begin with."""
    return f"wal/{domain:04d}/"


def wal_object_id_at(domain: DomainId, key: ObjectKey) -> ObjectId | None:
    """Return which WAL object lies at a key, or `None` if the key is none of ours."""
    object_id = ObjectId(key.rpartition("/")[2])
    is_ours = _OBJECT_ID.fullmatch(object_id) is not None and wal_object_key(domain, object_id) == key
    return object_id if is_ours else None


def stage_objects(
    keys: DomainKeys, objects: Sequence[ObjectId], *, writer: WriterId, is_segment: bool, now_ms: int
) -> Rule[None]:
    """Return the rule that announces objects before their first byte is written; repeating it is harmless."""
    record_keys = {keys.object(object_id): object_id for object_id in objects}

    def decide(seen: Seen) -> Decision[None]:
        puts: dict[Key, bytes] = {}
        for key, object_id in record_keys.items():
            known = OBJECT_RECORD.seen(seen, key)
            if known is not None and (known.writer != writer or known.state is not ObjectState.STAGED):
                raise Exists(f"object {object_id} is {known.state.name.lower()} already: number objects once only")
            path = wal_object_key(keys.domain, object_id)
            record = ObjectRecord(path, writer, is_segment, ObjectState.STAGED, 0, 0, now_ms)
            puts[key] = OBJECT_RECORD.encode(record)
        return Decision(result=None, puts=puts)

    return Rule(keys.unit, Reads(keys=list(record_keys)), decide)


def seal_object(keys: DomainKeys, object_id: ObjectId, *, now_ms: int) -> Rule[ObjectRecord | None]:
    """Return the rule that closes an open object to entries; its result is the record as it then is.

    A staged object stays staged: it holds nothing, and its age condemns it.
    """
    key = keys.object(object_id)

    def decide(seen: Seen) -> Decision[ObjectRecord | None]:
        record = OBJECT_RECORD.seen(seen, key)
        if record is None or record.state is not ObjectState.OPEN:
            return Decision(result=record)
        sealed = msgspec.structs.replace(record, state=ObjectState.SEALED, state_since_ms=now_ms)
        return Decision(result=sealed, puts={key: OBJECT_RECORD.encode(sealed)})

    return Rule(keys.unit, Reads(keys=[key]), decide)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectingAges:
    """How long an object is left alone: staged ones may still be written, sealed empty ones may still be read."""

    staged_max_age_ms: int
    sealed_grace_ms: int


def is_due(record: ObjectRecord, *, now_ms: int, ages: CollectingAges) -> bool:
    """Say whether an object may be condemned now."""
    age_ms = now_ms - record.state_since_ms
    if record.state is ObjectState.STAGED:
        return age_ms >= ages.staged_max_age_ms
    return record.state is ObjectState.SEALED and record.entry_count == 0 and age_ms >= ages.sealed_grace_ms


def condemn_objects(
    keys: DomainKeys, objects: Sequence[ObjectId], *, now_ms: int, ages: CollectingAges
) -> Rule[frozenset[ObjectId]]:
    """Return the rule that condemns those of some objects that are due; its result are those that are condemned."""
    record_keys = {object_id: keys.object(object_id) for object_id in objects}

    def decide(seen: Seen) -> Decision[frozenset[ObjectId]]:
        condemned: set[ObjectId] = set()
        puts: dict[Key, bytes] = {}
        for object_id, key in record_keys.items():
            record = OBJECT_RECORD.seen(seen, key)
            if record is None:
                continue
            if record.state is not ObjectState.CONDEMNED:
                if not is_due(record, now_ms=now_ms, ages=ages):
                    continue
                assert record.entry_count == 0, f"{object_id} still has {record.entry_count} entries"
                after = msgspec.structs.replace(record, state=ObjectState.CONDEMNED, state_since_ms=now_ms)
                puts[key] = OBJECT_RECORD.encode(after)
            condemned.add(object_id)
        return Decision(result=frozenset(condemned), puts=puts)

    return Rule(keys.unit, Reads(keys=list(record_keys.values())), decide)


def forget_objects(keys: DomainKeys, objects: Sequence[ObjectId]) -> Rule[None]:
    """Return the rule that drops the records of condemned objects whose bytes are gone."""
    record_keys = {object_id: keys.object(object_id) for object_id in objects}

    def decide(seen: Seen) -> Decision[None]:
        deletes: list[Key] = []
        for object_id, key in record_keys.items():
            record = OBJECT_RECORD.seen(seen, key)
            if record is not None:
                assert record.state is ObjectState.CONDEMNED, f"{object_id} is {record.state.name}, not condemned"
                deletes.append(key)
        return Decision(result=None, deletes=deletes)

    return Rule(keys.unit, Reads(keys=list(record_keys.values())), decide)


def wal_objects_of(extents: Sequence[Extent]) -> dict[ObjectId, int]:
    """Return how many of the extents lie in each WAL object."""
    counts: dict[ObjectId, int] = {}
    for extent in extents:
        if isinstance(extent, WalExtent):
            counts[extent.object_id] = counts.get(extent.object_id, 0) + 1
    return counts


def counted_down(keys: DomainKeys, seen: Seen, removed: Mapping[ObjectId, int], *, now_ms: int) -> dict[Key, bytes]:
    """Return the puts that take removed entries off their objects' counts.

    The grace of a sealed object begins anew when its last entry goes: until then a reader may hold a plan.
    """
    puts: dict[Key, bytes] = {}
    for object_id, count in removed.items():
        key = keys.object(object_id)
        record = OBJECT_RECORD.seen(seen, key)
        assert record is not None, f"an index entry named {object_id}, which has no record"
        left = record.entry_count - count
        assert left >= 0, f"{object_id}: {count} entries removed of {record.entry_count}"
        since_ms = now_ms if left == 0 and record.state is ObjectState.SEALED else record.state_since_ms
        puts[key] = OBJECT_RECORD.encode(msgspec.structs.replace(record, entry_count=left, state_since_ms=since_ms))
    return puts
