"""Configs of brokers change while clients work: what is set shows in what clients may do next, on every broker."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ResourceType,
)

from headrace.model.error_codes import ErrorCode
from headrace.records.batch import Codec, iter_batches
from headrace.testing.batches import make_batch
from headrace.wire.messages import DescribeConfigsRequest, IncrementalAlterConfigsRequest, MetadataRequest
from tests.integration.clients.all_clients import CLIENTS
from tests.integration.clients.librdkafka import admin, create_topic, quiet
from tests.integration.clients.messages import CALL_LIMIT_SECONDS, LOG_APPEND_TIME, Failed, Message
from tests.integration.clients.test_two_brokers import wait_for_nodes
from tests.integration.clients.waiting import eventually
from tests.integration.clients.wire_client import METADATA, METADATA_VERSION, WireClient
from tests.servers.headrace import HeadraceProcess, running_headrace

DESCRIBE_CONFIGS, INCREMENTAL_ALTER_CONFIGS = 32, 44
BROKER = 4
LIMITS = {"request_timeout": CALL_LIMIT_SECONDS}
CLIENT = CLIENTS["librdkafka"]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[HeadraceProcess, HeadraceProcess]]:
    data_dir = tmp_path_factory.mktemp("data")
    with running_headrace(data_dir, node_id=1) as first, running_headrace(data_dir, node_id=2) as second:
        for broker in (first, second):
            wait_for_nodes(broker, {1, 2})
        yield first, second


def alter_all(port: int, configs: Mapping[str, str | None], *, validate_only: bool = False) -> None:
    """Set configs of all brokers, through one of them; `None` unsets. librdkafka cannot send an empty name."""
    changes = [
        IncrementalAlterConfigsRequest.AlterableConfig(name=name, config_operation=int(value is None), value=value)
        for name, value in configs.items()
    ]
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=BROKER, resource_name="", configs=changes
    )
    with WireClient(port) as client:
        request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
        (answer,) = client.ask(INCREMENTAL_ALTER_CONFIGS, 1, request).responses
    assert answer.error_code == 0, answer


def set_for_all(port: int) -> dict[str, str]:
    """Return what is set for all brokers."""
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=BROKER, resource_name="", configuration_keys=None
    )
    with WireClient(port) as client:
        (result,) = client.ask(DESCRIBE_CONFIGS, 4, DescribeConfigsRequest(resources=[resource])).results
    return {config.name: config.value for config in result.configs}


def alter(client: AdminClient, broker: str, configs: Mapping[str, str | None], **options: Any) -> None:
    """Set configs of a broker; `None` unsets."""
    entries = [
        ConfigEntry(
            name,
            value,
            incremental_operation=AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET,
        )
        for name, value in configs.items()
    ]
    resource = ConfigResource(ResourceType.BROKER, broker, incremental_configs=entries)
    client.incremental_alter_configs([resource], **LIMITS, **options)[resource].result(CALL_LIMIT_SECONDS)


def configs_of(client: AdminClient, broker: str) -> dict[str, ConfigEntry]:
    resource = ConfigResource(ResourceType.BROKER, broker)
    found: dict[str, ConfigEntry] = client.describe_configs([resource], **LIMITS)[resource].result(CALL_LIMIT_SECONDS)
    return found


@contextlib.contextmanager
def altered(port: int, **configs: str) -> Iterator[None]:
    """Set configs of all brokers while the block runs; `num_partitions` is `num.partitions`."""
    values = {name.replace("_", "."): value for name, value in configs.items()}
    alter_all(port, values)
    try:
        yield
    finally:
        alter_all(port, dict.fromkeys(values))


def refusal(client: AdminClient, broker: str, name: str, value: str) -> tuple[int, str]:
    with pytest.raises(KafkaException) as refused:
        alter(client, broker, {name: value})
    error = refused.value.args[0]
    return error.code(), error.str()


def test_configs_are_shown_with_their_sources_and_refused_by_name(
    pair: tuple[HeadraceProcess, HeadraceProcess],
) -> None:
    client = admin(pair[0].bootstrap)
    told = configs_of(client, "1")
    assert (told["broker.id"].value, configs_of(client, "2")["broker.id"].value) == ("1", "2")
    assert told["broker.id"].is_read_only and not told["message.max.bytes"].is_read_only
    assert told["advertised.listeners"].value == f"PLAINTEXT://{pair[0].bootstrap}"
    for name, value in (("node.id", "7"), ("log.dirs", "x"), ("message.max.bytes", "large"), ("no.such", "1")):
        code, said = refusal(client, "1", name, value)
        assert code == KafkaError.INVALID_REQUEST and name in said
    port = pair[0].kafka_port
    alter_all(port, {"num.partitions": "4"}, validate_only=True)
    alter(client, "1", {"num.partitions": "4"}, validate_only=True)
    assert set_for_all(port) == {}
    with altered(port, num_partitions="4"):
        alter(client, "1", {"num.partitions": "6"})
        one, two = configs_of(client, "1")["num.partitions"], configs_of(client, "2")["num.partitions"]
        assert (one.value, ConfigSource(one.source)) == ("6", ConfigSource.DYNAMIC_BROKER_CONFIG)
        assert (two.value, ConfigSource(two.source)) == ("4", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)
        assert set_for_all(pair[1].kafka_port) == {"num.partitions": "4"}
        alter(client, "1", {"num.partitions": None})
    assert configs_of(client, "1")["num.partitions"].value == "1"


def test_producers_meet_other_defaults_of_topics_on_every_broker(
    pair: tuple[HeadraceProcess, HeadraceProcess],
) -> None:
    create_topic(pair[0].bootstrap, "defaults")
    large = Message(value=b"x" * 5000)
    create_topic(pair[0].bootstrap, "tried-until-refused")
    port, append_time = pair[0].kafka_port, "LogAppendTime"
    with altered(port, message_max_bytes="2000", compression_type="gzip", log_message_timestamp_type=append_time):
        for broker in pair:

            def is_refused(broker: HeadraceProcess = broker) -> bool:
                with WireClient(broker.kafka_port) as wire:
                    return bool(wire.produce("tried-until-refused", make_batch([b"x" * 5000])).error_code == 10)

            eventually(f"broker on {broker.kafka_port} refuses large batches", is_refused)
        with pytest.raises(Failed) as refused:
            CLIENT.produce(pair[0].bootstrap, "defaults", [large])
        assert refused.value.code == ErrorCode.MESSAGE_TOO_LARGE
        with WireClient(pair[1].kafka_port) as wire:
            assert wire.produce("defaults", make_batch([b"small"])).error_code == 0
            data = wire.fetch("defaults")
            assert isinstance(data.records, memoryview)
            (view,) = list(iter_batches(data.records))[-1:]
            assert view.codec is Codec.GZIP
        rows = [row for row in CLIENT.read(pair[0].bootstrap, "defaults", {0: 1})[0] if row.message.value == b"small"]
        assert [row.timestamp_type for row in rows] == [LOG_APPEND_TIME]


def test_topics_are_made_and_groups_are_bounded_as_it_says_now(pair: tuple[HeadraceProcess, HeadraceProcess]) -> None:
    client = admin(pair[0].bootstrap)
    with altered(pair[0].kafka_port, num_partitions="3"):
        eventually("broker 2 has heard", lambda: configs_of(client, "2")["num.partitions"].value == "3")
        CLIENT.produce(pair[0].bootstrap, "made-of-three", [Message(value=b"x")])
        assert (
            len(client.list_topics("made-of-three", timeout=CALL_LIMIT_SECONDS).topics["made-of-three"].partitions)
            == 3
        )
    with altered(pair[0].kafka_port, auto_create_topics_enable="false"):
        eventually(
            "broker 2 has heard", lambda: configs_of(client, "2")["auto.create.topics.enable"].value == "false"
        )
        asked = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="never-made")])
        for broker in pair:
            with WireClient(broker.kafka_port) as wire:
                (answer,) = wire.ask(METADATA, METADATA_VERSION, asked).topics
            assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert "never-made" not in client.list_topics(timeout=CALL_LIMIT_SECONDS).topics
    with altered(pair[0].kafka_port, group_max_size="1"):
        eventually("broker 2 has heard", lambda: configs_of(client, "2")["group.max.size"].value == "1")
        config = quiet({"bootstrap.servers": pair[0].bootstrap, "group.id": "small", "auto.offset.reset": "earliest"})
        first, second = Consumer(config), Consumer(config)
        try:
            first.subscribe(["made-of-three"])
            eventually("the first is in", lambda: first.poll(0.1) is not None)
            second.subscribe(["made-of-three"])
            eventually("the second is not let in", lambda: _error(second) == KafkaError.GROUP_MAX_SIZE_REACHED)
        finally:
            first.close()
            second.close()


def _error(consumer: Consumer) -> int | None:
    found = consumer.poll(0.1)
    error = None if found is None else found.error()
    return None if error is None else error.code()


def test_connections_are_bounded_as_it_says_now_and_a_restart_knows_it(tmp_path: Path) -> None:
    with running_headrace(tmp_path) as broker:
        with WireClient(broker.kafka_port) as wire:
            alter(admin(broker.bootstrap), "1", {"max.connections.per.ip": "1", "message.max.bytes": "3000"})
            assert _is_refused(broker)
            assert wire.node_ids() == {1}
        port = broker.kafka_port
        broker.terminate()
    with running_headrace(tmp_path, kafka_port=port) as broker, WireClient(broker.kafka_port) as wire:
        assert _is_refused(broker)
        assert wire.node_ids() == {1}


def _is_refused(broker: HeadraceProcess) -> bool:
    """Say whether a further connection is closed."""
    try:
        with WireClient(broker.kafka_port) as more:
            more.node_ids()
    except (OSError, AssertionError, EOFError):
        return True
    return False
