"""What a pipeline needs from outside: who writes files, and who watches."""

from collections.abc import Sequence
from typing import Protocol

from headrace.pipeline.rewrites import TableTask
from headrace.pipeline.scans import ScannedStream, ScanTask
from headrace.tables.files import WrittenFile


class TableWriter(Protocol):
    """Writes Parquet files, anywhere, with as many attempts as it takes: Spark, or the process itself in tests."""

    async def write(self, tasks: Sequence[TableTask]) -> list[WrittenFile]:
        """Write one file per task and return them in the order of the tasks; all of them, or raise.

        Only what is returned exists: files of attempts that lost are left for the tidying of their saga. Raises
        `Missing` if an object that is read is gone (plan again), `Corrupt` if stored bytes are not what was
        committed, and `Retryable` for anything that may pass.
        """
        ...

    async def scan(self, tasks: Sequence[ScanTask]) -> list[ScannedStream]:
        """Scan the keys of one stream per task, as `write` writes files; raises what that raises."""
        ...


class Progress(Protocol):
    """Is told how runs go, so that a person can see it."""

    def planned(self, topic: str, *, files: int, size_bytes: int) -> None:
        """A run begins: so many files, so many bytes of the log."""
        ...

    def moved(self, topic: str, step: str) -> None:
        """A run has reached a step: `written`, `in table`, `swapped`."""
        ...

    def ended(self, topic: str, *, rows: int, problem: str | None) -> None:
        """A run is over, with so many rows in the table, or with a problem."""
        ...


class NoProgress:
    """Nobody watches."""

    def planned(self, topic: str, *, files: int, size_bytes: int) -> None:
        return None

    def moved(self, topic: str, step: str) -> None:
        return None

    def ended(self, topic: str, *, rows: int, problem: str | None) -> None:
        return None
