"""How commands print: a table or plain lines for people, JSON for programs.

Data goes to stdout; complaints and progress go to stderr, progress only where that is a terminal.
"""

import contextlib
import json
import os
import select
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from headrace.runtime.clock import SystemClock
from headrace.runtime.configuration import Origin
from headrace.runtime.setting_kinds import Address, Url
from headrace.runtime.text import one_line
from headrace.settings import HeadraceConfiguration

MAX_COMPLAINT_CHARS = 2000
MAX_CELL_CHARS = 10_000
STDOUT = 1
PROGRESS_AFTER_SECONDS = 1.0
"""What is over sooner needs no moving picture."""
PIPE_WIDTH_CHARS = 10_000
"""Into a file or a pipe a table is as wide as its values: a line that wraps cannot be searched."""


def print_json(data: object) -> None:
    """Print data as JSON."""
    print(json.dumps(data, indent=2))


def print_settings(configuration: HeadraceConfiguration) -> None:
    """Print a table of all settings: key, value, source. What somebody set stands out."""
    table = _table(("setting", "value", "unit", "source"))
    for origin in configuration.origins:
        style = "dim" if origin.source == "default" else "bold"
        cells = (origin.setting.key, origin.shown, origin.setting.unit, origin.source)
        table.add_row(*(Text(cell, overflow="fold") for cell in cells), style=style)
    _print(table)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table of values that came from elsewhere: nothing in them is obeyed."""
    table = _table(columns)
    for row in rows:
        table.add_row(*(Text(one_line(str(cell), max_chars=MAX_CELL_CHARS), overflow="fold") for cell in row))
    _print(table)


def print_line(text: str) -> None:
    """Print one line that holds names from elsewhere: nothing in them is obeyed."""
    print(one_line(text, max_chars=MAX_CELL_CHARS))


def complain(message: str) -> None:
    """Print one line on stderr, whatever the message contains."""
    print(f"headrace: {one_line(message, max_chars=MAX_COMPLAINT_CHARS)}", file=sys.stderr)


@contextlib.contextmanager
def progress(what: str, *, wanted: bool) -> Iterator[Callable[[int], None]]:
    """Show on a terminal how many there are, once it takes long; yields what is told the count."""
    if not wanted or not sys.stderr.isatty():
        yield lambda _: None
        return
    columns = (SpinnerColumn(), TextColumn("{task.completed:,.0f} {task.description}"), TimeElapsedColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(what, total=None)
    clock = SystemClock()
    shown_from = clock.monotonic() + PROGRESS_AFTER_SECONDS

    def show(count: int) -> None:
        bar.update(task, completed=count)
        if not bar.live.is_started and clock.monotonic() >= shown_from:
            bar.start()

    try:
        yield show
    finally:
        if bar.live.is_started:
            bar.stop()


@contextlib.contextmanager
def working(what: str) -> Iterator[None]:
    """Show on a terminal that something takes its time."""
    if not sys.stderr.isatty():
        yield
        return
    with Console(stderr=True).status(what):
        yield


def raise_if_unread() -> None:
    """Raise `BrokenPipeError` if whatever read our stdout has gone; else only the next byte would tell."""
    poller = select.poll()
    poller.register(STDOUT, 0)
    if any(events & select.POLLERR for _, events in poller.poll(0)):
        raise BrokenPipeError("nobody reads stdout")


def discard_stdout() -> None:
    """Send the rest of stdout nowhere: its reader has gone, and what is still buffered must not fail at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), STDOUT)


def settings_as_data(configuration: HeadraceConfiguration) -> dict[str, dict[str, object]]:
    """Return all settings as JSON can hold them, by key."""
    return {
        origin.setting.key: {"value": _plain(origin), "unit": origin.setting.unit, "source": origin.source}
        for origin in configuration.origins
    }


def _plain(origin: Origin) -> object:
    shown = isinstance(origin.value, Path | Address) or isinstance(origin.setting.kind, Url)
    return origin.shown if shown else origin.value


def _table(columns: Sequence[str]) -> Table:
    return Table(*columns, box=None, pad_edge=False, header_style="bold")


def _print(table: Table) -> None:
    console = Console(file=sys.stdout, highlight=False)
    if console.is_terminal:
        console.print(table)
        return
    console.width = PIPE_WIDTH_CHARS
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        print(line.rstrip())
