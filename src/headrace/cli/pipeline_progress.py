"""How far runs are: a bar in a terminal, lines of the log elsewhere."""

import contextlib
from collections.abc import Iterator
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from headrace.pipeline.ports import Progress as RunProgress
from headrace.runtime.logs import Log
from headrace.runtime.text import one_line

MAX_TOPIC_CHARS = 40


class Counted:
    """Counts what runs have done, for the last line."""

    def __init__(self) -> None:
        self.runs = 0
        self.rows = 0
        self.topics: set[str] = set()

    def ended(self, topic: str, rows: int) -> None:
        """Take note of a run that ended well."""
        self.runs += 1
        self.rows += rows
        self.topics.add(topic)


class LoggedProgress:
    """One line when a run begins, and one when it is in the table. Who runs it logs failures already."""

    def __init__(self, log: Log, counted: Counted) -> None:
        self._log = log
        self._counted = counted

    def planned(self, topic: str, *, files: int, size_bytes: int) -> None:
        self._log.info("a run begins", topic=topic, files=files, size_bytes=size_bytes)

    def moved(self, topic: str, step: str) -> None:
        self._log.debug("a run moves on", topic=topic, step=step)

    def ended(self, topic: str, *, rows: int, problem: str | None) -> None:
        if problem is None:
            self._counted.ended(topic, rows)
            self._log.info("a run is in the table", topic=topic, rows=rows)


class BarProgress:
    """A bar over the bytes of all runs that were begun."""

    def __init__(self, bar: Progress, counted: Counted) -> None:
        self._bar = bar
        self._counted = counted
        self._task = bar.add_task("starting Spark, looking for records", total=None)
        self._files = 0
        self._total_bytes = 0
        self._under_way: dict[str, int] = {}

    def planned(self, topic: str, *, files: int, size_bytes: int) -> None:
        self._files += files
        self._total_bytes += size_bytes
        self._under_way[topic] = size_bytes
        self._bar.update(self._task, total=self._total_bytes)
        self._tell(topic, "is written")

    def moved(self, topic: str, step: str) -> None:
        if step == "written":
            self._bar.advance(self._task, self._under_way.pop(topic, 0))
        self._tell(topic, step)

    def ended(self, topic: str, *, rows: int, problem: str | None) -> None:
        self._bar.advance(self._task, self._under_way.pop(topic, 0))
        if problem is None:
            self._counted.ended(topic, rows)
        self._tell(topic, "done" if problem is None else "failed")

    def _tell(self, topic: str, step: str) -> None:
        name = one_line(topic, max_chars=MAX_TOPIC_CHARS)
        topics = len(self._counted.topics | set(self._under_way))
        self._bar.update(self._task, description=f"{topics} topics, {self._files} files; {name}: {step}")


class LinesAbove:
    """What a log writes to while a bar is shown: its lines go above the bar."""

    def __init__(self, console: Console, stream: TextIO) -> None:
        self._console = console
        self._stream = stream

    @property
    def encoding(self) -> str:
        return self._stream.encoding

    def isatty(self) -> bool:
        return self._stream.isatty()

    def write(self, text: str) -> int:
        # `out` obeys nothing that stands in the text; the log has made it one line already.
        self._console.out(text, end="", highlight=False)
        return len(text)

    def flush(self) -> None:
        self._stream.flush()


@contextlib.contextmanager
def shown_bar(console: Console, counted: Counted) -> Iterator[RunProgress]:
    """Show a bar while this is open."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        yield BarProgress(bar, counted)
