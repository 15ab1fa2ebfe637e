"""What a shell offers when somebody presses tab on a topic's name."""

import os

import typer

from headrace.cli.options import DEFAULT_BOOTSTRAP, Connection
from headrace.errors import HeadraceError

PATIENCE_SECONDS = 1.0
"""Whoever presses tab waits for it."""


def complete_topic(context: typer.Context, incomplete: str) -> list[str]:
    """Return the topics whose names begin so; nothing where no broker answers at once."""
    from headrace.cli.client.admin import TopicAdmin  # Late: see the package.

    bootstrap = context.params.get("bootstrap") or os.environ.get("HEADRACE_BOOTSTRAP") or DEFAULT_BOOTSTRAP
    try:
        names = TopicAdmin(Connection(bootstrap=bootstrap, timeout_seconds=PATIENCE_SECONDS, properties={})).names()
    except HeadraceError:
        return []
    return [name for name in names if name.startswith(incomplete)]
