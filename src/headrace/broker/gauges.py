"""What caches and readers hold, as metrics: read off once a second, so that the hot path counts in plain integers."""

from collections.abc import Callable

from headrace.fetch.catchup import CatchUp
from headrace.fetch.row_groups import RowGroupCache
from headrace.fetch.table_reads import GroupKey
from headrace.fetch.tail import TailCache
from headrace.groups.seats import Seats
from headrace.handlers.node import Node
from headrace.runtime.metrics import Metrics


class Gauges:
    """Copies plain numbers of the parts into metrics."""

    def __init__(
        self,
        metrics: Metrics,
        *,
        node: Node,
        tail: TailCache,
        catch_up: CatchUp,
        row_groups: RowGroupCache[GroupKey],
        seats: Seats,
    ) -> None:
        readings: dict[str, tuple[str, Callable[[], float]]] = {
            "tail_cache_bytes": ("What the tail cache holds.", lambda: tail.held_bytes),
            "tail_cache_hits": ("Reads that the tail cache answered, since the start.", lambda: tail.hits),
            "tail_cache_misses": ("Reads that it could not answer, since the start.", lambda: tail.misses),
            "catch_up_cache_bytes": ("What is held for readers behind the tail.", lambda: catch_up.held_bytes),
            "catch_up_reads": ("Reads from the object store for fetches, since the start.", lambda: catch_up.reads),
            "catch_up_reads_ahead": ("Those made before they were asked for.", lambda: catch_up.reads_ahead),
            "catch_up_far_bytes": ("Bytes being read for readers far behind.", lambda: catch_up.far.lent_bytes),
            "catch_up_far_waiting": ("Such reads that wait for their turn.", lambda: catch_up.far.waiting_count),
            "log_damages_found": (
                "Damaged ranges of the log that reads came upon, since the start; the log names each.",
                lambda: catch_up.damages_found,
            ),
            "table_cache_bytes": ("What is held of row groups read back from tables.", lambda: row_groups.held_bytes),
            "table_cache_hits": (
                "Row groups that memory had when asked for, since the start.",
                lambda: row_groups.hits,
            ),
            "table_cache_loads": (
                "Row groups read from the object store, since the start.",
                lambda: row_groups.loads,
            ),
            "fetches_parked": ("Fetches that wait for records.", lambda: node.fetcher.parked),
            "fetch_sessions": ("Fetch sessions that are kept.", lambda: node.fetch_sessions.session_count),
            "topics_known": ("Topics that this broker knows.", lambda: node.topics.topic_count),
            "groups_coordinated": ("Groups that this broker coordinates.", lambda: len(seats)),
            "group_members": ("Members of these groups.", lambda: seats.member_count),
            "brokers_alive": ("Brokers that this one counts as alive.", lambda: len(node.cluster.brokers)),
        }
        self._readings = [
            (metrics.gauges(name, sentence).of(), reading) for name, (sentence, reading) in readings.items()
        ]

    async def tick(self) -> None:
        """Read all of them off."""
        for gauge, reading in self._readings:
            gauge.set(reading())
