"""The way into the log as requests see it: whichever writer this process has now.

A process that loses its session, or whose writer is fenced, goes on with a new incarnation. Requests that come in
between are refused with `Retryable`: nothing of them was written.
"""

from collections.abc import Sequence

from headrace.errors import Retryable
from headrace.produce.offers import Appended, NewPart
from headrace.produce.writer import LogWriter


class ProduceLog:
    """Holds the current writer, if there is one."""

    def __init__(self) -> None:
        self._writer: LogWriter | None = None

    def use(self, writer: LogWriter | None) -> None:
        """Send what comes from now on to another writer, or to none."""
        self._writer = writer

    def has_room(self, size_bytes: int) -> bool:
        """Say whether `append_all` would take these bytes without waiting."""
        return self._writer is None or self._writer.has_room(size_bytes)

    async def append_all(self, parts: Sequence[NewPart]) -> Appended:
        """Take one request's parts (`LogWriter.append_all`). Raises `Retryable` while there is no writer."""
        if self._writer is None:
            raise Retryable("this broker is joining its cluster and takes no records yet: try again")
        return await self._writer.append_all(parts)
