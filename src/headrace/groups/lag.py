"""How far the groups of this broker are behind, as a metric: records between what is committed and the log's end.

Read off every few seconds, from what is committed and from what this broker knows of the log; a bounded number of
groups by name, all others together.
"""

from collections.abc import Mapping

from headrace.groups.records import OffsetRecord
from headrace.groups.seats import Seats
from headrace.groups.store import Partition, read_offsets
from headrace.index.cache import IndexCache
from headrace.metadata.port import MetadataStore
from headrace.runtime.metrics import OTHER, Label, Metrics
from headrace.topics.directory import TopicDirectory

MAX_GROUPS_BY_NAME = 100
GROUPS_PER_TICK = 500


class LagMeter:
    """Measures groups that have members."""

    def __init__(
        self, metrics: Metrics, *, seats: Seats, store: MetadataStore, topics: TopicDirectory, index: IndexCache
    ) -> None:
        self._label = Label("group", limit=MAX_GROUPS_BY_NAME)
        self._gauges = metrics.gauges("group_lag_records", "Records that a group has not committed yet.", self._label)
        self._seats = seats
        self._store = store
        self._topics = topics
        self._index = index
        self._shown: set[str] = set()

    async def tick(self) -> None:
        """Measure all groups with members once; those that have none any more count as not behind."""
        lags: dict[str, int] = dict.fromkeys(self._shown, 0)
        for seat in [seat for seat in self._seats if seat.machine.member_count][:GROUPS_PER_TICK]:
            name = self._label.bound(seat.group_id)
            lag = self._lag(await read_offsets(self._store, seat.keys, None))
            lags[name] = lags.get(name, 0) + lag if name == OTHER else lag
        for name, lag in lags.items():
            self._gauges.of(name).set(lag)
        self._shown = set(lags)

    def _lag(self, committed: Mapping[Partition, OffsetRecord]) -> int:
        lag = 0
        for (topic_id, partition), record in committed.items():
            topic = self._topics.get_by_id(topic_id)
            if topic is not None and partition < len(topic.streams):
                head = self._index.view.head(topic.streams[partition])
                if head is not None:
                    lag += max(0, head.high_watermark - record.offset)
        return lag
