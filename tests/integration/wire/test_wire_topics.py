"""Topics that cannot be: each gets its code, the others of the request are created, and no name becomes a path."""

from collections.abc import Iterator
from pathlib import Path
from struct import pack

import pytest

from tests.integration.wire.batches import batch
from tests.integration.wire.raw import (
    DELETE_TOPICS,
    METADATA,
    RawClient,
    array,
    fetch_request,
    new_topic,
    produce_request,
    text,
)
from tests.integration.wire.watching import MIB, forget_peak, mistakes, peak_memory_bytes
from tests.servers.headrace import HeadraceProcess, running_headrace

NONE, UNKNOWN_TOPIC, INVALID_TOPIC, TOPIC_EXISTS = 0, 3, 17, 36
INVALID_PARTITIONS, INVALID_REPLICATION_FACTOR, INVALID_CONFIG, INVALID_REQUEST = 37, 38, 40, 42

MARK = "intruder"
"""No file may bear this name."""

BAD_NAMES = [
    "",
    ".",
    "..",
    "/",
    f"/{MARK}",
    f"../{MARK}",
    f"../../../{MARK}",
    f"{MARK}/../..",
    f"{MARK}\0",
    f"\0{MARK}",
    f"{MARK}\n",
    f"{MARK} {MARK}",
    f"{MARK}\\x",
    f"{MARK}:x",
    f"{MARK}?x#y%2F..",
    f"{MARK}é",
    f"{MARK}\u202e",
    MARK * 31 + "xx",
    "x" * 32_767,
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeadraceProcess]:
    with running_headrace(tmp_path_factory.mktemp("around") / "data") as running:
        yield running
        assert mistakes(running) == []


def names_in_metadata(client: RawClient, *topics: str) -> dict[str | None, int]:
    """Ask for topics by name with version 1, or for all; return their codes."""
    body = array([text(topic) for topic in topics]) if topics else pack(">i", -1)
    answer = client.ask(METADATA, 1, body)
    for _ in range(answer.number(4)):
        answer.take(4), answer.text(), answer.take(4), answer.text()
    answer.take(4)
    codes = {}
    for _ in range(answer.number(4)):
        code = answer.number(2)
        codes[answer.text()] = code
        answer.take(1)
        for _ in range(answer.number(4)):
            answer.take(10)
            answer.take(4 * answer.number(4))
            answer.take(4 * answer.number(4))
    answer.end()
    return codes


def test_illegal_names_are_refused_everywhere_and_never_become_a_path(broker: HeadraceProcess) -> None:
    assert len(BAD_NAMES[-2]) == 250
    with RawClient(broker.kafka_port) as client:
        created = client.try_create(*(new_topic(name) for name in BAD_NAMES))
        assert created == [(name, INVALID_TOPIC) for name in BAD_NAMES]
        assert names_in_metadata(client, *BAD_NAMES) == dict.fromkeys(BAD_NAMES, INVALID_TOPIC)
        for name in BAD_NAMES:
            assert client.produce(name, {0: batch()})[0].code in (UNKNOWN_TOPIC, INVALID_TOPIC)
            assert client.fetch(name, 0, 0).code in (UNKNOWN_TOPIC, INVALID_TOPIC)
            assert client.set_config(name, "retention.ms", "1") in (UNKNOWN_TOPIC, INVALID_TOPIC)
        answer = client.ask(DELETE_TOPICS, 1, array([text(name) for name in BAD_NAMES]) + pack(">i", 1000))
        answer.take(4)
        deleted = [(answer.text(), answer.number(2)) for _ in range(answer.number(4))]
        assert deleted == [(name, code) for name, (_, code) in zip(BAD_NAMES, deleted, strict=True)]
        assert {code for _, code in deleted} <= {UNKNOWN_TOPIC, INVALID_TOPIC}
        assert not set(BAD_NAMES) & names_in_metadata(client).keys()
    around = broker.data_dir.parent
    assert not [path for path in around.rglob("*") if MARK in path.name]
    assert not (around.parent / MARK).exists() and not Path("/", MARK).exists()


