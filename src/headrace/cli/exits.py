"""The exit codes of commands, for scripts to rely on."""

from collections.abc import Iterable

import typer

from headrace.cli.printing import complain
from headrace.errors import HeadraceError, Invalid

DONE = 0
FAILED = 1
"""The cluster refused, or could not be reached, or something else went wrong on the way."""
WRONG_USE = 2
"""What was asked for is wrong, and stays wrong."""
INTERRUPTED = 130
"""Ctrl-C, as shells count it: 128 and the number of SIGINT."""


def code_of(error: HeadraceError | KeyboardInterrupt) -> int:
    """Return the code that a command ends with after this error."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    return WRONG_USE if isinstance(error, Invalid) else FAILED


def end_with(failures: Iterable[HeadraceError | None]) -> None:
    """Complain about what failed, and end with code 1 if anything did; None stands for what went well."""
    told = [failure for failure in failures if failure is not None]
    for failure in told:
        complain(str(failure))
    if told:
        raise typer.Exit(FAILED)
