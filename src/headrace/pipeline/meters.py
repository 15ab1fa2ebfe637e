"""How it stands with all tables, as metrics of every broker.

Read off every few seconds from the store, where whichever process runs the pipeline has left it. A bounded number of
topics by name, all others together. A tick measures some thousand partitions, and a round over all of them is shown
when it is over.
"""

from collections import deque
from collections.abc import Callable, Mapping

from headrace.index.cache import IndexCache
from headrace.model.topics import Topic, TopicId
from headrace.pipeline.lag import TableLag, measure_lag
from headrace.pipeline.records import TableState
from headrace.pipeline.sagas import Sagas
from headrace.runtime.clock import Clock
from headrace.runtime.metrics import Label, Metrics
from headrace.runtime.turns import LoopTurns
from headrace.topics.directory import TopicDirectory
from headrace.topics.tables import table_rules_of

MAX_TOPICS_BY_NAME = 100
PARTITIONS_PER_TICK = 2_000
"""How many partitions one tick measures, about: each that waits for its table may cost a read of the store."""

PARTITIONS_PER_SLICE = 1_000
"""About how many partitions are measured, in memory, before others have their turn on the loop."""


_Reading = Callable[[TableLag, TableState], float]
_Together = Callable[[float, float], float]


def _sum(left: float, right: float) -> float:
    return left + right


_READINGS: Mapping[str, tuple[str, _Reading, _Together]] = {
    "table_lag_seconds": (
        "How long ago the oldest record was appended that is not in the table yet.",
        lambda lag, _: lag.age_ms / 1000,
        max,
    ),
    "table_lag_records": ("Records that are not in the table yet.", lambda lag, _: lag.records, _sum),
    "table_backlog_bytes": ("Bytes of the log that are not in the table yet.", lambda lag, _: lag.size_bytes, _sum),
    "table_runs": ("Runs of the pipeline that ended well, since the table's birth.", lambda _, s: s.runs, _sum),
    "table_run_failures": ("Runs that failed, since the table's birth.", lambda _, s: s.failures, _sum),
    "table_last_run_seconds": ("How long the last run took.", lambda _, state: state.last_run_ms / 1000, max),
    "table_files": ("Data files that the table's branch names.", lambda _, state: state.files, _sum),
    "table_rows": ("Rows that the table's branch shows.", lambda _, state: state.rows, _sum),
    "table_file_bytes": ("Bytes of the files that the table's branch names.", lambda _, s: s.size_bytes, _sum),
    "table_held_twice_bytes": (
        "Bytes of rows that branch and main hold in files of their own: somebody has rewritten main.",
        lambda _, state: state.held_twice_bytes,
        _sum,
    ),
    "table_merges": ("Merges of small files, since the table's birth.", lambda _, state: state.merges, _sum),
    "table_released_files": (
        "Files that went from the branch because the log has forgotten them, since the table's birth.",
        lambda _, state: state.released_files,
        _sum,
    ),
    "table_held_back_batches": (
        "Batches that could not be opened and stay in the log.",
        lambda _, state: state.held_back_batches,
        _sum,
    ),
    "table_dead_letters": (
        "Records whose value did not fit the table's schema.",
        lambda _, state: state.dead_letters,
        _sum,
    ),
    "table_status": (
        "0: all is well; 1: a table of that name is not ours; 2: the last run failed.",
        lambda _, state: state.status,
        max,
    ),
}


class TableMeter:
    """Measures the topics whose tables are enabled."""

    def __init__(
        self,
        metrics: Metrics,
        *,
        sagas: Sagas,
        topics: TopicDirectory,
        index: IndexCache,
        clock: Clock,
        file_target_bytes: int,
    ) -> None:
        self._label = Label("topic", limit=MAX_TOPICS_BY_NAME)
        self._readings: dict[str, tuple[str, _Reading, _Together]] = {
            **_READINGS,
            "table_backlog_files": (
                "About how many files will be made of what is not in the table yet.",
                lambda lag, _: -(-lag.size_bytes // file_target_bytes),
                _sum,
            ),
        }
        self._gauges = {
            name: metrics.gauges(name, sentence, self._label) for name, (sentence, _, _) in self._readings.items()
        }
        self._sagas = sagas
        self._topics = topics
        self._index = index
        self._clock = clock
        self._turns = LoopTurns()
        self._ahead: deque[Topic] = deque()
        self._states: Mapping[TopicId, TableState] = {}
        self._values: dict[str, dict[str, float]] = {}
        self._shown: set[str] = set()

    async def tick(self) -> None:
        """Measure some topics; after the last show all. Those that are gone, or have no table, are not behind."""
        if not self._ahead:
            self._values, self._states = {}, await self._sagas.states()
            self._ahead.extend(topic for topic in self._topics.known() if table_rules_of(topic.overrides).enable)
        await self._index.refresh()
        tick_left, slice_left = PARTITIONS_PER_TICK, PARTITIONS_PER_SLICE
        while self._ahead and tick_left > 0:
            if slice_left <= 0:
                await self._turns.next()
                slice_left = PARTITIONS_PER_SLICE
            topic = self._ahead.popleft()  # before it is measured: one that fails must not hold up the others
            await self._measure(topic)
            tick_left, slice_left = tick_left - len(topic.streams), slice_left - len(topic.streams)
        if not self._ahead:
            self._show()

    async def _measure(self, topic: Topic) -> None:
        state = self._states.get(topic.id)
        lag = await measure_lag(self._index, topic, state, now_ms=self._clock.now_ms())
        values = self._values.setdefault(self._label.bound(topic.name), {})
        for name, (_, reading, together) in self._readings.items():
            value = reading(lag, state or TableState(topic.name))
            values[name] = together(values[name], value) if name in values else value

    def _show(self) -> None:
        values, self._values, self._states = self._values, {}, {}
        for label in self._shown | values.keys():
            for name, gauges in self._gauges.items():
                gauges.of(label).set(values.get(label, {}).get(name, 0))
        self._shown = set(values)