def test_names_that_are_no_text_cost_the_connection_only(broker: HeadraceProcess) -> None:
    with RawClient(broker.kafka_port) as bystander:
        for bad in (b"\xff\xfe", b"a\xc3", b"\xed\xa0\x80", b"\xc0\xaf"):
            with RawClient(broker.kafka_port) as client:
                client.send(produce_request(bad, {0: batch()}))
                assert client.rest() == b""
            with RawClient(broker.kafka_port) as client:
                client.send(fetch_request("xx", 0, 0).replace(b"\0\x02xx", text(bad[:2])))
                assert client.rest() == b""
        assert NONE in names_in_metadata(bystander, "still-served").values()


def test_every_impossible_topic_gets_its_code_and_the_others_are_created(broker: HeadraceProcess) -> None:
    with RawClient(broker.kafka_port) as client:
        client.create_topic("with.dots")
        before = forget_peak(broker)
        codes = dict(
            client.try_create(
                new_topic("good"),
                new_topic("default-partitions", partitions=-1, factor=-1),
                new_topic("no-partitions", partitions=0),
                new_topic("fewer-than-none", partitions=-2),
                new_topic("least", partitions=-(2**31)),
                new_topic("too-many", partitions=10**9),
                new_topic("most", partitions=2**31 - 1),
                new_topic("no-replicas", factor=0),
                new_topic("negative-replicas", factor=-2),
                new_topic("many-replicas", factor=2**15 - 1),
                new_topic("unknown-config", configs={"retention.mz": "1"}),
                new_topic("config-of-no-number", configs={"retention.ms": "soon"}),
                new_topic("config-out-of-range", configs={"max.message.bytes": "-1"}),
                new_topic("config-too-long", configs={"retention.ms": "9" * 30_000}),
                new_topic("config-of-no-name", configs={"": "1"}),
                new_topic("no-such-policy", configs={"cleanup.policy": "shred"}),
                new_topic("no-such-codec", configs={"compression.type": "brotli"}),
                new_topic("with_dots"),
                new_topic("with.dots"),
                new_topic("twice"),
                new_topic("twice"),
                new_topic("also-good", partitions=3),
            )
        )
        assert codes == {
            "good": NONE,
            "default-partitions": NONE,
            "no-partitions": INVALID_PARTITIONS,
            "fewer-than-none": INVALID_PARTITIONS,
            "least": INVALID_PARTITIONS,
            "too-many": INVALID_PARTITIONS,
            "most": INVALID_PARTITIONS,
            "no-replicas": INVALID_REPLICATION_FACTOR,
            "negative-replicas": INVALID_REPLICATION_FACTOR,
            "many-replicas": NONE,
            "unknown-config": INVALID_CONFIG,
            "config-of-no-number": INVALID_CONFIG,
            "config-out-of-range": INVALID_CONFIG,
            "config-too-long": INVALID_CONFIG,
            "config-of-no-name": INVALID_CONFIG,
            "no-such-policy": INVALID_CONFIG,
            "no-such-codec": INVALID_CONFIG,
            "with_dots": INVALID_TOPIC,
            "with.dots": TOPIC_EXISTS,
            "twice": INVALID_REQUEST,
            "also-good": NONE,
        }
        assert peak_memory_bytes(broker) < before + 64 * MIB
        known = names_in_metadata(client)
        assert {name for name, code in codes.items() if code == NONE} <= known.keys()
        assert not {name for name, code in codes.items() if code not in (NONE, TOPIC_EXISTS)} & known.keys()


def test_two_names_that_collide_in_one_request_make_one_topic(broker: HeadraceProcess) -> None:
    with RawClient(broker.kafka_port) as client:
        codes = client.try_create(new_topic("one.name"), new_topic("one_name"))
        assert codes == [("one.name", NONE), ("one_name", INVALID_TOPIC)]


def test_thousands_of_faulty_topics_in_one_request_are_all_answered(broker: HeadraceProcess) -> None:
    names = [f"bad name {number}" for number in range(5000)]
    with RawClient(broker.kafka_port) as client:
        assert client.try_create(*map(new_topic, names)) == [(name, INVALID_TOPIC) for name in names]
