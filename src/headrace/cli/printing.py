"""How commands print: a table or plain lines for people, JSON for programs."""

import json
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace.runtime.configuration import Origin
from headrace.runtime.setting_kinds import Address, Url
from headrace.settings import HeadraceConfiguration

PIPE_WIDTH_CHARS = 10_000
"""Into a file or a pipe a table is as wide as its values: a line that wraps cannot be searched."""


def print_json(data: object) -> None:
    """Print data as JSON."""
    print(json.dumps(data, indent=2))


def print_settings(configuration: HeadraceConfiguration) -> None:
    """Print a table of all settings: key, value, source. What somebody set stands out."""
    table = Table("setting", "value", "unit", "source", box=None, pad_edge=False, header_style="bold")
    for origin in configuration.origins:
        style = "dim" if origin.source == "default" else "bold"
        cells = (origin.setting.key, origin.shown, origin.setting.unit, origin.source)
        table.add_row(*(Text(cell, overflow="fold") for cell in cells), style=style)
    console = Console(file=sys.stdout, highlight=False)
    if not console.is_terminal:
        console.width = PIPE_WIDTH_CHARS
    console.print(table)


def settings_as_data(configuration: HeadraceConfiguration) -> dict[str, dict[str, object]]:
    """Return all settings as JSON can hold them, by key."""
    return {
        origin.setting.key: {"value": _plain(origin), "unit": origin.setting.unit, "source": origin.source}
        for origin in configuration.origins
    }


def _plain(origin: Origin) -> object:
    shown = isinstance(origin.value, Path | Address) or isinstance(origin.setting.kind, Url)
    return origin.shown if shown else origin.value
