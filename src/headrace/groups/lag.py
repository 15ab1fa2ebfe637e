"""How far the groups of this broker are behind, as a metric: records between what is committed and the log's end.

Read off every few seconds, from what is committed and from what this broker knows of the log; a bounded number of
groups by name, all others together. A tick reads some ten thousand offsets, page by page, and a round over all groups
is shown when it is over.
"""

from collections import deque
from collections.abc import Sequence

from headrace.groups.records import OFFSET_RECORD
from headrace.groups.seat import Seat
from headrace.groups.seats import Seats
from headrace.index.cache import IndexCache
from headrace.metadata.keys import GroupKeys, prefix_range
from headrace.metadata.port import Key, MetadataStore, Versioned
from headrace.runtime.metrics import OTHER, Label, Metrics
from headrace.topics.directory import TopicDirectory

MAX_GROUPS_BY_NAME = 100

OFFSETS_PER_READ = 1_000
"""How many offsets are read, and then looked at on the loop, in one piece: some milliseconds."""

OFFSETS_PER_TICK = 20_000
"""How many offsets and groups one tick reads, about; the next tick goes on with other groups."""


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
        self._ahead: deque[Seat] = deque()
        self._lags: dict[str, int] = {}
        self._shown: set[str] = set()

    async def tick(self) -> None:
        """Measure some groups with members; after the last show all. Those that have none any more are not behind."""
        if not self._ahead:
            self._lags = dict.fromkeys(self._shown, 0)
            self._ahead.extend(seat for seat in self._seats if seat.machine.member_count)
        left = OFFSETS_PER_TICK
        while self._ahead and left > 0:
            seat = self._ahead.popleft()  # before it is measured: one that fails must not hold up the others
            name = self._label.bound(seat.group_id)
            lag, read_count = await self._measure(seat.keys)
            self._lags[name] = self._lags.get(name, 0) + lag if name == OTHER else lag
            left -= 1 + read_count
        if not self._ahead:
            for name, lag in self._lags.items():
                self._gauges.of(name).set(lag)
            self._shown = set(self._lags)

    async def _measure(self, keys: GroupKeys) -> tuple[int, int]:
        """Return how far a group is behind, and how many offsets it has."""
        lag, count = 0, 0
        after: Key | None = None
        while True:
            page = await self._store.range(prefix_range(keys.offsets_prefix, limit=OFFSETS_PER_READ, after=after))
            lag, count = lag + self._lag(keys, page), count + len(page)
            if len(page) < OFFSETS_PER_READ:
                return lag, count
            after = page[-1].key

    def _lag(self, keys: GroupKeys, page: Sequence[Versioned]) -> int:
        lag = 0
        for item in page:
            topic_id, partition = keys.partition_of(item.key)
            topic = self._topics.get_by_id(topic_id)
            if topic is not None and partition < len(topic.streams):
                head = self._index.view.head(topic.streams[partition])
                if head is not None:
                    lag += max(0, head.high_watermark - OFFSET_RECORD.decode(item.value, item.key).offset)
        return lag
