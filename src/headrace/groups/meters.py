"""What is counted of groups."""

from headrace.groups.protocol import NOTED, Noted
from headrace.runtime.metrics import Metrics, one_of


class GroupMetrics:
    """The counters of one broker's groups."""

    def __init__(self, metrics: Metrics) -> None:
        events = metrics.counters("group_events", "What happened in groups, by kind.", one_of("kind", NOTED))
        self._events = {what: events.of(what) for what in NOTED}
        commits = metrics.counters("group_offset_commits", "Offsets that were committed, counted by partition.")
        self._commits = commits.of()

    def noted(self, noted: Noted) -> None:
        """Count something that a machine told."""
        self._events[noted.what].inc()

    def committed(self, partition_count: int) -> None:
        """Count committed offsets."""
        self._commits.inc(partition_count)
