"""Which brokers live, and which one leads a partition.

The view follows the brokers' keys by watch. What it says is a hint for affinity: any broker accepts any partition, so
a view that lags sends a client on a detour and never to a wrong answer.

Must stay true: from the same set of brokers every process names the same leader, whatever its release, its hash seed
or the order in which brokers came; and when a broker comes or goes, only the streams that it gains or loses move.
"""

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b

from headrace.cluster.registration import BROKER_CODEC, BrokerRecord
from headrace.metadata import keys
from headrace.metadata.port import MetadataStore
from headrace.metadata.refreshing import SharedRefresh, follow
from headrace.model.ids import SessionId, StreamId
from headrace.runtime.clock import Clock

NO_NODE = -1
"""What Kafka calls "no leader" and "no controller": nobody is known to live, not even this broker."""

MAX_BROKERS = 10_000
MAX_REMEMBERED_LEADERS = 100_000
"""How many streams' leaders are remembered per zone; beyond it all are computed again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerInfo:
    """One living broker, as clients are told; `session` is the one that its leases are held in."""

    node_id: int
    host: str
    port: int
    rack: str | None
    session: SessionId | None = None


class LivingBrokers:
    """A set of living brokers and the leaders that follow from it. It is never changed, only replaced."""

    def __init__(self, infos: dict[int, BrokerInfo]) -> None:
        self.infos = tuple(infos[node_id] for node_id in sorted(infos))
        zones: dict[str | None, list[int]] = {None: [info.node_id for info in self.infos]}
        for info in self.infos:
            if info.rack is not None:
                zones.setdefault(info.rack, []).append(info.node_id)
        self._zones = {zone: (nodes, dict[StreamId, int]()) for zone, nodes in zones.items()}
        self.by_node = infos
        self.by_session = {info.session: info for info in self.infos if info.session is not None}

    @property
    def controller_id(self) -> int:
        """The node that is named as controller: any living one will do; the lowest id."""
        return self.infos[0].node_id if self.infos else NO_NODE

    def known_zone(self, zone: str | None) -> str | None:
        """Return a zone that brokers stand in, or `None`, which stands for all of them."""
        return zone if zone in self._zones else None

    def leader_of(self, stream: StreamId, zone: str | None) -> int:
        """Return the node that a client of a zone is best sent to."""
        nodes, remembered = self._zones.get(zone) or self._zones[None]
        leader = remembered.get(stream)
        if leader is None:
            if len(remembered) >= MAX_REMEMBERED_LEADERS:
                remembered.clear()
            leader = remembered[stream] = rendezvous(stream, nodes)
        return leader


class ClusterView:
    """The living brokers as this process knows them."""

    def __init__(self, store: MetadataStore, *, cluster_id: str, clock: Clock) -> None:
        self._store = store
        self._cluster_id = cluster_id
        self._clock = clock
        self._known: dict[int, BrokerInfo] = {}
        self._self: BrokerInfo | None = None
        self._is_present: Callable[[], bool] = _is_absent
        self._without_self = self._with_self = LivingBrokers({})
        self._self_is_known = True
        self._alone = LivingBrokers({})
        self._refresh = SharedRefresh(self._catch_up)

    @property
    def cluster_id(self) -> str:
        """The id that both stores of this cluster carry."""
        return self._cluster_id

    @property
    def living(self) -> LivingBrokers:
        """The living brokers of this moment: another object as soon as they are others."""
        return self._living()

    @property
    def brokers(self) -> tuple[BrokerInfo, ...]:
        """All living brokers, by node id."""
        return self._living().infos

    def leader_of(self, stream: StreamId, *, zone: str | None = None) -> int:
        """Return the node that a client (of that zone) is best sent to; `NO_NODE` if nobody is known to live."""
        return self._living().leader_of(stream, zone)

    def broker(self, node_id: int) -> BrokerInfo | None:
        """Return a living broker by its number."""
        return self._living().by_node.get(node_id)

    def broker_of_session(self, session: SessionId) -> BrokerInfo | None:
        """Return the living broker that holds a session; `None` proves nothing before a refresh."""
        return self._living().by_session.get(session)

    def coordinator_of(self, key: str) -> BrokerInfo | None:
        """Return the broker that is to coordinate something which nobody coordinates yet; `None` if nobody lives."""
        living = self._living()
        node = rendezvous(key, [info.node_id for info in living.infos])
        return living.by_node.get(node)

    @property
    def controller_id(self) -> int:
        """Return the node that is named as controller: any living one will do; the lowest id."""
        return self._living().controller_id

    def introduce(self, *, node_id: int, host: str, port: int, rack: str | None) -> None:
        """Say where this broker listens, before it has joined.

        While no broker at all is known to live, this one is named all the same: a client that is told of none at all
        has nobody left to ask (librdkafka then never comes back). It joins soon, or another one will have.
        """
        self._alone = LivingBrokers({node_id: BrokerInfo(node_id=node_id, host=host, port=port, rack=rack)})

    def count_self(self, record: BrokerRecord, is_present: Callable[[], bool]) -> None:
        """Count this broker as living whenever `is_present` says so, even before the watch has shown it.

        Each incarnation calls this once it has joined (`membership.record`, `membership.is_present`).
        """
        self._self = _info(record)
        self._is_present = is_present
        self._rebuild()

    async def refresh(self) -> None:
        """Read the brokers as they are after this call began. Concurrent calls share one read."""
        await self._refresh.run()

    async def follow(self) -> None:
        """Stay fresh for ever; while the store cannot be reached, what was known last goes on counting."""
        await follow(self._store, keys.BROKERS, self.refresh, clock=self._clock)

    def _living(self) -> LivingBrokers:
        living = self._without_self if self._self_is_known or not self._is_present() else self._with_self
        return living if living.infos else self._alone

    async def _catch_up(self) -> None:
        rows = await self._store.range(keys.prefix_range(keys.BROKERS, limit=MAX_BROKERS))
        infos = [_info(BROKER_CODEC.decode(row.value, row.key)) for row in rows]
        known = {info.node_id: info for info in infos}
        # Every change of the registry wakes this view; leaders are remembered while the brokers stay the same.
        if known != self._known:
            self._known = known
            self._rebuild()

    def _rebuild(self) -> None:
        self._without_self = self._with_self = LivingBrokers(self._known)
        self._self_is_known = self._self is None or self._known.get(self._self.node_id) == self._self
        if self._self is not None and not self._self_is_known:
            self._with_self = LivingBrokers(self._known | {self._self.node_id: self._self})


def rendezvous(what: StreamId | str, nodes: list[int]) -> int:
    """Return the node with the highest hash for a stream, or for a name; `NO_NODE` if there are none."""
    if len(nodes) < 2:
        return nodes[0] if nodes else NO_NODE
    # The node breaks ties, so that the order of the list never matters.
    told = b"%d" % what if isinstance(what, int) else b"=" + what.encode("utf-8", "surrogatepass")
    return max(nodes, key=lambda node: (blake2b(b"%b:%d" % (told, node), digest_size=8).digest(), node))


def _info(record: BrokerRecord) -> BrokerInfo:
    return BrokerInfo(
        node_id=record.node_id, host=record.host, port=record.port, rack=record.rack, session=record.session
    )


def _is_absent() -> bool:
    return False
