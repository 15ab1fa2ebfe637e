"""ListConfigResources (74), versions 0-1: the names of all things that have configs.

- v0 knows client metrics only, of which there are none here; v1 asks for types, and no type asks for all of them.
"""

from headrace.handlers.call import Call, Refusal, Refused
from headrace.handlers.config_resources import ResourceType
from headrace.handlers.node import Node
from headrace.model.error_codes import ErrorCode
from headrace.wire.messages import ListConfigResourcesRequest, ListConfigResourcesResponse

_BROKER_TYPES = (ResourceType.BROKER, ResourceType.BROKER_LOGGER)


async def handle(node: Node, call: Call, request: ListConfigResourcesRequest) -> ListConfigResourcesResponse:
    """List what there is of every type that was asked for, once."""
    if call.version == 0:
        return ListConfigResourcesResponse()
    types = list(dict.fromkeys(request.resource_types)) or list(ResourceType)
    unknown = [number for number in types if number not in ResourceType.__members__.values()]
    if unknown:
        # Kafka says that it has no such type in this version.
        raise Refused(ErrorCode.UNSUPPORTED_VERSION, f"there are no resources of type {unknown[0]}")
    if ResourceType.TOPIC in types:
        await node.topics.refresh()
    if ResourceType.GROUP in types:
        await node.group_configs.refresh()
    return ListConfigResourcesResponse(
        config_resources=[
            ListConfigResourcesResponse.ConfigResource(resource_name=name, resource_type=number)
            for number in types
            for name in _names(node, number)
        ]
    )


def refused(call: Call, request: ListConfigResourcesRequest, refusal: Refusal) -> ListConfigResourcesResponse:
    """Refuse the whole list: there is nothing in it yet that could be refused by itself."""
    return ListConfigResourcesResponse(error_code=refusal.code)


def _names(node: Node, number: int) -> list[str]:
    if number == ResourceType.TOPIC:
        return [topic.name for topic in node.topics.known()]
    if number in _BROKER_TYPES:
        return [str(broker.node_id) for broker in node.cluster.brokers]
    if number == ResourceType.GROUP:
        return node.group_configs.known()
    return []
