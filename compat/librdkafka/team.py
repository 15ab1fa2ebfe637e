"""Members of a group, each on a thread of its own as applications have them, and what all of them tell.

Must stay true, and `Ledger` watches over it: a partition has one owner at a time, only its owner reads it, and what
is committed is not read again. All members live in this process, so what one of them tells first also happened first.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its package exports them without saying so
    AdminClient,
    ConsumerGroupDescription,
    NewTopic,
)

from compat.driver_kit import WAIT_LIMIT_SECONDS, check, check_equal, wait_until

Settings = dict[str, str | int | float | bool]

POLL_SECONDS = 0.05
# Classic members hear of a rebalance in the answer to a heartbeat. The client's default of 3 s only makes us wait.
CLASSIC: Settings = {"heartbeat.interval.ms": 300}
CONSUMER: Settings = {"group.protocol": "consumer"}
# Commits that did not get through and are made again with the next records, or before a partition is given back.
_LATER = frozenset(
    {
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError._WAIT_COORD,
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
    }
)


class Ledger:
    """Who owns which partition, what was read and what was committed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owners: dict[int, str] = {}
        self._committed: dict[int, int] = {}
        self._reads: Counter[tuple[int, int]] = Counter()
        self.faults: list[str] = []

    def take(self, member: str, partitions: Sequence[TopicPartition]) -> None:
        """Hear that a member was given partitions."""
        with self._lock:
            for part in partitions:
                before = self._owners.get(part.partition)
                if before is not None:
                    self.faults.append(f"{part.partition} went to {member} while {before} had it")
                self._owners[part.partition] = member

    def release(self, member: str, partitions: Sequence[TopicPartition]) -> None:
        """Hear that a member gave partitions back."""
        with self._lock:
            for part in partitions:
                if self._owners.get(part.partition) == member:
                    del self._owners[part.partition]

    def strike(self, member: str) -> None:
        """Forget what a member owns that is about to be put out of the group, and is not told so in time."""
        with self._lock:
            self._owners = {part: owner for part, owner in self._owners.items() if owner != member}

    def read(self, member: str, partition: int, offset: int) -> None:
        """Hear of one record."""
        with self._lock:
            if self._owners.get(partition) != member:
                self.faults.append(f"{member} read {partition} which belongs to {self._owners.get(partition)}")
            if offset < self._committed.get(partition, 0):
                self.faults.append(f"{member} read {partition}@{offset}, {self._committed[partition]} is committed")
            self._reads[partition, offset] += 1

    def committed(self, partition: int, offset: int) -> None:
        """Hear that a commit was answered."""
        with self._lock:
            self._committed[partition] = max(offset, self._committed.get(partition, 0))

    def owned_by(self, member: str) -> set[int]:
        """Return the partitions that a member has."""
        with self._lock:
            return {partition for partition, owner in self._owners.items() if owner == member}

    @property
    def records_read(self) -> int:
        """How many different records were read."""
        with self._lock:
            return len(self._reads)

    @property
    def records_committed(self) -> int:
        """How many records lie before the offsets that were committed."""
        with self._lock:
            return sum(self._committed.values())

    @property
    def records_read_again(self) -> int:
        """How many records were read more than once."""
        with self._lock:
            return sum(times > 1 for times in self._reads.values())


