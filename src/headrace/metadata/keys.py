"""Every metadata key, with an example of each. `docs/data-at-rest.md` tells what the values hold.

    /headrace/v1/format                                                  the data format of this cluster
    /headrace/v1/cluster                                                 the id of this cluster
    /headrace/v1/brokers/00000000000000000003                            broker 3, for as long as it lives
    /headrace/v1/clocks/00000000000000000003                             broker 3's wall clock, when it last looked
    /headrace/v1/sessions/4f1c…                                          a living session (engines keep it)
    /headrace/v1/leases/collector                                        who may act: session and epoch
    /headrace/v1/leases/=table%2F4f1c…                                   who may swap entries of a topic, by its id
    /headrace/v1/producer-ids                                            the next producer id that is free
    /headrace/v1/topics/=orders.eu                                       the topic `orders.eu`
    /headrace/v1/topic-names/=orders_eu                                  who holds that name and all like it
    /headrace/v1/topics-revision                                         how often topics have changed, and which last
    /headrace/v1/deleted-topics/4f1c…                                    what is left of a deleted topic, by its id
    /headrace/v1/group-configs/=orders                                   what was set for the group `orders`
    /headrace/v1/broker-configs/00000000000000000003                     what was set for broker 3 while it ran
    /headrace/v1/broker-configs/all                                      what was set for all brokers while they ran
    /headrace/v1/d/0000/state                                            next commit number, folded_to, next stream id
    /headrace/v1/d/0000/log/00000000000000000042                         commit record 42
    /headrace/v1/d/0000/streams/00000000000000000007/info                kind and owner of stream 7
    /headrace/v1/d/0000/streams/00000000000000000007/head                high watermark, log start, epoch
    /headrace/v1/d/0000/streams/00000000000000000007/index/00000000000000001000   entry that ends before offset 1000
    /headrace/v1/d/0000/streams/00000000000000000007/producers/00000000000000000009   producer 9's state
    /headrace/v1/d/0000/objects/<writer>-00000003                        a WAL object's record
    /headrace/v1/d/0000/writers/<writer>                                 last frame of a writer
    /headrace/v1/d/0000/groups/=orders/head                              the group `orders`: protocol, epoch, state
    /headrace/v1/d/0000/groups/=orders/lease                             who coordinates it: session and epoch
    /headrace/v1/d/0000/groups/=orders/members/=c-1                      its member `c-1`
    /headrace/v1/d/0000/groups/=orders/assignment/=c-1                   what that member is meant to have
    /headrace/v1/d/0000/groups/=orders/offsets/4f1c…/00000000000000000003   its offset in a topic's partition 3
    /headrace/v1/d/0000/tables/4f1c…                                     how it stands with a topic's table, by its id
    /headrace/v1/d/0000/sagas/4f1c…                                      the run of that topic that is under way
    /headrace/v1/d/0000/compaction/4f1c…                                 how far that topic is compacted by key
    /headrace/v1/d/0000/tidy/<saga>                                      a run that is over, whose losers are to go
    /headrace/v1/d/0000/condemned/<saga>                                 table files that nothing names any more
    /headrace/v1/d/0000/sinks/=orders-copy                               the last batch of the sink `orders-copy`
    /headrace/v1/d/0000/sink-writes/<writer>                             a write of a sink that is under way
    /headrace/v1/d/0000/pins/<pin>                                       a read under way, whose bytes must stay

Numbers are zero-padded to 20 digits, so that they sort. Strings from clients are percent-escaped, and beyond
512 bytes hashed, with the full string in the value. No key is longer than 1,024 bytes.

Lock units: each lease, each session and each group is its own unit; everything else under a domain is
the domain's; everything else is the registry's.
"""

import hashlib
import re
from urllib.parse import quote

from headrace.errors import Invalid
from headrace.metadata.port import MAX_KEY_BYTES, Key, Range, Unit
from headrace.model.ids import DomainId, ObjectId, PinId, ProducerId, SessionId, StreamId, WriterId
from headrace.model.topics import TopicId

ROOT = "/headrace/v1/"
FORMAT = Key(ROOT + "format")
CLUSTER = Key(ROOT + "cluster")
BROKERS = ROOT + "brokers/"
CLOCKS = ROOT + "clocks/"
SESSIONS = ROOT + "sessions/"
LEASES = ROOT + "leases/"
PRODUCER_IDS = Key(ROOT + "producer-ids")
REGISTRY = Unit(ROOT)
TOPICS = ROOT + "topics/"
TOPIC_NAMES = ROOT + "topic-names/"
TOPICS_REVISION = Key(ROOT + "topics-revision")
DELETED_TOPICS = ROOT + "deleted-topics/"
GROUP_CONFIGS = ROOT + "group-configs/"
BROKER_CONFIGS = ROOT + "broker-configs/"

