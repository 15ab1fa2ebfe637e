"""Drive a broker with librdkafka through confluent-kafka: the current release, or whatever this interpreter holds.

Must stay true: nothing here needs a newer confluent-kafka than 2.5, because compat/librdkafka_old runs it too.
"""

import functools
from collections.abc import Callable, Iterable
from typing import cast

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
    libversion,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its package exports them without saying so
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from compat.driver_kit import (
    CODECS,
    LARGE_BYTES,
    RECORDS,
    WAIT_LIMIT_SECONDS,
    Headers,
    Record,
    Task,
    check,
    check_equal,
    noise,
    record,
    run_cases,
    task_from_environment,
    wait_until,
)
from compat.librdkafka.failover import failover
from compat.librdkafka.group_failover import failover_cases
from compat.librdkafka.groups import GroupCases
from compat.librdkafka.team import Settings


class Driver:
    """The cases. Each makes its own topics, so that any of them can run alone."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._admin = AdminClient(self._settings())

    def cases(self) -> dict[str, Callable[[], str | None]]:
        """Name what this driver can do."""
        codecs = {f"produce_{codec}": functools.partial(self.produce, codec) for codec in CODECS}
        return {
            **codecs,
            "api_versions": self.api_versions,
            "describe_cluster": self.describe_cluster,
            "create_topics": self.create_topics,
            "acks": self.acks,
            "large_records": self.large_records,
            "oversized_record": self.oversized_record,
            "list_offsets": self.list_offsets,
            "topic_configs": self.topic_configs,
            "broker_configs": self.broker_configs,
            "delete_records": self.delete_records,
            "create_partitions": self.create_partitions,
            "delete_topics": self.delete_topics,
            "auto_creation": self.auto_creation,
            "failover": failover,
            **GroupCases(self._task, self._admin).cases(),
            **failover_cases(),
            "transactions": self.transactions,
        }

    def api_versions(self) -> str:
        """librdkafka has no call for it, but connects only after ApiVersions was answered."""
        found = self._admin.list_topics(timeout=WAIT_LIMIT_SECONDS)
        check(len(found.brokers) >= 1, "metadata names no broker")
        return f"librdkafka {libversion()[0]}"

    def describe_cluster(self) -> None:
        found = self._admin.describe_cluster(request_timeout=WAIT_LIMIT_SECONDS).result()
        check(bool(found.cluster_id), "no cluster id")
        check(found.controller is not None, "no controller")
        listed = self._admin.list_topics(timeout=WAIT_LIMIT_SECONDS)
        check_equal(sorted(node.id for node in found.nodes), sorted(listed.brokers), "brokers")

    def create_topics(self) -> None:
        one, several = self._task.topic("create-1"), self._task.topic("create-12")
        self._create(one, 1)
        self._create(several, 12)
        for name, partitions in ((one, 1), (several, 12)):
            listed = self._admin.list_topics(name, timeout=WAIT_LIMIT_SECONDS).topics[name]
            check_equal(sorted(listed.partitions), list(range(partitions)), f"partitions of {name}")
        self._refused(one, 1, KafkaError.TOPIC_ALREADY_EXISTS)
        self._refused("bad name!", 1, KafkaError.TOPIC_EXCEPTION)
        self._refused(self._task.topic("create-0"), 0, KafkaError.INVALID_PARTITIONS)

    def produce(self, codec: str) -> None:
        for idempotent in (False, True):
            topic = self._task.topic(f"produce-{codec}-{idempotent}".lower())
            self._create(topic, 3)
            settings: Settings = {"compression.codec": codec, "enable.idempotence": idempotent, "linger.ms": 20}
            wanted = [record(number, self._task.epoch_ms) for number in range(RECORDS)]
            self._produce(topic, wanted, 3, settings)
            self._compare(topic, wanted, 3)

    def acks(self) -> None:
        for acks in (0, 1, -1):
            topic = self._task.topic(f"acks-{acks}")
            self._create(topic, 1)
            wanted = [record(number, self._task.epoch_ms) for number in range(RECORDS)]
            self._produce(topic, wanted, 1, {"acks": acks})
            self._compare(topic, wanted, 1)

    def large_records(self) -> None:
        topic = self._task.topic("large")
        self._create(topic, 1)
        wanted = [
            Record(key=None, value=noise(seed, LARGE_BYTES), headers=[], timestamp_ms=self._task.epoch_ms)
            for seed in range(4)
        ]
        self._produce(topic, wanted, 1, {"message.max.bytes": 2_000_000, "enable.idempotence": True})
        self._compare(topic, wanted, 1)

    def oversized_record(self) -> None:
        topic = self._task.topic("oversized")
        self._create(topic, 1, {"max.message.bytes": "10000"})
        errors: list[KafkaError | None] = []
        producer = Producer(self._settings())
        producer.produce(topic, noise(1, 20_000), partition=0, on_delivery=lambda error, _: errors.append(error))
        producer.flush(WAIT_LIMIT_SECONDS)
        check_equal([e.code() if e else None for e in errors], [KafkaError.MSG_SIZE_TOO_LARGE], "delivery error")
        wanted = [record(4, self._task.epoch_ms)]
        self._produce(topic, wanted, 1, {})
        self._compare(topic, wanted, 1)

    def list_offsets(self) -> None:
        topic = self._task.topic("offsets")
        self._create(topic, 1)
        epoch_ms = self._task.epoch_ms
        self._produce(topic, [record(number, epoch_ms) for number in range(10)], 1, {})
        for spec, offset in (
            (OffsetSpec.earliest(), 0),  # type: ignore[no-untyped-call]
            (OffsetSpec.latest(), 10),  # type: ignore[no-untyped-call]
            (OffsetSpec.max_timestamp(), 9),  # type: ignore[no-untyped-call]
            (OffsetSpec.for_timestamp(epoch_ms + 3_500), 4),
            (OffsetSpec.for_timestamp(epoch_ms + 4_000), 4),
            (OffsetSpec.for_timestamp(epoch_ms + 60_000), -1),
        ):
            asked = self._admin.list_offsets(
                {TopicPartition(topic, 0): spec},
                request_timeout=WAIT_LIMIT_SECONDS,
                isolation_level=IsolationLevel.READ_UNCOMMITTED,
            )
            (found,) = (future.result() for future in asked.values())
            check_equal(found.offset, offset, f"offset of {spec!r}")
        consumer = self._consumer()
        try:
            check_equal(consumer.get_watermark_offsets(TopicPartition(topic, 0), 30), (0, 10), "watermarks")
            (at_time,) = consumer.offsets_for_times([TopicPartition(topic, 0, epoch_ms + 6_001)], WAIT_LIMIT_SECONDS)
            check_equal(at_time.offset, 7, "offset by time")
        finally:
            consumer.close()

    def topic_configs(self) -> None:
        topic = self._task.topic("configs")
        self._create(topic, 1, {"retention.ms": "3600000"})
        first = self._configs(topic)
        check_equal(first["retention.ms"].value, "3600000", "retention.ms as created")
        check_equal(first["retention.ms"].source, ConfigSource.DYNAMIC_TOPIC_CONFIG.value, "source of retention.ms")
        check(first["max.message.bytes"].is_default, "max.message.bytes is not told to be a default")
        default = first["max.message.bytes"].value
        self._alter(topic, "max.message.bytes", "2000000", AlterConfigOpType.SET)
        check_equal(self._configs(topic)["max.message.bytes"].value, "2000000", "max.message.bytes as altered")
        check_equal(self._configs(topic)["retention.ms"].value, "3600000", "the other config")
        self._alter(topic, "max.message.bytes", None, AlterConfigOpType.DELETE)
        check_equal(self._configs(topic)["max.message.bytes"].value, default, "max.message.bytes after its removal")
        for name, value in (("no.such.config", "1"), ("retention.ms", "soon")):
            try:
                self._alter(topic, name, value, AlterConfigOpType.SET)
            except KafkaException as error:
                check_equal(error.args[0].code(), KafkaError.INVALID_CONFIG, f"error code of {name}={value}")
            else:
                raise AssertionError(f"{name}={value} was accepted")

    def broker_configs(self) -> None:
        """It leaves the broker as it was, and changes what no other case notices."""
        (node, *_) = sorted(self._admin.list_topics(timeout=WAIT_LIMIT_SECONDS).brokers)
        name, broker = "log.cleaner.delete.retention.ms", ConfigResource(ResourceType.BROKER, str(node))

        def shown() -> dict[str, ConfigEntry]:
            (future,) = self._admin.describe_configs([broker]).values()
            return cast("dict[str, ConfigEntry]", future.result())

        def alter(name: str, value: str | None, kind: AlterConfigOpType) -> None:
            entry = ConfigEntry(name, value, incremental_operation=kind)
            resource = ConfigResource(ResourceType.BROKER, str(node), incremental_configs=[entry])
            (future,) = self._admin.incremental_alter_configs([resource]).values()
            future.result()

        first = shown()
        check_equal(first["broker.id"].value, str(node), "broker.id")
        check(first["broker.id"].is_read_only and not first[name].is_read_only, "what can be changed")
        alter(name, "86400003", AlterConfigOpType.SET)
        try:
            wait_until(lambda: shown()[name].value == "86400003", f"{name} is altered")
            check_equal(shown()[name].source, ConfigSource.DYNAMIC_BROKER_CONFIG.value, f"source of {name}")
        finally:
            alter(name, None, AlterConfigOpType.DELETE)
        wait_until(lambda: shown()[name].value == first[name].value, f"{name} is as it was")
        for wrong in ("broker.id", name):
            try:
                alter(wrong, "soon", AlterConfigOpType.SET)
            except KafkaException as error:
                check_equal(error.args[0].code(), KafkaError.INVALID_REQUEST, f"error code of {wrong}")
            else:
                raise AssertionError(f"{wrong}=soon was accepted")

    def delete_records(self) -> None:
        topic = self._task.topic("delete-records")
        self._create(topic, 1)
        wanted = [record(number, self._task.epoch_ms) for number in range(10)]
        self._produce(topic, wanted, 1, {})
        (future,) = self._admin.delete_records([TopicPartition(topic, 0, 4)]).values()
        check_equal(future.result().low_watermark, 4, "low watermark")
        self._compare(topic, wanted[4:], 1, start_offset=4)

    def create_partitions(self) -> None:
        topic = self._task.topic("partitions")
        self._create(topic, 1)
        before = [record(number, self._task.epoch_ms) for number in range(5)]
        self._produce(topic, before, 1, {})
        for future in self._admin.create_partitions([NewPartitions(topic, 3)]).values():
            future.result()
        wait_until(
            lambda: len(self._admin.list_topics(topic, timeout=WAIT_LIMIT_SECONDS).topics[topic].partitions) == 3,
            "the topic has 3 partitions",
        )
        after = [record(number, self._task.epoch_ms) for number in range(20, 29)]
        self._produce(topic, after, 3, {})
        (first, *others) = self._read(topic, [5 + 3, 3, 3])
        check_equal(first, before + after[0::3], "partition 0")
        check_equal(others, [after[1::3], after[2::3]], "new partitions")

    def delete_topics(self) -> None:
        topic = self._task.topic("delete")
        self._create(topic, 2)
        self._produce(topic, [record(number, self._task.epoch_ms) for number in range(4)], 2, {})
        (future,) = self._admin.delete_topics([topic], operation_timeout=WAIT_LIMIT_SECONDS).values()
        future.result()
        wait_until(
            lambda: topic not in self._admin.list_topics(timeout=WAIT_LIMIT_SECONDS).topics, "the topic is gone"
        )
        self._create(topic, 1)
        wanted = [record(number, self._task.epoch_ms) for number in range(7, 9)]
        self._produce(topic, wanted, 1, {})
        self._compare(topic, wanted, 1)

    def auto_creation(self) -> None:
        topic = self._task.topic("auto")
        wanted = [record(number, self._task.epoch_ms) for number in range(10)]
        self._produce(topic, wanted, 1, {})
        self._compare(topic, wanted, 1)

    def transactions(self) -> None:
        topic = self._task.topic("transactions")
        self._create(topic, 1)
        producer = Producer({**self._settings(), "transactional.id": topic})
        producer.init_transactions(10)
        wanted = [record(number, self._task.epoch_ms) for number in range(6)]
        for part, end in ((wanted[:3], producer.abort_transaction), (wanted[3:], producer.commit_transaction)):
            producer.begin_transaction()
            for item in part:
                producer.produce(
                    topic, item.value, item.key, 0, timestamp=item.timestamp_ms, headers=list(item.headers)
                )
            producer.flush(WAIT_LIMIT_SECONDS)
            end(WAIT_LIMIT_SECONDS)
        # Markers and aborted records take offsets too, so only the records are compared.
        check_equal(self._read(topic, [3], start_offset=None)[0], wanted[3:], "committed records")

    def _settings(self, more: Settings | None = None) -> Settings:
        return {"bootstrap.servers": self._task.bootstrap, "client.id": "compat-librdkafka", **(more or {})}

    def _consumer(self, more: Settings | None = None) -> Consumer:
        return Consumer(
            self._settings(
                {
                    "group.id": "unused",
                    "auto.offset.reset": "earliest",
                    "enable.auto.commit": False,
                    "check.crcs": True,
                    **(more or {}),
                }
            )
        )

    def _create(self, topic: str, partitions: int, config: dict[str, str] | None = None) -> None:
        new = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=config or {})
        self._admin.create_topics([new], operation_timeout=WAIT_LIMIT_SECONDS)[topic].result()

    def _refused(self, topic: str, partitions: int, code: int) -> None:
        try:
            self._create(topic, partitions)
        except KafkaException as error:
            check_equal(error.args[0].code(), code, f"error code of creating {topic!r}")
        except ValueError:
            pass  # The library itself refuses it: as good.
        else:
            raise AssertionError(f"topic {topic!r} with {partitions} partitions was accepted")

    def _produce(self, topic: str, records: Iterable[Record], partitions: int, settings: Settings) -> None:
        producer = Producer(self._settings(settings))
        errors: list[KafkaError] = []
        for number, item in enumerate(records):
            producer.produce(
                topic,
                item.value,
                item.key,
                number % partitions,
                timestamp=item.timestamp_ms,
                headers=list(item.headers),
                on_delivery=lambda error, _: errors.append(error) if error else None,
            )
        check_equal(producer.flush(2 * WAIT_LIMIT_SECONDS), 0, "records that were not delivered")
        check_equal(errors, [], "delivery errors")

    def _compare(self, topic: str, wanted: list[Record], partitions: int, start_offset: int = 0) -> None:
        parts = [wanted[number::partitions] for number in range(partitions)]
        got = self._read(topic, [len(part) for part in parts], start_offset)
        for number, part in enumerate(parts):
            check_equal(len(got[number]), len(part), f"records in partition {number}")
            for found, expected in zip(got[number], part, strict=True):
                check_equal(found, expected, f"record in partition {number}")

    def _read(self, topic: str, counts: list[int], start_offset: int | None = 0) -> list[list[Record]]:
        """Read from the beginning without a group, and see that offsets follow each other (None: they need not)."""
        consumer = self._consumer()
        try:
            consumer.assign([TopicPartition(topic, number, 0) for number in range(len(counts))])
            messages = _poll(consumer, sum(counts))
        finally:
            consumer.close()
        parts: list[list[Record]] = [[] for _ in counts]
        for message in messages:
            number, offset = message.partition(), message.offset()
            assert number is not None
            if start_offset is not None:
                check_equal(offset, start_offset + len(parts[number]), f"offset in partition {number}")
            parts[number].append(_as_record(message))
        return parts

    def _configs(self, topic: str) -> dict[str, ConfigEntry]:
        (future,) = self._admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
        found: dict[str, ConfigEntry] = future.result()
        return found

    def _alter(self, topic: str, name: str, value: str | None, operation: AlterConfigOpType) -> None:
        entry = ConfigEntry(name, value, incremental_operation=operation)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        (future,) = self._admin.incremental_alter_configs([resource]).values()
        future.result()


def _poll(consumer: Consumer, count: int) -> list[Message]:
    found: list[Message] = []
    while len(found) < count:
        message = consumer.poll(WAIT_LIMIT_SECONDS)
        if message is None:
            raise AssertionError(f"{len(found)} of {count} records after {WAIT_LIMIT_SECONDS:.0f} s without one more")
        error = message.error()
        if error is not None:
            raise KafkaException(error)
        found.append(message)
    return found


def _as_record(message: Message) -> Record:
    headers = cast("Headers", list(message.headers() or []))  # typed as what a producer may give, which is more
    return Record(key=message.key(), value=message.value(), headers=headers, timestamp_ms=message.timestamp()[1])


def main() -> None:
    """Run the cases that the harness asks for."""
    task = task_from_environment()
    run_cases(task, Driver(task).cases())


if __name__ == "__main__":
    main()
