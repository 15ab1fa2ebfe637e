"""The members of one group, the topic that they read, and the records that were sent to them.

Must stay true of every group that nobody disturbs: a partition has one owner at a time, every record is read once.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient, ConsumerGroupDescription  # type: ignore[attr-defined]

from tests.integration.clients.kafka_python import COOPERATIVE_STICKY
from tests.integration.clients.librdkafka import Librdkafka, admin, create_topic
from tests.integration.clients.messages import CALL_LIMIT_SECONDS, Message
from tests.integration.clients.waiting import eventually
from tests.integration.groups.ledger import Ledger, Place
from tests.integration.groups.members import (
    HEARTBEAT_MS,
    AiokafkaMember,
    Joining,
    KafkaPythonMember,
    LibrdkafkaMember,
    Member,
)

PARTITIONS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A way to be a member: a library and how it is set. `is_sticky`: who stays keeps what it can."""

    name: str
    library: type[Member]
    more: Mapping[str, Any] = field(default_factory=dict)
    is_sticky: bool = False


def _classic(assignor: str, *, is_sticky: bool = False) -> Kind:
    more = {"partition.assignment.strategy": assignor, "heartbeat.interval.ms": HEARTBEAT_MS}
    return Kind(name=f"librdkafka-{assignor}", library=LibrdkafkaMember, more=more, is_sticky=is_sticky)


def _consumer(assignor: str, *, is_sticky: bool = False) -> Kind:
    more = {"group.protocol": "consumer", "group.remote.assignor": assignor}
    return Kind(name=f"librdkafka-consumer-{assignor}", library=LibrdkafkaMember, more=more, is_sticky=is_sticky)


RANGE = _classic("range")
ROUNDROBIN = _classic("roundrobin")
COOPERATIVE = _classic("cooperative-sticky", is_sticky=True)
CONSUMER = _consumer("uniform", is_sticky=True)
CONSUMER_RANGE = _consumer("range")
AIOKAFKA = Kind(name="aiokafka", library=AiokafkaMember)
KAFKA_PYTHON = Kind(name="kafka-python", library=KafkaPythonMember)
KAFKA_PYTHON_COOPERATIVE = Kind(
    name="kafka-python-cooperative",
    library=KafkaPythonMember,
    more={"partition_assignment_strategy": (COOPERATIVE_STICKY,)},
    is_sticky=True,
)


def fill(bootstrap: str, topic: str, partitions: int, per_partition: int) -> None:
    """Send so many records to each partition."""
    now_ms = int(time.time() * 1000)  # retention counts from a record's own timestamp
    messages = [
        Message(partition=partition, value=b"%d" % number, timestamp_ms=now_ms)
        for partition in range(partitions)
        for number in range(per_partition)
    ]
    Librdkafka().produce(bootstrap, topic, messages, idempotent=True)


