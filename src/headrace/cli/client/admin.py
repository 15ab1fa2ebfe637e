"""Topics, as the commands ask a cluster about them and change them."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
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

from headrace.cli.client.link import Link
from headrace.cli.options import Connection
from headrace.errors import HeadraceError

LEFT_TO_CLUSTER = -1
"""What the protocol says for: as many as the cluster gives by default."""
EARLIEST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDetails:
    """A partition: its brokers by node id, and its offsets, which are None where no broker leads it."""

    partition: int
    leader: int | None
    leader_address: str | None
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    earliest_offset: int | None
    latest_offset: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigValue:
    """A config that is not at its default. `value` is None where the cluster keeps it secret."""

    name: str
    value: str | None
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDetails:
    """A topic. `configs` are those that are not at their default."""

    name: str
    topic_id: str
    is_internal: bool
    partitions: tuple[PartitionDetails, ...]
    configs: tuple[ConfigValue, ...]


class TopicAdmin:
    """Creates, shows, changes and deletes topics."""

    def __init__(self, connection: Connection) -> None:
        self._link = Link(connection)
        self._client = self._link.open(AdminClient, {})
        self._limits = {"request_timeout": connection.timeout_seconds}

    def names(self) -> list[str]:
        """Return the names of all topics."""
        return sorted(self._link.wait_for_broker(self._client).topics)

    def create(self, name: str, *, partitions: int | None, configs: Mapping[str, str], validate_only: bool) -> None:
        """Create a topic; what is None is left to the cluster. Raises `Exists` if it is there."""
        self._link.wait_for_broker(self._client)
        topic = NewTopic(
            name,
            num_partitions=LEFT_TO_CLUSTER if partitions is None else partitions,
            replication_factor=LEFT_TO_CLUSTER,
            config=dict(configs),
        )
        futures = self._client.create_topics([topic], validate_only=validate_only, **self._limits)
        self._result(futures[name], f"create topic {name}", changes=not validate_only)

    def delete(self, names: Sequence[str]) -> dict[str, HeadraceError | None]:
        """Delete topics and return, for each, what went wrong."""
        self._link.wait_for_broker(self._client)
        futures = self._client.delete_topics(list(names), **self._limits)
        return {name: self._failure(futures[name], f"delete topic {name}", changes=True) for name in names}

    def add_partitions(self, name: str, total: int, *, validate_only: bool) -> None:
        """Raise the number of partitions to `total`."""
        self._link.wait_for_broker(self._client)
        futures = self._client.create_partitions(
            [NewPartitions(name, total)], validate_only=validate_only, **self._limits
        )
        self._result(futures[name], f"give topic {name} {total} partitions", changes=not validate_only)

    def alter_configs(self, name: str, *, put: Mapping[str, str], drop: Sequence[str]) -> None:
        """Set some configs of a topic and return others to their defaults; the rest stays."""
        self._link.wait_for_broker(self._client)
        entries = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in put.items()
        ] + [ConfigEntry(key, None, incremental_operation=AlterConfigOpType.DELETE) for key in drop]
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
        [future] = self._client.incremental_alter_configs([resource], **self._limits).values()
        self._result(future, f"change the configs of topic {name}", changes=True)

    def describe(self, names: Sequence[str], *, in_full: bool) -> dict[str, TopicDetails | HeadraceError]:
        """Return what there is to know about each topic, or why not; offsets and configs only `in_full`."""
        self._link.wait_for_broker(self._client)
        if not names:
            return {}
        found = self._client.describe_topics(TopicCollection(list(names)), **self._limits)
        described = {name: self._try(found[name], f"describe topic {name}") for name in found}
        topics = {name: topic for name, topic in described.items() if not isinstance(topic, HeadraceError)}
        earliest = self._offsets(topics, EARLIEST) if in_full else {}
        latest = self._offsets(topics, LATEST) if in_full else {}
        configs = self._configs(list(topics)) if in_full else {}
        return {
            name: topic
            if isinstance(topic, HeadraceError)
            else _topic_details(topic, earliest, latest, configs.get(name, ()))
            for name, topic in described.items()
        }

    def _offsets(self, topics: Mapping[str, Any], spec: OffsetSpec) -> dict[tuple[str, int], int]:
        asked = {
            TopicPartition(name, partition.id): spec
            for name, topic in topics.items()
            for partition in topic.partitions
            if partition.leader is not None
        }
        if not asked:
            return {}
        answers = {
            (place.topic, place.partition): self._try(future, f"look up the offsets of {place.topic}")
            for place, future in self._client.list_offsets(asked, **self._limits).items()
        }
        return {place: found.offset for place, found in answers.items() if not isinstance(found, HeadraceError)}

    def _configs(self, names: Sequence[str]) -> dict[str, tuple[ConfigValue, ...]]:
        if not names:
            return {}
        answers = self._client.describe_configs(
            [ConfigResource(ResourceType.TOPIC, name) for name in names], **self._limits
        )
        return {
            resource.name: _changed_configs(self._result(future, f"read the configs of topic {resource.name}"))
            for resource, future in answers.items()
        }

    def _result(self, future: "Future[Any]", doing: str, *, changes: bool = False) -> Any:
        try:
            return future.result()
        except KafkaException as error:
            raise self._link.translated(error.args[0], doing, changes=changes) from error

    def _try(self, future: "Future[Any]", doing: str, *, changes: bool = False) -> Any:
        try:
            return self._result(future, doing, changes=changes)
        except HeadraceError as error:
            return error

    def _failure(self, future: "Future[Any]", doing: str, *, changes: bool) -> HeadraceError | None:
        answer = self._try(future, doing, changes=changes)
        return answer if isinstance(answer, HeadraceError) else None


def _topic_details(
    topic: Any,
    earliest: Mapping[tuple[str, int], int],
    latest: Mapping[tuple[str, int], int],
    configs: tuple[ConfigValue, ...],
) -> TopicDetails:
    return TopicDetails(
        name=topic.name,
        topic_id=str(topic.topic_id),
        is_internal=topic.is_internal,
        partitions=tuple(
            PartitionDetails(
                partition=partition.id,
                leader=None if partition.leader is None else partition.leader.id,
                leader_address=None
                if partition.leader is None
                else f"{partition.leader.host}:{partition.leader.port}",
                replicas=tuple(node.id for node in partition.replicas),
                isr=tuple(node.id for node in partition.isr),
                earliest_offset=earliest.get((topic.name, partition.id)),
                latest_offset=latest.get((topic.name, partition.id)),
            )
            for partition in sorted(topic.partitions, key=lambda partition: partition.id)
        ),
        configs=configs,
    )


def _changed_configs(entries: Mapping[str, ConfigEntry]) -> tuple[ConfigValue, ...]:
    return tuple(
        ConfigValue(name=name, value=entry.value, source=_source(entry))
        for name, entry in sorted(entries.items())
        if _source(entry) != "default"
    )


def _source(entry: ConfigEntry) -> str:
    """Return where a config's value comes from: "default", "dynamic topic", "static broker"."""
    # The library announces its enum and answers with the bare number.
    return ConfigSource(entry.source).name.lower().removesuffix("_config").replace("_", " ")
