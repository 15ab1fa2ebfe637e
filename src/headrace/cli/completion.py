"""What a shell offers when somebody presses tab on the name of a topic or a group."""

import os
from collections.abc import Callable

import typer

from headrace.cli.options import DEFAULT_BOOTSTRAP, Connection
from headrace.errors import HeadraceError

PATIENCE_SECONDS = 1.0
"""Whoever presses tab waits for it."""


def complete_topic(context: typer.Context, incomplete: str) -> list[str]:
    """Return the topics whose names begin so; nothing where no broker answers at once."""
    from headrace.cli.client.admin import TopicAdmin  # Late: see the package.

    return _beginning_so(incomplete, lambda: TopicAdmin(_reached(context)).names())


def complete_group(context: typer.Context, incomplete: str) -> list[str]:
    """Return the groups whose names begin so; nothing where no broker answers at once."""
    from headrace.cli.client.groups import GroupAdmin  # Late: see the package.

    return _beginning_so(incomplete, lambda: [group.name for group in GroupAdmin(_reached(context)).find().groups])


def _reached(context: typer.Context) -> Connection:
    bootstrap = context.params.get("bootstrap") or os.environ.get("HEADRACE_BOOTSTRAP") or DEFAULT_BOOTSTRAP
    return Connection(bootstrap=bootstrap, timeout_seconds=PATIENCE_SECONDS, properties={})


def _beginning_so(incomplete: str, ask: Callable[[], list[str]]) -> list[str]:
    try:
        names = ask()
    except HeadraceError:
        return []
    return [name for name in names if name.startswith(incomplete)]
