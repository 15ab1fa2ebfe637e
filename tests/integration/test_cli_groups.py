"""`headrace group` against a real cluster, through processes, beside consumers that really are in a group.

Nothing here is particular to our broker: with the variable TEST_BOOTSTRAP=HOST:PORT the same tests run against the
cluster that answers there, such as an Apache Kafka. Names are new in every run, so that a cluster may be used again.
"""

import contextlib
import datetime
import json
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.integration.clients.librdkafka import quiet
from tests.integration.clients.waiting import eventually
from tests.integration.test_cli_clients import Cluster
from tests.servers.headrace import running_headrace

RUN = uuid.uuid4().hex[:8]
POLL_SECONDS = 0.1
# Retention counts from a record's own timestamp: tests write records of today.
NOW_MS = int(time.time() * 1000)

PROTOCOLS = pytest.mark.parametrize("protocol", ["classic", "consumer"])


class GroupCluster(Cluster):
    """A cluster, commands against it, and members of groups."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap)
        self.bootstrap = bootstrap

    def topic(self, name: str, *counts: int) -> str:
        """Create a topic with so many records in each of its partitions, a second apart, and return its name."""
        topic = f"{name}-{RUN}"
        self.run("topic", "create", topic, f"--partitions={len(counts)}")
        for partition, count in enumerate(counts):
            self.write(topic, partition, count)
        return topic

    def write(self, topic: str, partition: int, count: int) -> None:
        """Add records with timestamps that are a second apart."""
        rows = [
            {"value": str(number), "partition": partition, "timestamp": NOW_MS + number * 1000}
            for number in range(count)
        ]
        self.run("produce", topic, "--json", given="".join(json.dumps(row) + "\n" for row in rows).encode())

    def details(self, group: str) -> Any:
        """Return what `describe` says about a group."""
        [details] = self.ask("group", "describe", group)
        return details

    def reset(self, group: str, *options: str) -> list[tuple[str, int, int | None, int | None, str]]:
        """Run `reset-offsets` and return topic, partition, old offset, new offset and outcome."""
        reset = self.ask("group", "reset-offsets", group, *options)
        assert reset["group"] == group and reset["executed"] == ("--execute" in options)
        names = ("topic", "partition", "committed_offset", "new_offset", "outcome")
        return [tuple(row[name] for name in names) for row in reset["partitions"]]

    def committed(self, group: str) -> dict[int, int | None]:
        """Return what a group has committed, by partition of its only topic."""
        return {row["partition"]: row["committed_offset"] for row in self.details(group)["partitions"]}

    def emptied(self, group: str) -> Any:
        """Wait until the last member has gone, and return what `describe` says then."""

        def look() -> Any:
            details = self.details(group)
            return details if details["state"] == "empty" else None

        return eventually(f"group {group} is empty", look)

    @contextlib.contextmanager
    def member(self, group: str, topic: str, **config: str) -> Iterator[Consumer]:
        """Join a group, and leave it in the end."""
        properties: Mapping[str, Any] = {
            "bootstrap.servers": self.bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            **{name.replace("_", "."): value for name, value in config.items()},
        }
        consumer = Consumer(quiet(properties))
        try:
            consumer.subscribe([topic])
            yield consumer
        finally:
            consumer.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GroupCluster]:
    if bootstrap := os.environ.get("TEST_BOOTSTRAP"):
        yield GroupCluster(bootstrap)
        return
    with running_headrace(tmp_path_factory.mktemp("data")) as broker:
        yield GroupCluster(broker.bootstrap)


def _owns(consumer: Consumer, partitions: int) -> Callable[[], bool]:
    """Return a condition: the member has so many partitions. Looking at it lets the member do its part."""

    def look() -> bool:
        consumer.poll(POLL_SECONDS)
        return len(consumer.assignment()) == partitions

    return look


def _first_offsets(consumer: Consumer, partitions: int) -> dict[int, int]:
    """Read until each of so many partitions has given a record, and return where each began."""
    first: dict[int, int] = {}

    def read() -> bool:
        message = consumer.poll(POLL_SECONDS)
        if message is not None and message.error() is None:
            partition, offset = message.partition(), message.offset()
            assert partition is not None and offset is not None
            first.setdefault(partition, offset)
        return len(first) == partitions

    eventually("records of all partitions", read)
    return first


def _by_partition(details: Any, field: str) -> list[object]:
    return [row[field] for row in details["partitions"]]


@PROTOCOLS
def test_a_group_is_seen_with_its_member_and_its_lag_and_deleted_when_it_is_empty(
    cluster: GroupCluster, protocol: str
) -> None:
    topic = cluster.topic(f"life-{protocol}", 5, 3)
    group = f"life-{protocol}-{RUN}"
    with cluster.member(group, topic, group_protocol=protocol, client_id="reader") as consumer:
        eventually("the member owns both partitions", _owns(consumer, 2))
        consumer.commit(offsets=[TopicPartition(topic, 0, 2)], asynchronous=False)

        def stable() -> Any:
            consumer.poll(POLL_SECONDS)
            details = cluster.details(group)
            return details if details["state"] == "stable" and details["members"][0]["assigned"] else None

        details = eventually("the group is stable", stable)
        assert details["type"] == protocol
        assert details["assignor"] and details["coordinator"] is not None and ":" in details["coordinator_address"]
        [member] = details["members"]
        assert member["client_id"] == "reader" and member["host"] == "127.0.0.1" and member["instance_id"] is None
        assert member["assigned"] == [{"topic": topic, "partition": 0}, {"topic": topic, "partition": 1}]
        assert _by_partition(details, "committed_offset") == [2, None]
        assert _by_partition(details, "latest_offset") == [5, 3]
        assert _by_partition(details, "lag") == [3, None] and details["total_lag"] == 3
        assert _by_partition(details, "owner") == [member["member_id"]] * 2

        cluster.write(topic, 0, 4)
        consumer.commit(offsets=[TopicPartition(topic, 1, 3)], asynchronous=False)
        details = cluster.details(group)
        assert _by_partition(details, "lag") == [7, 0] and details["total_lag"] == 7
        shown = cluster.run("group", "describe", group).stdout.decode().splitlines()
        assert shown[0].startswith(f"group {group}: {protocol}, stable, ") and shown[0].endswith(
            "1 member, total lag 7"
        )
        assert shown[2].split() == [member["member_id"], "-", "reader", "127.0.0.1", f"{topic}:0,1"]
        assert shown[4].split() == [topic, "0", "2", "9", "7", member["member_id"]]

        listed = {row["group"]: row for row in cluster.ask("group", "list", f"--type={protocol}", "--state=stable")}
        assert listed[group] == {"group": group, "type": protocol, "state": "stable"}
        for words in (("delete", group, "--yes"), ("reset-offsets", group, "--all-topics", "--to-latest")):
            told = cluster.run("group", *words, code=1).stderr.decode()
            assert f"group {group}: it has members; stop them first" in told and told.count("\n") == 1
        assert cluster.committed(group) == {0: 2, 1: 3}

    details = cluster.emptied(group)
    assert (details["type"], details["members"]) == (protocol, [])
    assert _by_partition(details, "lag") == [7, 0] and _by_partition(details, "owner") == [None, None]
    assert group not in {row["group"] for row in cluster.ask("group", "list", "--state=stable")}
    assert group in {row["group"] for row in cluster.ask("group", "list", "--state=empty")}

    assert cluster.run("group", "delete", group, "--yes").stdout.decode() == f"deleted group {group}\n"
    assert group not in {row["group"] for row in cluster.ask("group", "list")}
    assert f"there is no group {group}" in cluster.run("group", "describe", group, code=1).stderr.decode()


@PROTOCOLS
def test_members_share_partitions_and_static_ones_show_their_instance(cluster: GroupCluster, protocol: str) -> None:
    topic = cluster.topic(f"static-{protocol}", 1, 1)
    group = f"static-{protocol}-{RUN}"
    with (
        cluster.member(group, topic, group_protocol=protocol, group_instance_id="one") as one,
        cluster.member(group, topic, group_protocol=protocol, group_instance_id="two") as two,
    ):

        def settled() -> Any:
            one.poll(POLL_SECONDS)
            two.poll(POLL_SECONDS)
            return len(one.assignment()) == len(two.assignment()) == 1

        eventually("each member owns one partition", settled)

        def shared() -> Any:
            settled()
            details = cluster.details(group)
            assigned = [len(member["assigned"]) for member in details["members"]]
            return details if details["state"] == "stable" and assigned == [1, 1] else None

        details = eventually("the cluster says so, too", shared)
        owners = {
            (place["topic"], place["partition"]): member["member_id"]
            for member in details["members"]
            for place in member["assigned"]
        }
        assert {member["instance_id"] for member in details["members"]} == {"one", "two"}
        assert {(row["topic"], row["partition"]): row["owner"] for row in details["partitions"]} == owners
        assert len(set(owners.values())) == 2


def test_a_plan_changes_nothing_until_it_is_carried_out(cluster: GroupCluster) -> None:
    topic, group = cluster.topic("plan", 4, 6), f"plan-{RUN}"
    options = (f"--topic={topic}", "--to-offset=5")
    expected = [(topic, 0, None, 4), (topic, 1, None, 5)]
    assert cluster.reset(group, *options) == [(*row, "planned") for row in expected]
    cluster.run("group", "describe", group, code=1)
    assert cluster.reset(group, *options, "--execute") == [(*row, "reset") for row in expected]

    details = cluster.details(group)
    assert (details["type"], details["state"], details["members"]) == ("classic", "empty", [])
    assert _by_partition(details, "committed_offset") == [4, 5] and details["total_lag"] == 1
    assert cluster.reset(group, *options, "--execute") == [
        (topic, 0, 4, 4, "unchanged"),
        (topic, 1, 5, 5, "unchanged"),
    ]
    assert b"would reset 2 of 2 partitions; --execute does it" in (
        cluster.run("group", "reset-offsets", group, "--all-topics", "--to-earliest").stdout
    )
    assert cluster.committed(group) == {0: 4, 1: 5}


def test_offsets_go_where_they_are_told(cluster: GroupCluster) -> None:
    topic, group = cluster.topic("where", 10, 0), f"where-{RUN}"
    moment = datetime.datetime.fromtimestamp((NOW_MS + 3500) / 1000, tz=datetime.UTC)
    in_another_zone = moment.astimezone(datetime.timezone(datetime.timedelta(hours=5, minutes=30)))
    for options, expected in {
        ("--to-latest",): 10,
        ("--shift-by=-4",): 6,
        ("--shift-by", "-1"): 5,
        ("--shift-by=2",): 7,
        ("--shift-by=100",): 10,
        ("--to-earliest",): 0,
        ("--shift-by=-100",): 0,
        ("--to-offset=8",): 8,
        ("--to-offset=1000",): 10,
        ("--to-datetime", moment.isoformat()): 4,
        ("--to-datetime", "1999-12-31"): 0,
        ("--to-datetime", in_another_zone.isoformat()): 4,
        ("--to-datetime", "2999-12-31T00:00:00Z"): 10,
        ("--to-datetime", moment.replace(tzinfo=None).isoformat()): 4,
    }.items():
        cluster.reset(group, f"--topic={topic}:0", *options, "--execute")
        assert cluster.committed(group) == {0: expected}, options


@PROTOCOLS
def test_a_consumer_goes_on_from_where_its_group_was_reset_to(cluster: GroupCluster, protocol: str) -> None:
    topic, other = cluster.topic(f"back-{protocol}", 6, 6), cluster.topic(f"other-{protocol}", 3)
    group = f"back-{protocol}-{RUN}"
    with cluster.member(group, topic, group_protocol=protocol) as consumer:
        eventually("the member owns both partitions", _owns(consumer, 2))
        consumer.commit(offsets=[TopicPartition(topic, 0, 6), TopicPartition(topic, 1, 6)], asynchronous=False)
    cluster.emptied(group)
    cluster.reset(group, f"--topic={topic}:1", f"--topic={other}", "--to-offset=2", "--execute")
    assert cluster.reset(group, "--all-topics", "--shift-by=-1", "--execute") == [
        (topic, 0, 6, 5, "reset"),
        (topic, 1, 2, 1, "reset"),
        (other, 0, 2, 1, "reset"),
    ]
    with cluster.member(group, topic, group_protocol=protocol) as consumer:
        assert _first_offsets(consumer, 2) == {0: 5, 1: 1}


def test_what_cannot_be_done_is_told_in_one_line_and_spares_the_rest(cluster: GroupCluster) -> None:
    topic, group, nobody = cluster.topic("refused", 2, 2), f"refused-{RUN}", f"nobody-{RUN}"
    cluster.reset(group, f"--topic={topic}:1", "--to-latest", "--execute")
    for words, complaint in {
        ("describe", nobody): f"there is no group {nobody}: `headrace group list` shows what there is",
        ("delete", nobody, "--yes"): f"there is no group {nobody}: `headrace group list` shows what there is",
        ("reset-offsets", nobody, "--all-topics", "--to-latest"): "has committed no offsets: name what to reset",
        ("reset-offsets", group, f"--topic=no-{RUN}", "--to-latest"): f"there is no topic no-{RUN}",
        ("reset-offsets", group, f"--topic={topic}:0,2", "--to-latest", "--execute"): "has no partition 2",
        ("reset-offsets", group, f"--topic={topic}:0", "--shift-by=1"): "there is nothing to shift",
    }.items():
        told = cluster.run("group", *words, code=1).stderr.decode()
        assert complaint in told and told.startswith("headrace: ") and told.count("\n") == 1, words
    assert cluster.committed(group) == {1: 2}

    ended = cluster.run("group", "describe", nobody, group, code=1)
    assert f"group {group}: classic, empty".encode() in ended.stdout
    ended = cluster.run("group", "delete", nobody, group, "--yes", code=1)
    assert ended.stdout.decode() == f"deleted group {group}\n" and nobody.encode() in ended.stderr
