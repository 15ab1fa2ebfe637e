"""IncrementalAlterConfigs (44), versions 0-1: set and unset configs of topics, groups and brokers; v1 is flexible.

A config is set, unset, or, where it is a list, added to or taken away from. A broker is altered by itself, or,
without a name, all of them together; only what can change while they run. Each resource is changed in one
transaction, or not at all. What is added to or taken away from is the list as it was when the request arrived: of two
such requests at the same moment the later one wins.
"""

import enum

from headrace.errors import Missing
from headrace.groups.configs import InvalidGroupConfig
from headrace.handlers.call import Call, Refusal, Refused
from headrace.handlers.config_resources import ResourceType, alter_each, check_is_self
from headrace.handlers.node import Node
from headrace.model.error_codes import ErrorCode
from headrace.runtime.text import one_line
from headrace.topics.configs import MAX_SHOWN_CHARS, edited_list
from headrace.topics.names import check_name
from headrace.wire.messages import IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse

_Resource = IncrementalAlterConfigsRequest.AlterConfigsResource
_Config = IncrementalAlterConfigsRequest.AlterableConfig
_Answer = IncrementalAlterConfigsResponse.AlterConfigsResourceResponse


class Operation(enum.IntEnum):
    """Kafka's numbers for what is done to a config."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


_EDITS = frozenset({Operation.APPEND, Operation.SUBTRACT})


async def handle(node: Node, call: Call, request: IncrementalAlterConfigsRequest) -> IncrementalAlterConfigsResponse:
    """Alter every resource that was named, each by itself."""
    if any(config.config_operation in _EDITS for one in request.resources for config in one.configs):
        await node.topics.refresh()
        await node.broker_configs.refresh()

    async def alter(resource: _Resource) -> None:
        if resource.resource_type == ResourceType.GROUP:
            group_changes = {config.name: _new_group_value(config) for config in resource.configs}
            await node.group_configs.set(resource.resource_name, group_changes, validate_only=request.validate_only)
            return
        if resource.resource_type == ResourceType.BROKER:
            await _alter_broker(node, resource, validate_only=request.validate_only)
            return
        changes = {config.name: _new_value(node, resource.resource_name, config) for config in resource.configs}
        await node.admin.set_configs(resource.resource_name, changes, validate_only=request.validate_only)

    outcomes = await alter_each(request.resources, alter)
    answers = [_answer(one, outcome) for one, outcome in zip(request.resources, outcomes, strict=True)]
    return IncrementalAlterConfigsResponse(responses=answers)


def refused(call: Call, request: IncrementalAlterConfigsRequest, refusal: Refusal) -> IncrementalAlterConfigsResponse:
    """Answer every resource that was named with the same error."""
    return IncrementalAlterConfigsResponse(responses=[_answer(one, refusal) for one in request.resources])


async def _alter_broker(node: Node, resource: _Resource, *, validate_only: bool) -> None:
    for_all = not resource.resource_name
    if not for_all:
        check_is_self(node, resource.resource_name)
    changes = {config.name: _new_broker_value(node, config, for_all=for_all) for config in resource.configs}
    await node.broker_configs.set(changes, for_all=for_all, validate_only=validate_only)


def _new_broker_value(node: Node, config: _Config, *, for_all: bool) -> str | None:
    """Return what a broker's config becomes; `None` unsets it."""
    match config.config_operation:
        case Operation.DELETE:
            return None
        case Operation.SET:
            return _given(config)
        case Operation.APPEND | Operation.SUBTRACT:
            is_append = config.config_operation == Operation.APPEND
            return node.broker_configs.edited(config.name, _given(config), for_all=for_all, is_append=is_append)
    raise _unknown_operation(config.config_operation)


def _new_value(node: Node, topic_name: str, config: _Config) -> str | None:
    """Return what a config becomes; `None` unsets it."""
    match config.config_operation:
        case Operation.DELETE:
            return None
        case Operation.SET:
            return _given(config)
        case Operation.APPEND | Operation.SUBTRACT:
            topic = node.topics.get(topic_name)
            if topic is None:
                check_name(topic_name)
                raise Missing(f"there is no topic '{topic_name}'")
            is_append = config.config_operation == Operation.APPEND
            return edited_list(config.name, topic.configs, _given(config), is_append=is_append)
    raise _unknown_operation(config.config_operation)


def _new_group_value(config: _Config) -> str | None:
    """Return what a group's config becomes; none of them is a list."""
    match config.config_operation:
        case Operation.DELETE:
            return None
        case Operation.SET:
            return _given(config)
        case Operation.APPEND | Operation.SUBTRACT:
            shown = one_line(config.name, max_chars=MAX_SHOWN_CHARS)
            raise InvalidGroupConfig(f"{shown} is not a list: it can be set and unset only")
    raise _unknown_operation(config.config_operation)


def _unknown_operation(number: int) -> Refused:
    return Refused(
        ErrorCode.INVALID_REQUEST,
        f"operation {number} is unknown: 0 sets, 1 unsets, 2 adds to a list, 3 takes away from it",
    )


def _given(config: _Config) -> str:
    if config.value is None:
        shown = one_line(config.name, max_chars=MAX_SHOWN_CHARS)
        raise Refused(ErrorCode.INVALID_REQUEST, f"{shown} has no value: only operation 1 needs none")
    return config.value


def _answer(resource: _Resource, refusal: Refusal) -> _Answer:
    return _Answer(
        error_code=refusal.code,
        error_message=refusal.message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
