"""Remove what lies below a stream's log start, and a deleted stream as a whole, in bounded steps."""

from headrace.index.rule import StalePlan
from headrace.index.trim import finish_deletion, plan_trim, trim_entries
from headrace.metadata.keys import DomainKeys
from headrace.metadata.port import MetadataStore
from headrace.model.ids import StreamId
from headrace.runtime.clock import Clock


class Trimmer:
    """Tidies one stream at a time."""

    def __init__(self, *, keys: DomainKeys, metadata: MetadataStore, clock: Clock, entries_per_step: int) -> None:
        self._keys = keys
        self._metadata = metadata
        self._clock = clock
        self._entries_per_step = entries_per_step

    async def trim(self, stream: StreamId) -> int:
        """Remove the oldest entries below the log start, at most one step; return how many went."""
        entries = await plan_trim(self._metadata, self._keys, stream, max_entries=self._entries_per_step)
        if not entries:
            return 0
        try:
            await trim_entries(self._keys, stream, entries, now_ms=self._clock.now_ms()).apply(self._metadata)
        except StalePlan:
            return 0
        return len(entries)

    async def remove(self, stream: StreamId) -> bool:
        """Go one step further in removing a deleted stream; say whether it is gone."""
        if await self.trim(stream):
            return False
        return await finish_deletion(self._keys, stream, max_keys=self._entries_per_step).apply(self._metadata)
