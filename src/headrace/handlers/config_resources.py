"""What DescribeConfigs and its neighbours are about: what has configs, and what of it can be altered."""

import enum
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from headrace.cluster.broker_configs import InvalidBrokerConfig, NoList
from headrace.errors import HeadraceError
from headrace.groups.configs import InvalidGroupConfig
from headrace.handlers.call import Refusal, Refused
from headrace.handlers.node import Node
from headrace.handlers.topic_refusals import refusal_of_topic
from headrace.model.error_codes import ErrorCode


class ResourceType(enum.IntEnum):
    """Kafka's numbers for what has configs."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


_WHY_FIXED = {
    ResourceType.BROKER_LOGGER: "a broker has one log level, logging.level, and it is given when it starts",
    ResourceType.CLIENT_METRICS: "brokers do not ask clients for metrics, so there is nothing to configure",
}

ALTERABLE = frozenset({ResourceType.TOPIC, ResourceType.BROKER, ResourceType.GROUP})

ALTERED = Refusal(ErrorCode.NONE)


class _Config(Protocol):
    @property
    def name(self) -> str: ...


class _Resource(Protocol):
    """What the two requests that alter configs have in common."""

    @property
    def resource_type(self) -> int: ...
    @property
    def resource_name(self) -> str: ...
    @property
    def configs(self) -> Sequence[_Config]: ...


R = TypeVar("R", bound=_Resource)


async def alter_each(resources: Sequence[R], alter: Callable[[R], Awaitable[None]]) -> list[Refusal]:
    """Alter every resource that can be altered; return what became of each, in order."""
    times = Counter((one.resource_type, one.resource_name) for one in resources)
    outcomes = []
    for resource in resources:
        try:
            _check(resource, is_repeated=times[resource.resource_type, resource.resource_name] > 1)
            await alter(resource)
        except (InvalidGroupConfig, NoList) as error:
            outcomes.append(Refusal(ErrorCode.INVALID_CONFIG, str(error)))
        except InvalidBrokerConfig as error:
            # Not INVALID_CONFIG: this is what Apache Kafka 4.3 answers, for wrong values as well.
            outcomes.append(Refusal(ErrorCode.INVALID_REQUEST, str(error)))
        except (HeadraceError, Refused) as error:
            outcomes.append(refusal_of_topic(error))
        else:
            outcomes.append(ALTERED)
    return outcomes


def check_is_self(node: Node, name: str) -> None:
    """Raise `Refused` unless a broker is named that is this one: each answers for itself, as in Kafka."""
    if name != str(node.node_id):
        raise Refused(ErrorCode.INVALID_REQUEST, f"this is broker {node.node_id}: ask the broker that you mean")


def unknown_type(number: int) -> Refused:
    """Return what is said of a resource type that does not exist."""
    known = ", ".join(f"{one.value} ({one.name})" for one in ResourceType)
    return Refused(ErrorCode.INVALID_REQUEST, f"there are no resources of type {number}: known are {known}")


def _check(resource: _Resource, *, is_repeated: bool) -> None:
    """Raise `Refused` for what Kafka does not accept either, and for what cannot be altered here."""
    if resource.resource_type not in ResourceType.__members__.values():
        raise unknown_type(resource.resource_type)
    if is_repeated:
        raise Refused(ErrorCode.INVALID_REQUEST, "the request names this resource more than once")
    if resource.resource_type == ResourceType.GROUP and not resource.resource_name:
        raise Refused(ErrorCode.INVALID_REQUEST, "a group has a name of at least one character")
    if resource.resource_type not in ALTERABLE:
        raise Refused(ErrorCode.INVALID_REQUEST, _WHY_FIXED[ResourceType(resource.resource_type)])
    if len({config.name for config in resource.configs}) != len(resource.configs):
        raise Refused(ErrorCode.INVALID_REQUEST, "the request names a config of this resource more than once")
