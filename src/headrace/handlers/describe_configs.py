"""DescribeConfigs (32), versions 1-4: configs of topics, groups and this broker, and where each value comes from.

- v1 tells sources and synonyms; v3 types and, if asked for, a sentence on each config; v4 is flexible.

A list of names that is null or empty asks for all; unknown names are left out, as by Kafka. A broker answers for
itself: clients send the question to the broker that they name. The broker without a name stands for all of them, and
shows what was set for all while they run. There is nothing to show of loggers and client metrics. A group has configs
whether it exists or not.
"""

from collections.abc import Sequence

from headrace.errors import HeadraceError, Missing
from headrace.groups.configs import effective as effective_of_group
from headrace.handlers.call import Call, Refusal, Refused
from headrace.handlers.config_resources import ResourceType, check_is_self, unknown_type
from headrace.handlers.node import Node
from headrace.handlers.topic_refusals import refusal_of_topic
from headrace.model.error_codes import ErrorCode
from headrace.topics.configs import ConfigValue, effective
from headrace.topics.names import check_name
from headrace.wire.messages import DescribeConfigsRequest, DescribeConfigsResponse

FIRST_VERSION_WITH_DOCUMENTATION = 3

_Resource = DescribeConfigsRequest.DescribeConfigsResource
_Result = DescribeConfigsResponse.DescribeConfigsResult
_Config = DescribeConfigsResponse.DescribeConfigsResourceResult
_Synonym = DescribeConfigsResponse.DescribeConfigsSynonym


async def handle(node: Node, call: Call, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    """Describe every resource that was named, each by itself."""
    if any(resource.resource_type == ResourceType.TOPIC for resource in request.resources):
        # What was altered through another broker a moment ago must show here.
        await node.topics.refresh()
    if any(resource.resource_type == ResourceType.GROUP for resource in request.resources):
        await node.group_configs.refresh()
    if any(resource.resource_type == ResourceType.BROKER for resource in request.resources):
        await node.broker_configs.refresh()
    return DescribeConfigsResponse(results=[_result(node, call, request, one) for one in request.resources])


def refused(call: Call, request: DescribeConfigsRequest, refusal: Refusal) -> DescribeConfigsResponse:
    """Answer every resource that was named with the same error."""
    return DescribeConfigsResponse(results=[_refused_resource(one, refusal) for one in request.resources])


def _result(node: Node, call: Call, request: DescribeConfigsRequest, resource: _Resource) -> _Result:
    try:
        found = _configs_of(node, resource)
    except (HeadraceError, Refused) as error:
        return _refused_resource(resource, refusal_of_topic(error))
    wanted = set(resource.configuration_keys or ())
    with_documentation = request.include_documentation and call.version >= FIRST_VERSION_WITH_DOCUMENTATION
    return _Result(
        error_message=None,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=[
            _shown(config, with_synonyms=request.include_synonyms, with_documentation=with_documentation)
            for config in found
            if not wanted or config.name in wanted
        ],
    )


def _configs_of(node: Node, resource: _Resource) -> Sequence[ConfigValue]:
    name = resource.resource_name
    match resource.resource_type:
        case ResourceType.TOPIC:
            return _topic_configs(node, name)
        case ResourceType.BROKER:
            if not name:
                return node.broker_configs.describe_for_all()
            check_is_self(node, name)
            return node.broker_configs.describe()
        case ResourceType.BROKER_LOGGER:
            check_is_self(node, name)
            return ()
        case ResourceType.CLIENT_METRICS | ResourceType.GROUP:
            if not name:
                raise Refused(ErrorCode.INVALID_REQUEST, "the resource has no name")
            if resource.resource_type == ResourceType.CLIENT_METRICS:
                return ()
            groups = node.group_configs
            return effective_of_group(groups.overrides(name), groups.defaults, groups.sources)
    raise unknown_type(resource.resource_type)


def _topic_configs(node: Node, name: str) -> list[ConfigValue]:
    topic = node.topics.get(name)
    if topic is None:
        check_name(name)
        raise Missing(f"there is no topic '{name}'")
    return effective(topic.overrides, node.admin.defaults)


def _shown(config: ConfigValue, *, with_synonyms: bool, with_documentation: bool) -> _Config:
    synonyms = config.synonyms if with_synonyms else ()
    return _Config(
        name=config.name,
        value=None if config.is_sensitive else config.value,
        read_only=config.is_read_only,
        config_source=config.source,
        is_sensitive=config.is_sensitive,
        synonyms=[
            _Synonym(name=one.name, value=None if config.is_sensitive else one.value, source=one.source)
            for one in synonyms
        ],
        config_type=config.type,
        documentation=config.documentation if with_documentation else None,
    )


def _refused_resource(resource: _Resource, refusal: Refusal) -> _Result:
    return _Result(
        error_code=refusal.code,
        error_message=refusal.message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
