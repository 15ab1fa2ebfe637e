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
from headrace.model.ids import StreamId
from headrace.runtime.clock import Clock

NO_NODE = -1
"""What Kafka calls "no leader" and "no controller": nobody is known to live, not even this broker."""

MAX_BROKERS = 10_000
MAX_REMEMBERED_LEADERS = 100_000
"""How many streams' leaders are remembered per zone; beyond it all are computed anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerInfo:
    """One living broker, as clients are told."""

    node_id: int
    host: str
    port: int
    rack: str | None


class _Brokers:
    """A set of living brokers and the leaders that follow from it. It is never changed, only replaced."""

    def __init__(self, infos: dict[int, BrokerInfo]) -> None:
        self.infos = tuple(infos[node_id] for node_id in sorted(infos))
        zones: dict[str | None, list[int]] = {None: [info.node_id for info in self.infos]}
        for info in self.infos:
            if info.rack is not None:
                zones.setdefault(info.rack, []).append(info.node_id)
        self._zones = {zone: (nodes, dict[StreamId, int]()) for zone, nodes in zones.items()}

    def leader_of(self, stream: StreamId, zone: str | None) -> int:
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
        self._without_self = self._with_self = _Brokers({})
        self._self_is_known = True
        self._refresh = SharedRefresh(self._catch_up)

    @property
    def cluster_id(self) -> str:
        """The id that both stores of this cluster carry."""
        return self._cluster_id

    @property
    def brokers(self) -> tuple[BrokerInfo, ...]:
        """All living brokers, by node id."""
        return self._living().infos

    def leader_of(self, stream: StreamId, *, zone: str | None = None) -> int:
        """Return the node that a client (of that zone) is best sent to; `NO_NODE` if nobody is known to live."""
        return self._living().leader_of(stream, zone)

    @property
    def controller_id(self) -> int:
        """Return the node that is named as controller: any living one will do; the lowest id."""
        brokers = self._living().infos
        return brokers[0].node_id if brokers else NO_NODE

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

    def _living(self) -> _Brokers:
        return self._without_self if self._self_is_known or not self._is_present() else self._with_self

    async def _catch_up(self) -> None:
        rows = await self._store.range(keys.prefix_range(keys.BROKERS, limit=MAX_BROKERS))
        infos = [_info(BROKER_CODEC.decode(row.value, row.key)) for row in rows]
        known = {info.node_id: info for info in infos}
        # Every change of the registry wakes this view; leaders are remembered while the brokers stay the same.
        if known != self._known:
            self._known = known
            self._rebuild()

    def _rebuild(self) -> None:
        self._without_self = self._with_self = _Brokers(self._known)
        self._self_is_known = self._self is None or self._known.get(self._self.node_id) == self._self
        if self._self is not None and not self._self_is_known:
            self._with_self = _Brokers(self._known | {self._self.node_id: self._self})


def rendezvous(stream: StreamId, nodes: list[int]) -> int:
    """Return the node with the highest hash for a stream; `NO_NODE` if there are none."""
    if len(nodes) < 2:
        return nodes[0] if nodes else NO_NODE
    # The node breaks ties, so that the order of the list never matters.
    return max(nodes, key=lambda node: (blake2b(b"%d:%d" % (stream, node), digest_size=8).digest(), node))


def _info(record: BrokerRecord) -> BrokerInfo:
    return BrokerInfo(node_id=record.node_id, host=record.host, port=record.port, rack=record.rack)


def _is_absent() -> bool:
    return False
