"""AlterConfigs (33), versions 0-2: replace all configs of topics, groups and brokers; v2 is flexible.

What a request does not name goes back to its default: that is why clients have moved to IncrementalAlterConfigs.
A broker is altered by itself, or, without a name, all of them together; only what can change while they run. Each
resource is changed in one transaction, or not at all.
"""

from headrace.handlers.call import Call, Refusal, Refused
from headrace.handlers.config_resources import ResourceType, alter_each, check_is_self
from headrace.handlers.node import Node
from headrace.model.error_codes import ErrorCode
from headrace.runtime.text import one_line
from headrace.topics.configs import MAX_SHOWN_CHARS
from headrace.wire.messages import AlterConfigsRequest, AlterConfigsResponse

_Resource = AlterConfigsRequest.AlterConfigsResource


async def handle(node: Node, call: Call, request: AlterConfigsRequest) -> AlterConfigsResponse:
    """Alter every resource that was named, each by itself."""

    async def alter(resource: _Resource) -> None:
        configs = _configs(resource)
        if resource.resource_type == ResourceType.GROUP:
            await node.group_configs.set(
                resource.resource_name, configs, replace=True, validate_only=request.validate_only
            )
            return
        if resource.resource_type == ResourceType.BROKER:
            for_all = not resource.resource_name
            if not for_all:
                check_is_self(node, resource.resource_name)
            await node.broker_configs.set(configs, for_all=for_all, replace=True, validate_only=request.validate_only)
            return
        await node.admin.set_configs(
            resource.resource_name, configs, replace=True, validate_only=request.validate_only
        )

    outcomes = await alter_each(request.resources, alter)
    answers = [_answer(one, outcome) for one, outcome in zip(request.resources, outcomes, strict=True)]
    return AlterConfigsResponse(responses=answers)


def refused(call: Call, request: AlterConfigsRequest, refusal: Refusal) -> AlterConfigsResponse:
    """Answer every resource that was named with the same error."""
    return AlterConfigsResponse(responses=[_answer(one, refusal) for one in request.resources])


def _configs(resource: _Resource) -> dict[str, str]:
    configs: dict[str, str] = {}
    for config in resource.configs:
        if config.value is None:
            shown = one_line(config.name, max_chars=MAX_SHOWN_CHARS)
            raise Refused(ErrorCode.INVALID_REQUEST, f"{shown} has no value: leave it out to unset it")
        configs[config.name] = config.value
    return configs


def _answer(resource: _Resource, refusal: Refusal) -> AlterConfigsResponse.AlterConfigsResourceResponse:
    return AlterConfigsResponse.AlterConfigsResourceResponse(
        error_code=refusal.code,
        error_message=refusal.message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