MAX_ESCAPED_BYTES = 512
MAX_REMEMBERED_STREAMS = 100_000
_DIGITS = 20
_GROUP_UNIT = re.compile(rf"{ROOT}d/\d+/groups/[^/]+/")
_UNIT = re.compile(rf"{ROOT}(?:(?:sessions|leases)/[^/]+|d/\d+/(?:groups/[^/]+/)?)")


def number(value: int) -> str:
    """Return a number as it stands in a key, so that the order of keys is the order of numbers."""
    if not 0 <= value < 10**_DIGITS:
        raise Invalid(f"{value} cannot stand in a key: it must have at most {_DIGITS} digits and no sign")
    return str(value).zfill(_DIGITS)


def escaped(text: str) -> str:
    """Return a client's string as one key segment: percent-escaped, or hashed when that is too long.

    The two never collide: an escaped string begins with `=`, a hashed one with `#`.
    """
    quoted = quote(text, safe="", errors="surrogatepass")
    if len(quoted) <= MAX_ESCAPED_BYTES:
        return "=" + quoted
    return "#" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def unit_of(key: Key) -> Unit:
    """Return the lock unit that a key belongs to."""
    found = _UNIT.match(key)
    return REGISTRY if found is None else Unit(found.group())


def is_group_unit(unit: Unit) -> bool:
    """Return whether a unit is a consumer group's."""
    return _GROUP_UNIT.fullmatch(unit) is not None


def check(key: Key) -> Key:
    """Return the key, or raise `Invalid` if no engine could store it."""
    if len(key) > MAX_KEY_BYTES or not key.isascii() or not key.isprintable() or not key.startswith(ROOT):
        raise Invalid(
            f"not a metadata key: {key[:80]!r} ({len(key)} characters; {MAX_KEY_BYTES} at most, under {ROOT})"
        )
    return key


def prefix_range(prefix: str, *, limit: int, after: Key | None = None, reverse: bool = False) -> Range:
    """Return the range of all keys under a prefix that ends in `/`, behind `after` if it is given."""
    assert prefix.endswith("/"), prefix
    # A space sorts before every other character of a key, so nothing lies between `after` and `after + " "`.
    start = Key(prefix) if after is None else Key(after + " ")
    return Range(start, Key(prefix[:-1] + "0"), limit=limit, reverse=reverse)  # "0" follows "/"


def session(session_id: SessionId) -> Key:
    return Key(SESSIONS + session_id)


def lease(name: str) -> Key:
    return Key(LEASES + escaped(name))


def table_lease(topic_id: TopicId) -> Key:
    """Return a topic's lease: who changes what the index names for it, other than by append or trim, holds it."""
    return lease(f"table/{topic_id.hex()}")


def broker(node_id: int) -> Key:
    return Key(BROKERS + number(node_id))


def clock(node_id: int) -> Key:
    return Key(CLOCKS + number(node_id))


def topic(name: str) -> Key:
    return Key(TOPICS + escaped(name))


def topic_name(alike: str) -> Key:
    """Return where a name is claimed; names that look alike (`topics/names.py`) share one key."""
    return Key(TOPIC_NAMES + escaped(alike))


def deleted_topic(topic_id: TopicId) -> Key:
    return Key(DELETED_TOPICS + topic_id.hex())


def group_config(group_id: str) -> Key:
    return Key(GROUP_CONFIGS + escaped(group_id))


def broker_config(node_id: int | None) -> Key:
    """Return where it is written what was set for a broker, or with `None` for all of them."""
    return Key(BROKER_CONFIGS + ("all" if node_id is None else number(node_id)))


