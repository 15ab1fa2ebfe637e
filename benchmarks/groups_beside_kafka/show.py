"""Show what one broker did alone: for those who work on it, and need no second one beside it."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.beside_kafka.figures import Reading
from benchmarks.beside_kafka.show import number


def print_readings(name: str, turns: Sequence[tuple[str, Sequence[Reading]]], console: Console) -> None:
    """Print the readings of (title, readings), with a mark where an absolute promise was made."""
    table = Table("", name, "aim", "", box=None, pad_edge=False, header_style="bold")
    for title, readings in turns:
        table.add_row(Text(title, style="bold"))
        for reading in readings:
            limit = reading.kind.at_most
            is_kept = None if limit is None else reading.value <= limit
            table.add_row(
                Text(f"  {reading.what}"),
                Text(f"{number(reading.value)} {reading.kind.unit}", justify="right"),
                Text("" if limit is None else f"≤ {limit:g}"),
                {True: Text("ok", style="green"), False: Text("short", style="bold red"), None: Text("")}[is_kept],
            )
    console.print(table)
