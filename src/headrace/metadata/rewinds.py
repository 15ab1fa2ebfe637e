"""What a process does when it notices that the metadata store was taken back to an earlier state while it ran.

A fail-over to a standby that was behind, or a restore from a backup, takes back commits that this process has seen.
Sequence numbers, offsets, ids and revisions are then given a second time, to other things. The part that notices
reports it here: the index cache by the commit records that it follows, PostgreSQL by its revisions and its server.
Then:

1. Every cache forgets what it holds, before anything else is answered from it.
2. One error line says what happened, what it means and what to do.
3. The broker's incarnation ends and a new one begins: session, place and writer are in the store as it is now.

Must stay true: nothing is invented. What the store does not know any more is gone, for everybody.
"""

import asyncio
from collections.abc import Callable

from headrace.runtime.logs import Log
from headrace.runtime.metrics import Metrics


class Rewinds:
    """Hears of a rewind and has everything forgotten; `pending` is set until a new incarnation begins."""

    def __init__(self, *, log: Log, metrics: Metrics) -> None:
        self._log = log
        self._noticed = metrics.counters(
            "metadata_store_rewinds", "How often the metadata store was found taken back to an earlier state."
        ).of()
        self._forgetting: list[Callable[[], None]] = []
        self.pending = asyncio.Event()

    def forget_with(self, *forgetting: Callable[[], None]) -> None:
        """Call these whenever a rewind was noticed. They neither wait nor fail."""
        self._forgetting += forgetting

    def noticed(self, what: str) -> None:
        """Take note of a rewind; `what` says how it shows. One that is seen from several sides is said once."""
        for forget in self._forgetting:
            forget()
        if self.pending.is_set():
            return
        self.pending.set()
        self._noticed.inc()
        self._log.error(
            "the metadata store was taken back to an earlier state: commits after it are lost, acknowledged ones too;"
            " this broker drops its caches and joins again",
            what=what,
            advice="find the fail-over or restore that did it; lost records cannot be read, and consumers that were"
            " beyond them hear OFFSET_OUT_OF_RANGE",
        )
