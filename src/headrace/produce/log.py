"""The way into the log as requests see it: whichever writer this process has now.

A process that loses its session, or whose writer is fenced, goes on with a new incarnation. Requests that come in
between are refused with `Retryable`: nothing of them was written.

Must stay true: what a producer sent behind a batch that was refused here does not land before it, even if another
writer has come meanwhile and the stream has never seen the producer.
"""

from collections.abc import Sequence

from headrace.errors import Retryable
from headrace.produce.offers import Appended, GivenUp, NewPart
from headrace.produce.writer import LogWriter


class ProduceLog:
    """Holds the current writer, if there is one."""

    def __init__(self) -> None:
        self._writer: LogWriter | None = None
        self.given_up = GivenUp()
        """Shared by all writers that this process has, one after another."""

    def use(self, writer: LogWriter | None) -> None:
        """Send what comes from now on to another writer, or to none."""
        self._writer = writer

    def has_room(self, size_bytes: int) -> bool:
        """Say whether `append_all` would take these bytes without waiting."""
        return self._writer is None or self._writer.has_room(size_bytes)

    async def append_all(self, parts: Sequence[NewPart]) -> Appended:
        """Take one request's parts (`LogWriter.append_all`). Raises `Retryable` while there is no writer."""
        try:
            if self._writer is None:
                raise Retryable("this broker is joining its cluster and takes no records yet: try again")
            return await self._writer.append_all(parts)
        except BaseException:  # A caller who stops waiting for room counts, too.
            for part in parts:
                self.given_up.note(part)
            raise
