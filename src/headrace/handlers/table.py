"""The index of Kafka APIs: what is served, in which versions, by which file.

Routing, ApiVersions and docs/reference/kafka-apis.md all come from here. Versions are those of the message table
unless a line says otherwise.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Protocol, cast

from headrace.handlers import (
    alter_configs,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    consumer_group_describe,
    consumer_group_heartbeat,
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_quorum,
    describe_topic_partitions,
    elect_leaders,
    fetch,
    find_coordinator,
    get_telemetry_subscriptions,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_config_resources,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    push_telemetry,
    sync_group,
    update_features,
)
from headrace.handlers.api import Api
from headrace.handlers.api_versions import ApiVersions
from headrace.handlers.call import Call, Refusal
from headrace.handlers.node import Node
from headrace.wire.compiler import reader, writer
from headrace.wire.headers import known_versions
from headrace.wire.reading import MAX_REQUEST_ELEMENTS
from headrace.wire.schema import apis


class _Handler(Protocol):
    """A handler file, or an object that looks like one."""

    handle: Callable[[Node, Call, Any], Awaitable[Any]]
    refused: Callable[[Call, Any, Refusal], Any]


def served() -> Iterator[tuple[int, int, int]]:
    """Yield key, first and last version of each API, as ApiVersions tells them."""
    for api in TABLE.values():
        yield api.key, api.first_version, api.last_version


_HANDLERS: Mapping[int, object] = {
    0: produce,
    1: fetch,
    2: list_offsets,
    3: metadata,
    8: offset_commit,
    9: offset_fetch,
    10: find_coordinator,
    11: join_group,
    12: heartbeat,
    13: leave_group,
    14: sync_group,
    15: describe_groups,
    16: list_groups,
    18: ApiVersions(served),
    19: create_topics,
    20: delete_topics,
    21: delete_records,
    22: init_producer_id,
    23: offset_for_leader_epoch,
    32: describe_configs,
    33: alter_configs,
    34: alter_replica_log_dirs,
    35: describe_log_dirs,
    37: create_partitions,
    42: delete_groups,
    43: elect_leaders,
    44: incremental_alter_configs,
    45: alter_partition_reassignments,
    46: list_partition_reassignments,
    47: offset_delete,
    55: describe_quorum,
    57: update_features,
    60: describe_cluster,
    61: describe_producers,
    68: consumer_group_heartbeat,
    69: consumer_group_describe,
    71: get_telemetry_subscriptions,
    72: push_telemetry,
    74: list_config_resources,
    75: describe_topic_partitions,
}

MAX_PRODUCE_ELEMENTS = 32_768
"""Topics and partitions in one Produce request. Each partition is a batch to check and to commit. A Java producer
with its default of 1 MiB per request has room for 14,000 of the smallest batches."""

MAX_ADMIN_ELEMENTS = 16_384
"""Names, groups, configs and assignments in one request of a tool. Each costs a look-up, a transaction, or an answer
that is many times larger than itself."""

_MAX_ELEMENTS = {
    "Produce": MAX_PRODUCE_ELEMENTS,
    **dict.fromkeys(
        (
            "AlterConfigs",
            "ConsumerGroupDescribe",
            "CreatePartitions",
            "CreateTopics",
            "DeleteGroups",
            "DeleteTopics",
            "DescribeConfigs",
            "DescribeGroups",
            "DescribeTopicPartitions",
            "FindCoordinator",
            "IncrementalAlterConfigs",
        ),
        MAX_ADMIN_ELEMENTS,
    ),
}
"""Everything else may have as many as the codec reads at all: a consumer may name each of 100,000 partitions."""

WARMED = ("Produce", "Fetch", "Metadata", "ApiVersions")
"""Messages whose readers and writers are compiled before the first client comes: each takes some milliseconds."""


def _api(key: int, handler: object) -> Api:
    first, last = known_versions()[key]
    file = cast(_Handler, handler)
    return Api(
        key=key,
        name=apis()[key].name,
        first_version=first,
        last_version=last,
        handle=file.handle,
        refused=file.refused,
        max_elements=_MAX_ELEMENTS.get(apis()[key].name, MAX_REQUEST_ELEMENTS),
    )


TABLE: Mapping[int, Api] = {key: _api(key, handler) for key, handler in _HANDLERS.items()}


def warm_up() -> None:
    """Compile what nearly every client asks for first, in its newest version."""
    for api in TABLE.values():
        if api.name in WARMED:
            reader(f"{api.name}Request", api.last_version)
            writer(f"{api.name}Response", api.last_version)
