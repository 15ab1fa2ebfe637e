"""FindCoordinator (10), versions 0-6: which broker to ask for a group, a transaction or a share group's partition.

- v1 has key types and error messages; v4 asks for several keys at once; v6 knows share keys.

Of a group it is the broker that holds its lease, or the one that is to take it. Everything else has no coordinator of
its own yet, and is spread over the living brokers by name.
"""

import re

from headrace.cluster.view import NO_NODE, BrokerInfo
from headrace.errors import OutcomeUnknown, Retryable
from headrace.groups.problems import GroupRefused
from headrace.handlers.call import Call, Refusal, Refused
from headrace.handlers.node import Node
from headrace.model.error_codes import ErrorCode
from headrace.wire.messages import FindCoordinatorRequest, FindCoordinatorResponse

FIRST_VERSION_WITH_TYPES = 1
FIRST_VERSION_OF_MANY = 4
FIRST_VERSION_OF_SHARES = 6

GROUP, TRANSACTION, SHARE = range(3)

_SHARE_KEY = re.compile(r".+:[A-Za-z0-9_-]{22}:-?[0-9]{1,10}", re.DOTALL)
"""Group, topic id and partition, as Kafka reads them: the group may have colons of its own."""

_Coordinator = FindCoordinatorResponse.Coordinator


async def handle(node: Node, call: Call, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
    """Find the coordinator of every key, each by itself."""
    if call.version >= FIRST_VERSION_OF_MANY:
        found = [await _find(node, call, request, key) for key in request.coordinator_keys]
        return FindCoordinatorResponse(coordinators=found)
    one = await _find(node, call, request, request.key)
    return _single(call, one)


def refused(call: Call, request: FindCoordinatorRequest, refusal: Refusal) -> FindCoordinatorResponse:
    """Refuse every key that was asked for."""
    if call.version >= FIRST_VERSION_OF_MANY:
        return FindCoordinatorResponse(coordinators=[_refused(key, refusal) for key in request.coordinator_keys])
    return _single(call, _refused(request.key, refusal))


async def _find(node: Node, call: Call, request: FindCoordinatorRequest, key: str) -> _Coordinator:
    try:
        _check(call, request.key_type, key)
        broker = await node.groups.find(key, is_group=request.key_type == GROUP)
    except Refused as error:
        return _refused(key, error.refusal)
    except (GroupRefused, Retryable, OutcomeUnknown) as error:
        return _refused(key, Refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)))
    if broker is None:
        return _refused(key, Refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE, "no broker is known to live: ask again"))
    return _found(key, broker)


def _check(call: Call, key_type: int, key: str) -> None:
    """Raise `Refused` for keys that cannot have a coordinator."""
    if key_type not in (GROUP, TRANSACTION, SHARE) or (key_type == SHARE and call.version < FIRST_VERSION_OF_SHARES):
        raise Refused(ErrorCode.INVALID_REQUEST, f"there are no coordinators of type {key_type} in this version")
    if key_type == SHARE and not _SHARE_KEY.fullmatch(key):
        raise Refused(ErrorCode.INVALID_REQUEST, "a share key is a group, a topic id and a partition, with colons")


def _found(key: str, broker: BrokerInfo) -> _Coordinator:
    return _Coordinator(key=key, node_id=broker.node_id, host=broker.host, port=broker.port, error_message=None)


def _refused(key: str, refusal: Refusal) -> _Coordinator:
    return _Coordinator(
        key=key, node_id=NO_NODE, host="", port=-1, error_code=refusal.code, error_message=refusal.message
    )


def _single(call: Call, one: _Coordinator) -> FindCoordinatorResponse:
    return FindCoordinatorResponse(
        error_code=one.error_code,
        error_message=one.error_message if call.version >= FIRST_VERSION_WITH_TYPES else None,
        node_id=one.node_id,
        host=one.host,
        port=one.port,
    )
