"""A node for handlers of topics: a real registry over the memory store, and a cluster of three brokers."""

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, TypeVar, cast

from headrace.cluster.view import NO_NODE, BrokerInfo
from headrace.handlers.all_topics import AllTopics
from headrace.handlers.call import Call, Encoded
from headrace.handlers.node import Node
from headrace.model.ids import StreamId
from headrace.model.topics import Topic
from headrace.runtime.executor import InlineExecutor
from headrace.runtime.turns import LoopTurns
from headrace.wire.compiler import read_message, write_message
from headrace.wire.messages import Message
from tests.unit.topics.registry_kit import RegistryKit

Request = TypeVar("Request", bound=Message)


class FakeCluster:
    """Brokers 1 and 2 in zone a, 3 in zone b; the leader follows from the stream alone."""

    cluster_id = "a-cluster"
    controller_id = 1

    def __init__(self) -> None:
        self.brokers: tuple[BrokerInfo, ...] = (
            BrokerInfo(node_id=1, host="one", port=9092, rack="a"),
            BrokerInfo(node_id=2, host="two", port=9092, rack="a"),
            BrokerInfo(node_id=3, host="three", port=9093, rack="b"),
        )
        self.is_empty = False

    @property
    def living(self) -> "FakeCluster":
        return self

    @property
    def infos(self) -> tuple[BrokerInfo, ...]:
        return self.brokers

    def known_zone(self, zone: str | None) -> str | None:
        return zone if zone in {broker.rack for broker in self.brokers} else None

    def leader_of(self, stream: StreamId, zone: str | None = None) -> int:
        nodes = [broker.node_id for broker in self.brokers if zone is None or broker.rack == zone]
        return NO_NODE if self.is_empty else nodes[stream % len(nodes)]


class TopicNode(RegistryKit):
    """The registry and the node over it."""

    def __init__(self, *, auto_create: bool = True) -> None:
        super().__init__()
        self.cluster = FakeCluster()
        self.executor = InlineExecutor()
        # Only what handlers of topics use: a node has many more parts.
        self.node = cast(
            Node,
            SimpleNamespace(
                topics=self.directory,
                admin=self.admin,
                cluster=self.cluster,
                auto_create_topics=auto_create,
                turns=LoopTurns(),
                executor=self.executor,
                all_topics=AllTopics(),
            ),
        )

    def topic(self, name: str) -> Topic:
        topic = self.directory.get(name)
        assert topic is not None, f"there is no topic {name}"
        return topic


def call(version: int, *, client_id: str | None = "test") -> Call:
    return Call(api_key=0, version=version, client_id=client_id, peer="peer", arrived_at=0.0)


def over_the_wire(message: Message, version: int) -> Any:
    """Return a message as the other side reads it in that version; raises if the version cannot carry it."""
    name = type(message).__name__
    return read_message(name, version, write_message(name, version, message))


async def ask(
    handle: Callable[[Node, Call, Request], Awaitable[Message | Encoded]],
    node: Node,
    version: int,
    request: Request,
    *,
    client_id: str | None = "test",
) -> Any:
    """Send a request and return the answer, both as the wire carries them."""
    answer = await handle(node, call(version, client_id=client_id), over_the_wire(request, version))
    if isinstance(answer, Encoded):
        return read_message(type(request).__name__.replace("Request", "Response"), version, answer.body)
    return over_the_wire(answer, version)
