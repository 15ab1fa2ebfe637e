"""Groups with librdkafka: sharing, coming and going, static members, patterns, offsets, and what the admin calls say.

Must stay true: nothing here needs a newer confluent-kafka than 2.5, but for the cases whose names end in `_consumer`
or `_types`.
"""

import functools
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from compat.driver_kit import WAIT_LIMIT_SECONDS, Task, check, check_equal, wait_until
from compat.librdkafka.team import CLASSIC, CONSUMER, Member, Settings, Team, create_topic, running_team

PARTITIONS = 6
RECORDS = 60


class GroupCases:
    """The cases. Each has topics and groups of its own."""

    def __init__(self, task: Task, admin: AdminClient) -> None:
        self._task = task
        self._admin = admin

    def cases(self) -> dict[str, Callable[[], str | None]]:
        """Name what this driver can do with groups."""
        classic = {
            f"share_{name.removesuffix('-sticky')}": functools.partial(self.share, name, _assignor(name))
            for name in ("range", "roundrobin", "cooperative-sticky")
        }
        both: dict[str, Callable[[], str | None]] = {}
        for protocol, settings in (("classic", CLASSIC), ("consumer", CONSUMER)):
            both[f"group_{protocol}"] = functools.partial(self.group, protocol, settings)
            both[f"static_{protocol}"] = functools.partial(self.static, protocol, settings)
            both[f"group_pattern_{protocol}"] = functools.partial(self.pattern, protocol, settings)
            both[f"group_admin_{protocol}"] = functools.partial(self.group_admin, protocol, settings)
        return {
            **classic,
            **both,
            "share_consumer": functools.partial(self.share, "consumer", CONSUMER),
            "share_consumer_range": functools.partial(
                self.share, "consumer-range", {**CONSUMER, "group.remote.assignor": "range"}
            ),
            "committed_offsets": self.committed_offsets,
            "list_groups_types": self.list_types,
        }

    def group(self, protocol: str, settings: Settings) -> None:
        """Read and commit in a group; the next consumer goes on where the first one stopped."""
        group = self._task.topic(f"group-{protocol}")
        with running_team(self._task.bootstrap, group, 2) as team:
            for name in ("first", "second"):
                member = team.join(name, settings)
                team.send_and_read(10)
                team.leave(member)
            team.check_undisturbed()
        parts = [TopicPartition(group, 0), TopicPartition(group, 1)]
        consumer = Consumer({"bootstrap.servers": self._task.bootstrap, "group.id": group})
        try:
            found = consumer.committed(parts, WAIT_LIMIT_SECONDS)
            check_equal([part.offset for part in found], [10, 10], "committed offsets")
        finally:
            consumer.close()

    def share(self, name: str, settings: Settings) -> str:
        """Two members share, a third joins, one leaves."""
        with self._team(f"share-{name}") as team:
            _, second = team.join("a", settings), team.join("b", settings)
            two = team.await_shares(3, 3)
            team.send_and_read(RECORDS)
            team.join("c", settings)
            three = team.await_shares(2, 2, 2)
            team.send_and_read(RECORDS)
            leaving = time.monotonic()
            team.leave(second)
            team.await_shares(3, 3)
            left = time.monotonic() - leaving
            team.send_and_read(RECORDS)
            team.check_undisturbed()
            return f"two in {two:.2f} s, third in {three:.2f} s, leave in {left:.2f} s"

    def static(self, protocol: str, settings: Settings) -> None:
        """Restart one of two static members: it finds its partitions again, and the other one notices nothing."""
        with self._team(f"static-{protocol}") as team:
            first = team.join("a", {**settings, "group.instance.id": "a"})
            other = team.join("b", {**settings, "group.instance.id": "b"})
            team.await_shares(3, 3)
            team.send_and_read(RECORDS)
            wait_until(lambda: team.describe().state is ConsumerGroupState.STABLE, "the group is stable")
            before, changes = first.owned, other.changes
            team.leave(first)
            team.send(RECORDS)
            again = team.join("a2", {**settings, "group.instance.id": "a"})
            team.await_shares(3, 3)
            team.await_read()
            check_equal(again.owned, before, "partitions after the restart")
            check_equal(other.changes, changes, "changes for the other member")
            if protocol == "classic":
                self._fence(team, again, {**settings, "group.instance.id": "a"})
            else:
                self._refuse(team, {**settings, "group.instance.id": "a"})
            team.send_and_read(RECORDS)
            team.check_undisturbed()

    def _fence(self, team: Team, older: Member, settings: Settings) -> None:
        """A second consumer with the id of a living one takes its place, and the older one is told so."""
        team.ledger.strike(older.name)
        newer = team.join("a3", settings)
        wait_until(lambda: older.error is not None, "the older member is fenced")
        # It is told of it by a commit or by a heartbeat, under another code each.
        check("fenced" in str(older.error).lower(), f"error of the older member: {older.error}")
        wait_until(lambda: len(newer.owned) == 3, "the newer one has its partitions")
        team.forget(older)

    def _refuse(self, team: Team, settings: Settings) -> None:
        """A second consumer with the id of a living one is refused, and the older one goes on."""
        newer = team.join("a3", settings)
        wait_until(lambda: newer.error is not None, "the newer member is refused")
        check("instance" in str(newer.error).lower(), f"error of the newer member: {newer.error}")
        team.forget(newer)

    def pattern(self, protocol: str, settings: Settings) -> None:
        """Subscribe to a pattern: classic members apply it themselves, for the others the broker does."""
        stem = self._task.topic(f"pattern-{protocol}")
        for name in (f"{stem}-one", f"{stem}-two", f"x{stem}-one"):
            self._fill(name)
        consumer = Consumer(
            {
                "bootstrap.servers": self._task.bootstrap,
                "group.id": stem,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "topic.metadata.refresh.interval.ms": 500,
                **settings,
            }
        )
        seen: set[str] = set()
        try:
            consumer.subscribe([f"^{stem}-.*"])
            wait_until(lambda: _poll_topics(consumer, seen) >= {f"{stem}-one", f"{stem}-two"}, "two topics are read")
            self._fill(f"{stem}-three")
            wait_until(lambda: f"{stem}-three" in _poll_topics(consumer, seen), "a topic that came later is read")
        finally:
            consumer.close()
        check_equal({name.removeprefix(stem) for name in seen}, {"-one", "-two", "-three"}, "topics that were read")

    def committed_offsets(self) -> None:
        """Offsets without members: altered, listed, and -1 where there are none."""
        group = self._task.topic("committed")
        create_topic(self._admin, group, 2)
        self._alter(group, 0, 3)
        check_equal(self._offsets(group), {0: 3}, "offsets of the group")
        check_equal(self._offsets(self._task.topic("unknown")), {}, "offsets of an unknown group")
        consumer = Consumer({"bootstrap.servers": self._task.bootstrap, "group.id": group})
        try:
            parts = [TopicPartition(group, 0), TopicPartition(group, 1)]
            found = consumer.committed(parts, WAIT_LIMIT_SECONDS)
            check_equal([part.offset for part in found], [3, -1001], "committed offsets")
            consumer.assign(parts)
            consumer.commit(offsets=[TopicPartition(group, 1, 8, metadata="a note")], asynchronous=False)
            (noted,) = consumer.committed(parts[1:], WAIT_LIMIT_SECONDS)
            check_equal((noted.offset, noted.metadata), (8, "a note"), "offset and note")
        finally:
            consumer.close()
        check_equal(self._offsets(group), {0: 3, 1: 8}, "offsets of the group, with the simple consumer's")

    def group_admin(self, protocol: str, settings: Settings) -> None:
        """Describe, list and delete a group; offsets and the group are safe while it has a member."""
        with self._team(f"admin-{protocol}") as team:
            member = team.join("a", settings)
            team.await_shares(PARTITIONS)
            team.send_and_read(RECORDS)
            wait_until(lambda: team.describe().state is ConsumerGroupState.STABLE, "the group is stable")
            found = team.describe()
            check_equal(found.partition_assignor, "range" if protocol == "classic" else "uniform", "assignor")
            (described,) = found.members
            check_equal((described.client_id, described.member_id), ("a", member.member_id), "the member")
            owned = {part.partition for part in described.assignment.topic_partitions}
            check_equal(owned, set(range(PARTITIONS)), "its assignment")
            self._refused(lambda: self._delete(team.group), KafkaError.NON_EMPTY_GROUP)
            self._refused(lambda: self._alter(team.group, 0, 1), KafkaError.UNKNOWN_MEMBER_ID)
            check(team.group in self._listed(ConsumerGroupState.STABLE), "the group is not listed as stable")
            team.leave(member)
            check(team.group in self._listed(ConsumerGroupState.EMPTY), "the group is not listed as empty")
            self._alter(team.group, 0, 1)
            check_equal(self._offsets(team.group)[0], 1, "the altered offset")
            self._delete(team.group)
            check(team.group not in self._listed(), "the deleted group is listed")
            self._refused(lambda: self._delete(team.group), KafkaError.GROUP_ID_NOT_FOUND)
            check_equal(self._offsets(team.group), {}, "offsets of the deleted group")

    def list_types(self) -> None:
        """List groups by type, which confluent-kafka 2.5 cannot."""
        from confluent_kafka import ConsumerGroupType  # it has no such name

        groups = {}
        for protocol, settings in (("classic", CLASSIC), ("consumer", CONSUMER)):
            groups[protocol] = self._task.topic(f"types-{protocol}")
            with running_team(self._task.bootstrap, groups[protocol], 1) as team:
                team.join("a", settings)
                team.send_and_read(1)
        for protocol, kind in (("classic", ConsumerGroupType.CLASSIC), ("consumer", ConsumerGroupType.CONSUMER)):
            result = self._admin.list_consumer_groups(types={kind}).result(WAIT_LIMIT_SECONDS)
            listed = {one.group_id for one in result.valid}
            check_equal(listed & set(groups.values()), {groups[protocol]}, f"groups of type {protocol}")

    def _team(self, name: str) -> Any:
        return running_team(self._task.bootstrap, self._task.topic(name), PARTITIONS)

    def _fill(self, topic: str) -> None:
        create_topic(self._admin, topic, 1)
        producer = Producer({"bootstrap.servers": self._task.bootstrap})
        producer.produce(topic, b"value", partition=0)
        check_equal(producer.flush(WAIT_LIMIT_SECONDS), 0, "records that were not delivered")

    def _alter(self, group: str, partition: int, offset: int) -> None:
        wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(group, partition, offset)])
        found = self._admin.alter_consumer_group_offsets([wanted])[group].result(WAIT_LIMIT_SECONDS)
        for part in found.topic_partitions:
            if part.error is not None:
                raise KafkaException(part.error)

    def _offsets(self, group: str) -> dict[int, int]:
        asked = self._admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
        found = asked[group].result(WAIT_LIMIT_SECONDS)
        return {part.partition: part.offset for part in found.topic_partitions or ()}

    def _listed(self, *states: ConsumerGroupState) -> set[str]:
        more = {"states": set(states)} if states else {}
        result = self._admin.list_consumer_groups(**more).result(WAIT_LIMIT_SECONDS)
        check_equal(result.errors, [], "errors of the brokers that were asked")
        return {one.group_id for one in result.valid}

    def _delete(self, group: str) -> None:
        self._admin.delete_consumer_groups([group])[group].result(WAIT_LIMIT_SECONDS)

    def _refused(self, call: Callable[[], None], code: int) -> None:
        try:
            call()
        except KafkaException as error:
            check_equal(error.args[0].code(), code, f"error code ({error})")
        else:
            raise AssertionError(f"no error {code} came")


def _assignor(name: str) -> Settings:
    return {**CLASSIC, "partition.assignment.strategy": name}


def _poll_topics(consumer: Consumer, seen: set[str]) -> set[str]:
    message = consumer.poll(0.2)
    if message is not None and message.error() is None:
        seen.add(str(message.topic()))
    return seen