class DomainKeys:
    """The keys of one domain. `keys.head(StreamId(7))` and so on."""

    __slots__ = (
        "_streams",
        "compaction_prefix",
        "condemned_prefix",
        "domain",
        "groups_prefix",
        "log_prefix",
        "objects_prefix",
        "pins_prefix",
        "sagas_prefix",
        "sink_writes_prefix",
        "sinks_prefix",
        "state",
        "streams_prefix",
        "tables_prefix",
        "tidy_prefix",
        "unit",
        "writers_prefix",
    )

    def __init__(self, domain: DomainId) -> None:
        root = f"{ROOT}d/{domain:04d}/"
        self._streams: dict[StreamId, _StreamKeys] = {}
        self.domain = domain
        self.unit = Unit(root)
        self.state = Key(root + "state")
        self.log_prefix = root + "log/"
        self.objects_prefix = root + "objects/"
        self.writers_prefix = root + "writers/"
        self.streams_prefix = root + "streams/"
        self.groups_prefix = root + "groups/"
        self.tables_prefix = root + "tables/"
        self.sagas_prefix = root + "sagas/"
        self.compaction_prefix = root + "compaction/"
        self.tidy_prefix = root + "tidy/"
        self.condemned_prefix = root + "condemned/"
        self.sinks_prefix = root + "sinks/"
        self.sink_writes_prefix = root + "sink-writes/"
        self.pins_prefix = root + "pins/"

    def group(self, group_id: str) -> "GroupKeys":
        return GroupKeys(self.groups_prefix, group_id)

    def log(self, seq: int) -> Key:
        return Key(self.log_prefix + str(seq).zfill(_DIGITS))

    def log_range(self, start_seq: int, *, limit: int) -> Range:
        return Range(self.log(start_seq), Key(self.log_prefix[:-1] + "0"), limit=limit)

    def object(self, object_id: ObjectId) -> Key:
        return Key(self.objects_prefix + object_id)

    def writer(self, writer: WriterId) -> Key:
        return Key(self.writers_prefix + writer)

    def table(self, topic_id: TopicId) -> Key:
        return Key(self.tables_prefix + topic_id.hex())

    def saga(self, topic_id: TopicId) -> Key:
        return Key(self.sagas_prefix + topic_id.hex())

    def compaction(self, topic_id: TopicId) -> Key:
        return Key(self.compaction_prefix + topic_id.hex())

    def tidy(self, saga_id: str) -> Key:
        return Key(self.tidy_prefix + saga_id)

    def tidy_dead_letters(self, saga_id: str) -> Key:
        return Key(f"{self.tidy_prefix}{saga_id}-dead-letters")

    def condemned_dead_letters(self, saga_id: str) -> Key:
        return Key(f"{self.condemned_prefix}{saga_id}-dead-letters")

    def condemned(self, saga_id: str) -> Key:
        return Key(self.condemned_prefix + saga_id)

    def sink(self, sink_id: str) -> Key:
        return Key(self.sinks_prefix + escaped(sink_id))

    def sink_write(self, write: WriterId) -> Key:
        return Key(self.sink_writes_prefix + write)

    def pin(self, pin_id: PinId) -> Key:
        return Key(self.pins_prefix + pin_id)

    def info(self, stream: StreamId) -> Key:
        return Key(self._stream(stream).prefix + "info")

    def head(self, stream: StreamId) -> Key:
        return self._stream(stream).head

    def index_prefix(self, stream: StreamId) -> str:
        return self._stream(stream).index

    def entry(self, stream: StreamId, end_offset: int) -> Key:
        return Key(f"{self._stream(stream).index}{end_offset:0{_DIGITS}d}")

    def entries(self, stream: StreamId, *, after_offset: int, limit: int, until_offset: int | None = None) -> Range:
        """Return the range of entries that end behind `after_offset`, and at or before `until_offset`."""
        past_all = Key(self.index_prefix(stream)[:-1] + "0")
        end = past_all if until_offset is None else self.entry(stream, until_offset + 1)
        return Range(self.entry(stream, after_offset + 1), end, limit=limit)

    def producer(self, stream: StreamId, producer: ProducerId) -> Key:
        return Key(f"{self._stream(stream).producers}{producer:0{_DIGITS}d}")

    def producers_prefix(self, stream: StreamId) -> str:
        return self._stream(stream).producers

    def _stream(self, stream: StreamId) -> "_StreamKeys":
        """Return what all keys of a stream begin with: every commit asks for it several times per stream."""
        found = self._streams.get(stream)
        if found is None:
            if len(self._streams) >= MAX_REMEMBERED_STREAMS:
                self._streams.clear()
            found = self._streams[stream] = _StreamKeys(self.streams_prefix + number(stream) + "/")
        return found


class GroupKeys:
    """The keys of one consumer group. All of them are one lock unit, the lease included.

    So a transaction of the group's coordinator locks one unit, whatever it writes.
    """

    __slots__ = ("assignments_prefix", "head", "lease", "members_prefix", "offsets_prefix", "unit")

    def __init__(self, groups_prefix: str, group_id: str) -> None:
        root = f"{groups_prefix}{escaped(group_id)}/"
        self.unit = Unit(root)
        self.head = Key(root + "head")
        self.lease = Key(root + "lease")
        self.members_prefix = root + "members/"
        self.assignments_prefix = root + "assignment/"
        self.offsets_prefix = root + "offsets/"

    def member(self, member_id: str) -> Key:
        return Key(self.members_prefix + escaped(member_id))

    def assignment(self, member_id: str) -> Key:
        return Key(self.assignments_prefix + escaped(member_id))

    def offset(self, topic_id: TopicId, partition: int) -> Key:
        return Key(f"{self.offsets_prefix}{topic_id.hex()}/{number(partition)}")

    def partition_of(self, key: Key) -> tuple[TopicId, int]:
        """Return which partition an offset's key is about."""
        topic_id, _, partition = key.removeprefix(self.offsets_prefix).partition("/")
        return TopicId(bytes.fromhex(topic_id)), int(partition)


class _StreamKeys:
    """The beginnings of one stream's keys, made once."""

    __slots__ = ("head", "index", "prefix", "producers")

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.head = Key(prefix + "head")
        self.index = prefix + "index/"
        self.producers = prefix + "producers/"