class Member:
    """One consumer: it polls, and commits what it has read. `changes` counts assignments and revocations."""

    def __init__(self, name: str, settings: Settings, topics: list[str], ledger: Ledger) -> None:
        self.name = name
        self.changes = 0
        self.losses = 0
        self.error: KafkaError | None = None
        self.member_id = ""
        self._consumer = Consumer(settings)
        self._ledger = ledger
        self._uncommitted = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(topics,), name=f"member {name}", daemon=True)
        self._thread.start()

    @property
    def owned(self) -> set[int]:
        """The partitions that it has."""
        return self._ledger.owned_by(self.name)

    def close(self) -> None:
        """Close the consumer. A static member stays in the group."""
        self._stopping.set()
        self._thread.join(WAIT_LIMIT_SECONDS)
        check(not self._thread.is_alive(), f"member {self.name} did not close in time")

    def _run(self, topics: list[str]) -> None:
        try:
            self._consumer.subscribe(topics, on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)
            while not self._stopping.is_set():
                self._poll()
        except KafkaException as error:
            self.error = error.args[0]
        finally:
            self._consumer.close()

    def _poll(self) -> None:
        message = self._consumer.poll(POLL_SECONDS)
        if message is None:
            self._commit()
            self.member_id = str(self._consumer.memberid())
            return
        error = message.error()
        if error is None:
            partition, offset = message.partition(), message.offset()
            assert partition is not None and offset is not None
            self._ledger.read(self.name, partition, offset)
            self._uncommitted = True
        elif error.code() == KafkaError._FATAL:
            raise KafkaException(error)
        # Any other error is an event that librdkafka tells of and mends by itself, such as a broker that is down.

    def _commit(self) -> None:
        if not self._uncommitted:
            return
        try:
            done = self._consumer.commit(asynchronous=False)
        except KafkaException as error:
            if error.args[0].code() not in _LATER:
                raise
            return
        for part in done or ():
            if part.error is None:
                self._ledger.committed(part.partition, part.offset)
        self._uncommitted = False

    def _assigned(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.changes += bool(partitions)
        self._ledger.take(self.name, partitions)

    def _revoked(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.changes += bool(partitions)
        self._commit()
        self._ledger.release(self.name, partitions)

    def _lost(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.losses += 1
        self._ledger.release(self.name, partitions)


class Team:
    """The members of one group over one topic of the same name, and the records that were sent to them."""

    def __init__(self, bootstrap: str, group: str, partitions: int) -> None:
        self.group = group
        self.ledger = Ledger()
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        self._settings: Settings = {"bootstrap.servers": bootstrap}
        self._partitions = partitions
        self._members: list[Member] = []
        self.sent = 0
        create_topic(self.admin, group, partitions)

    def join(self, name: str, settings: Settings, topics: list[str] | None = None) -> Member:
        """Let one more member join."""
        common: Settings = {
            "group.id": self.group,
            "client.id": name,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
        member = Member(name, {**self._settings, **common, **settings}, topics or [self.group], self.ledger)
        self._members.append(member)
        return member

    def leave(self, member: Member) -> None:
        """Close a member and forget it."""
        member.close()
        self._members.remove(member)
        check(member.error is None, f"member {member.name} ended with {member.error}")

    def forget(self, member: Member) -> None:
        """Take a member that has ended off the list; how it ended is the caller's to judge."""
        member.close()
        self._members.remove(member)

    def await_shares(self, *shares: int) -> float:
        """Wait until the members have so many partitions each, in any order; return how long that took."""
        started = time.monotonic()
        self._wait(
            lambda: sorted(len(member.owned) for member in self._members) == sorted(shares),
            lambda: f"shares of {shares}, not {[member.owned for member in self._members]}",
        )
        return time.monotonic() - started

    def send(self, count: int) -> None:
        """Send records to all partitions in turn."""
        producer = Producer({**self._settings, "enable.idempotence": True})
        errors: list[KafkaError] = []
        for number in range(self.sent, self.sent + count):
            producer.produce(
                self.group,
                str(number).encode(),
                partition=number % self._partitions,
                on_delivery=lambda error, _: errors.append(error) if error else None,
            )
        check_equal(producer.flush(2 * WAIT_LIMIT_SECONDS), 0, "records that were not delivered")
        check_equal(errors, [], "delivery errors")
        self.sent += count

    def await_read(self) -> None:
        """Wait until every record that was sent has been read by some member, and is committed."""
        self._wait(
            lambda: self.ledger.records_read == self.ledger.records_committed == self.sent,
            lambda: f"{self.sent} records, not {self.ledger.records_read}, {self.ledger.records_committed} committed",
        )

    def send_and_read(self, count: int) -> None:
        """Send, and wait until the members have read it."""
        self.send(count)
        self.await_read()

    def check_undisturbed(self) -> None:
        """Check what must be true of members that nobody has put out: no clash, and every record once."""
        check_equal(self.ledger.faults, [], "faults")
        check_equal(self.ledger.records_read_again, 0, "records that were read again")

    def describe(self) -> ConsumerGroupDescription:
        """Ask the coordinator."""
        found: ConsumerGroupDescription = self.admin.describe_consumer_groups([self.group])[self.group].result(
            WAIT_LIMIT_SECONDS
        )
        return found

    def close(self) -> None:
        """Close all members that are left."""
        for member in self._members:
            member.close()

    def _wait(self, condition: Callable[[], bool], what: Callable[[], str]) -> None:
        def met() -> bool:
            for member in self._members:
                check(member.error is None, f"member {member.name} ended with {member.error}")
            return condition()

        try:
            wait_until(met, "")
        except AssertionError as error:
            raise AssertionError(f"waiting for {what()}: {error}") from error


@contextmanager
def running_team(bootstrap: str, group: str, partitions: int) -> Iterator[Team]:
    """Make the topic, and close the members in the end."""
    team = Team(bootstrap, group, partitions)
    try:
        yield team
    finally:
        team.close()


def create_topic(admin: AdminClient, topic: str, partitions: int) -> None:
    """Create a topic with as many replicas as the broker has by default: a pair of Apache Kafka's needs two."""
    admin.create_topics([NewTopic(topic, partitions)], operation_timeout=WAIT_LIMIT_SECONDS)[topic].result()
