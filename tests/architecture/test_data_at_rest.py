"""docs/data-at-rest.md tells the truth: every key, every value, every size."""

from pathlib import Path

from headrace.cluster import broker_configs
from headrace.groups import classic_records, consumer_records
from headrace.groups import configs as group_configs
from headrace.groups import records as group_records
from headrace.index import values
from headrace.metadata import keys
from headrace.metadata.keys import DomainKeys
from headrace.metadata.values import ValueCodec
from headrace.model.ids import DomainId, ObjectId, PinId, ProducerId, SessionId, StreamId, WriterId
from headrace.model.topics import TopicId
from headrace.pipeline import compaction_state
from headrace.pipeline import records as pipeline_records
from headrace.topics import records
from headrace.wal.frame import ENTRY_BYTES, FOOTER_BYTES, HEADER_BYTES

PAGE = (Path(__file__).parents[2] / "docs" / "data-at-rest.md").read_text()


HOMES = (
    values,
    records,
    group_records,
    classic_records,
    consumer_records,
    group_configs,
    broker_configs,
    pipeline_records,
    compaction_state,
)
"""The modules whose values lie in the metadata store."""


def row_of(name: str) -> str:
    rows = [line for line in PAGE.splitlines() if line.startswith(f"| `{name}` |")]
    assert len(rows) == 1, f"{name} has {len(rows)} rows"
    return rows[0]


def test_every_value_is_listed_with_its_fields_in_order() -> None:
    codecs = [codec for home in HOMES for codec in vars(home).values() if isinstance(codec, ValueCodec)]
    assert codecs
    for codec in codecs:
        struct = codec.kind
        row = row_of(struct.__name__)
        places = [row.find(field) for field in field_names(struct)]
        assert -1 not in places and places == sorted(places), f"{struct.__name__}: {row}"


def field_names(struct: type) -> list[str]:
    # The page says these in words of their own.
    spoken = {"object_id": "object id", "batches": "last five batches"}
    return [spoken.get(field, field) for field in struct.__struct_fields__]  # type: ignore[attr-defined]


def test_every_key_is_listed() -> None:
    domain, stream = DomainKeys(DomainId(0)), StreamId(7)
    made = {
        "format": keys.FORMAT,
        "sessions/<id>": keys.session(SessionId("s")),
        "leases/<name>": keys.lease("l"),
        "producer-ids": keys.PRODUCER_IDS,
        "topics/<name>": keys.topic("t"),
        "topic-names/<name>": keys.topic_name("t"),
        "topics-revision": keys.TOPICS_REVISION,
        "deleted-topics/<topic id>": keys.deleted_topic(TopicId(bytes(16))),
        "d/0000/state": domain.state,
        "d/0000/log/<seq>": domain.log(1),
        "d/0000/tidy/<saga>-dead-letters": domain.tidy_dead_letters("s"),
        "d/0000/condemned/<topic id>-dead-letters": domain.condemned_dead_letters("t"),
        "d/0000/streams/<id>/info": domain.info(stream),
        "d/0000/streams/<id>/head": domain.head(stream),
        "d/0000/streams/<id>/index/<end offset>": domain.entry(stream, 1),
        "d/0000/streams/<id>/producers/<producer id>": domain.producer(stream, ProducerId(1)),
        "d/0000/objects/<object id>": domain.object(ObjectId("o")),
        "d/0000/writers/<writer>": domain.writer(WriterId("w")),
        "group-configs/<group>": keys.group_config("g"),
        "broker-configs/<node id>": keys.broker_config(1),
        "d/0000/groups/<group>/head": domain.group("g").head,
        "d/0000/groups/<group>/lease": domain.group("g").lease,
        "d/0000/groups/<group>/members/<member>": domain.group("g").member("m"),
        "d/0000/groups/<group>/assignment/<member>": domain.group("g").assignment("m"),
        "d/0000/groups/<group>/offsets/<topic id>/<partition>": domain.group("g").offset(TopicId(bytes(16)), 1),
        "d/0000/tables/<topic id>": domain.table(TopicId(bytes(16))),
        "d/0000/sagas/<topic id>": domain.saga(TopicId(bytes(16))),
        "d/0000/compaction/<topic id>": domain.compaction(TopicId(bytes(16))),
        "d/0000/tidy/<saga>": domain.tidy("s"),
        "d/0000/condemned/<saga>": domain.condemned("s"),
        "d/0000/sinks/<sink>": domain.sink("s"),
        "d/0000/sink-writes/<write>": domain.sink_write(WriterId("w")),
        "d/0000/pins/<pin>": domain.pin(PinId("p")),
        "clocks/<node id>": keys.clock(1),
    }
    for pattern, key in made.items():
        row_of(pattern)
        depth = key.removeprefix(keys.ROOT).count("/")
        assert depth == pattern.count("/"), f"{key} does not look like {pattern}"


def test_sizes_of_a_frame_are_right() -> None:
    assert f"| header, {HEADER_BYTES} bytes |" in PAGE
    assert f"| index, {ENTRY_BYTES} bytes per body |" in PAGE
    assert f"| footer, {FOOTER_BYTES} bytes |" in PAGE