class Team:
    """A group over one topic of the same name."""

    def __init__(self, bootstrap: str, group: str, *, partitions: int = PARTITIONS) -> None:
        self.bootstrap = bootstrap
        self.group = group
        self.ledger = Ledger()
        self.sent: dict[Place, int] = {(group, partition): 0 for partition in range(partitions)}
        self.members: list[Member] = []
        create_topic(bootstrap, group, partitions)

    def __enter__(self) -> "Team":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for member in self.members:
            member.stop()
        for member in self.members:
            member.close()

    def join(
        self,
        name: str,
        kind: Kind,
        *,
        topics: Sequence[str] | None = None,
        instance_id: str | None = None,
        commits_only_on_close: bool = False,
    ) -> Member:
        """Let one more member join; it subscribes to the group's own topic, or to these, or to a `^pattern`."""
        joining = Joining(
            bootstrap=self.bootstrap,
            group=self.group,
            topics=topics or [self.group],
            instance_id=instance_id,
            commits_only_on_close=commits_only_on_close,
            more=kind.more,
        )
        member = kind.library(name, joining, self.ledger)
        self.members.append(member)
        return member

    def leave(self, member: Member) -> None:
        """Close a member, which must have been well until then."""
        self.members.remove(member)
        member.close()
        assert member.failure is None, f"member {member.name} ended with {member.failure!r}"

    def leave_all(self) -> None:
        """Close all members."""
        for member in list(self.members):
            self.leave(member)

    def send(self, per_partition: int = 10) -> None:
        """Send records to all partitions."""
        fill(self.bootstrap, self.group, len(self.sent), per_partition)
        self.sent = {place: sent + per_partition for place, sent in self.sent.items()}

    def wait_for_shares(self, *shares: int) -> None:
        """Wait until the members have so many partitions each, in any order."""
        self.wait_until(
            lambda: sorted(len(member.owned) for member in self.members) == sorted(shares),
            lambda: f"shares of {shares}, not {[(member.name, sorted(member.owned)) for member in self.members]}",
        )

    def wait_until_read(self) -> None:
        """Wait until every record that was sent has been read."""
        total = sum(self.sent.values())
        self.wait_until(
            lambda: self.ledger.records_read >= total, lambda: f"{total} records, not {self.ledger.records_read}"
        )

    def wait_until_committed(self) -> None:
        """Wait until members know that all of it is committed; for kinds that commit by themselves."""
        self.wait_until(lambda: self.ledger.committed == self.sent, lambda: f"{self.sent}, {self.ledger.committed}")

    def send_and_read(self) -> None:
        """Send, and wait until the members have read it."""
        self.send()
        self.wait_until_read()

    def wait_until_stable(self) -> ConsumerGroupDescription:
        """Wait until the coordinator says that nothing is on the move, and return what it says."""
        found: list[ConsumerGroupDescription] = []

        def is_stable() -> bool:
            found[:] = [self.described()]
            return found[0].state.name == "STABLE"

        self.wait_until(is_stable, lambda: f"a stable group, not {found[0].state}")
        return found[0]

    def described(self) -> ConsumerGroupDescription:
        """Ask the coordinator."""
        operator = self._operator()
        asked = operator.describe_consumer_groups([self.group], request_timeout=CALL_LIMIT_SECONDS)
        found: ConsumerGroupDescription = asked[self.group].result(CALL_LIMIT_SECONDS)
        return found

    def committed(self) -> dict[Place, int]:
        """Return what the coordinator has, for all topics."""
        operator = self._operator()
        wanted = [ConsumerGroupTopicPartitions(self.group)]
        asked = operator.list_consumer_group_offsets(wanted, request_timeout=CALL_LIMIT_SECONDS)
        found = asked[self.group].result(CALL_LIMIT_SECONDS)
        return {(part.topic, part.partition): part.offset for part in found.topic_partitions or ()}

    def verify_undisturbed(self) -> None:
        """Check what must be true where no member was put out: one owner at a time, every record once."""
        self.verify_faultless()
        assert self.ledger.read_again == [], "records that were read again"

    def verify_faultless(self) -> None:
        """Check that nobody told of anything that must not be."""
        assert self.ledger.faults == []
        assert [member.failure for member in self.members if member.failure is not None] == []

    def _operator(self) -> AdminClient:
        """Return an admin client, to be held until it has answered.

        It is a new one each time: one that has seen its only broker restart may hold on to the lost connection for
        ever (librdkafka 2.16: "handle is terminating").
        """
        return admin(self.bootstrap)

    def wait_until(self, condition: Callable[[], bool], what: Callable[[], str]) -> None:
        """Wait for a condition; fail at once if a member has failed."""

        def met() -> bool:
            for member in self.members:
                assert member.failure is None, f"member {member.name} ended with {member.failure!r}"
            return condition()

        try:
            eventually("", met)
        except AssertionError as error:
            raise AssertionError(f"group {self.group}: waited for {what()} {error}") from error
