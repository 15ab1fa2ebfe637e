"""Members of groups through each client library, each on a thread of its own, as applications have them.

A member reads, commits what it has read, and tells its ledger of everything. librdkafka's members commit by
themselves, and before they give a partition back; the others leave that to their library, which promises the same.
"""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tests.integration.clients.kafka_python import Listener, open_consumer
from tests.integration.clients.librdkafka import quiet
from tests.integration.clients.messages import CALL_LIMIT_SECONDS
from tests.integration.groups.ledger import Ledger, Place

POLL_SECONDS = 0.05
HEARTBEAT_MS = 300
"""Classic members hear of a rebalance in the answer to a heartbeat. The usual three seconds only make tests wait."""

NEVER_MS = 3_600_000
"""An interval that no test lives to see the end of."""

# What commits may hear while groups are on the move; the same offsets, or newer ones, are committed again later.
_LATER = frozenset(
    {
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.STALE_MEMBER_EPOCH,
        KafkaError._WAIT_COORD,
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Joining:
    """What somebody needs to know to become a member."""

    bootstrap: str
    group: str
    topics: Sequence[str]
    instance_id: str | None = None
    commits_only_on_close: bool = False
    more: Mapping[str, Any] = field(default_factory=dict)


class Member(ABC):
    """One consumer at work. `takes` and `gives` count what it was told of partitions, `losses` what it lost."""

    def __init__(self, name: str, joining: Joining, ledger: Ledger) -> None:
        self.name = name
        self.takes = 0
        self.gives = 0
        self.losses = 0
        self.member_id = ""
        self.failure: object = None
        self._joining = joining
        self._ledger = ledger
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._guarded, name=f"member-{name}", daemon=True)
        self._thread.start()

    @property
    def owned(self) -> set[Place]:
        """The partitions that it has."""
        return self._ledger.owned_by(self.name)

    @property
    def turns(self) -> tuple[int, int, int]:
        """How often its partitions have changed."""
        return self.takes, self.gives, self.losses

    def stop(self) -> None:
        """Tell it to come to its end, without waiting for that."""
        self._stopping.set()

    def close(self) -> None:
        """Close the consumer. A static member stays in its group, any other leaves."""
        self._stopping.set()
        self._thread.join(CALL_LIMIT_SECONDS)
        assert not self._thread.is_alive(), f"member {self.name} does not come to an end"

    @abstractmethod
    def _run(self) -> None:
        """Consume until told to stop, then close the client."""

    def _guarded(self) -> None:
        try:
            self._run()
        except Exception as error:
            self.failure = error

    def _taken(self, parts: Iterable[Any]) -> None:
        places = {(part.topic, part.partition) for part in parts}
        self.takes += bool(places)
        self._ledger.take(self.name, places)

    def _given(self, parts: Iterable[Any]) -> None:
        places = {(part.topic, part.partition) for part in parts}
        self.gives += bool(places)
        self._ledger.release(self.name, places)


class LibrdkafkaMember(Member):
    """Through librdkafka."""

    def _run(self) -> None:
        self._uncommitted = False
        joining = self._joining
        common = {
            "bootstrap.servers": joining.bootstrap,
            "group.id": joining.group,
            "client.id": self.name,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": joining.commits_only_on_close,
            "auto.commit.interval.ms": NEVER_MS,
            "fetch.wait.max.ms": 100,
            "socket.timeout.ms": 5000,
            "topic.metadata.refresh.interval.ms": 1000,
            # A coordinator that stands still is found out by asking where it is.
            "coordinator.query.interval.ms": 1000,
        }
        if joining.instance_id is not None:
            common["group.instance.id"] = joining.instance_id
        self._consumer = Consumer(quiet({**common, **joining.more}))
        try:
            self._consumer.subscribe(
                list(joining.topics), on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
            )
            while not self._stopping.is_set():
                self._poll()
            self._commit()
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
            topic, partition, offset = message.topic(), message.partition(), message.offset()
            assert topic is not None and partition is not None and offset is not None
            self._ledger.read(self.name, (topic, partition), offset)
            self._uncommitted = True
        elif error.fatal():
            raise KafkaException(error)
        # Anything else is an event that librdkafka tells of and mends by itself, such as a broker that is down.

    def _commit(self) -> None:
        if not self._uncommitted or self._joining.commits_only_on_close:
            return
        try:
            done = self._consumer.commit(asynchronous=False)
        except KafkaException as error:
            if error.args[0].code() not in _LATER:
                raise
            return
        for part in done or ():
            if part.error is None and part.offset >= 0:
                self._ledger.commit((part.topic, part.partition), part.offset)
        self._uncommitted = False

    def _assigned(self, _: Consumer, parts: list[TopicPartition]) -> None:
        self._taken(parts)

    def _revoked(self, _: Consumer, parts: list[TopicPartition]) -> None:
        self._commit()
        self._given(parts)

    def _lost(self, _: Consumer, parts: list[TopicPartition]) -> None:
        self.losses += 1
        self._given(parts)


class AiokafkaMember(Member):
    """Through aiokafka. Not for tests that take brokers away: it may leave connections behind then, and warns."""

    def _run(self) -> None:
        asyncio.run(self._consume())

    async def _consume(self) -> None:
        joining = self._joining
        consumer = AIOKafkaConsumer(
            bootstrap_servers=joining.bootstrap,
            group_id=joining.group,
            client_id=self.name,
            group_instance_id=joining.instance_id,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=NEVER_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            fetch_max_wait_ms=100,
            metadata_max_age_ms=1000,
            **joining.more,
        )
        consumer.subscribe(list(joining.topics), listener=_AiokafkaListener(self))
        try:
            await consumer.start()
            while not self._stopping.is_set():
                for part, rows in (await consumer.getmany(timeout_ms=int(POLL_SECONDS * 1000))).items():
                    for row in rows:
                        self._ledger.read(self.name, (part.topic, part.partition), row.offset)
            # It does not tell its listener that it gives everything back.
            self._ledger.release(self.name)
        finally:
            await consumer.stop()


class _AiokafkaListener(ConsumerRebalanceListener):  # type: ignore[misc]  # the package has no types
    def __init__(self, member: AiokafkaMember) -> None:
        self._member = member

    def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        self._member._given(revoked)

    def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        self._member._taken(assigned)


class KafkaPythonMember(Member):
    """Through kafka-python."""

    def _run(self) -> None:
        joining = self._joining
        consumer = open_consumer(
            joining.bootstrap,
            group_id=joining.group,
            client_id=self.name,
            group_instance_id=joining.instance_id,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=NEVER_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            fetch_max_wait_ms=100,
            metadata_max_age_ms=1000,
            **joining.more,
        )
        try:
            consumer.subscribe(list(joining.topics), listener=Listener(self._given, self._taken))
            while not self._stopping.is_set():
                for part, rows in consumer.poll(timeout_ms=int(POLL_SECONDS * 1000)).items():
                    for row in rows:
                        self._ledger.read(self.name, (part.topic, part.partition), row.offset)
        finally:
            consumer.close()
