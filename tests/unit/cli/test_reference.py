"""docs/reference/cli.md is written by hand: what it must not forget."""

import subprocess
import sys
from pathlib import Path

import pytest
import typer

from headrace.cli.group import group_app
from headrace.cli.main import app
from headrace.cli.table import table_app
from headrace.cli.topic import topic_app

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")


def _options(command: str) -> set[str]:
    group = typer.main.get_command(
        {"topic": topic_app, "group": group_app, "table": table_app}.get(command.split()[0], app)
    )
    [found] = [c for name, c in group.commands.items() if name == command.split()[-1]]  # type: ignore[attr-defined]
    return {name for parameter in found.params for name in parameter.opts if name.startswith("-")}


@pytest.mark.parametrize(
    "command",
    [
        *("produce", "consume", "collect", "sql", "verify"),
        *("table list", "table show", "table sample", "table verify"),
        *("topic create", "topic list", "topic alter", "topic delete", "topic describe"),
        *("group list", "group describe", "group delete", "group reset-offsets"),
    ],
)
def test_every_option_is_on_the_page(command: str) -> None:
    missing = [
        name for name in sorted(_options(command) - {"--help"}) if f"{name}`" not in PAGE and f"{name} " not in PAGE
    ]
    assert missing == []


def test_librdkafka_is_loaded_only_by_commands_that_need_it() -> None:
    check = "import sys, headrace.cli.main; raise SystemExit('confluent_kafka' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
