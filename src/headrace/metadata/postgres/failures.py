"""What an error of PostgreSQL, or of the way to it, means for the caller's next move.

Must stay true: until COMMIT has been sent nothing can have been written. From then on only an error with which the
server says that it rolled back is a definite failure; a connection that breaks tells nothing.
"""

import contextlib
from collections.abc import Iterator

import asyncpg

from headrace.errors import Corrupt, HeadraceError, Invalid, OutcomeUnknown, Retryable, Throttled, Unusable

CONNECTION_ERRORS = (OSError, TimeoutError, asyncpg.InterfaceError, asyncpg.InternalClientError)
ERRORS = (asyncpg.PostgresError, *CONNECTION_ERRORS)
"""Everything that `asyncpg` raises when a server or a connection fails."""

_FAULTS_OF_SETTINGS = ("28", "3D", "42")
_ROLLED_BACK = ("40", "53")
_COMPLETION_UNKNOWN = "40003"


@contextlib.contextmanager
def translated(*, is_commit: bool = False) -> Iterator[None]:
    """Raise errors of the server and of the connection as what they mean for the caller."""
    try:
        yield
    except ERRORS as error:
        raise (translate_commit(error) if is_commit else translate(error)) from error


def translate(error: BaseException) -> HeadraceError:
    """Return what to raise for an error that happened before COMMIT was sent."""
    state = _state(error)
    if state == "53300":
        return Throttled(f"PostgreSQL has no connection left: {error}")
    if state in ("XX001", "XX002"):
        return Corrupt(f"PostgreSQL reports damage, nothing was changed: {error}; restore it from a backup")
    if state.startswith(_FAULTS_OF_SETTINGS):
        return Invalid(f"PostgreSQL refuses us: {error}; check the metadata URL, the rights and the schema")
    if state.startswith(("22", "23", "0A")):
        return Unusable(f"PostgreSQL refuses a statement of ours: {error!r}")
    return Retryable(f"PostgreSQL cannot serve now, nothing was written: {error!r}")


def translate_commit(error: BaseException) -> HeadraceError:
    """Return what to raise for an error that happened after COMMIT was sent."""
    state = _state(error)
    if state.startswith(_ROLLED_BACK) and state != _COMPLETION_UNKNOWN:
        return translate(error)
    return OutcomeUnknown(f"a commit may or may not have taken effect: {error!r}; read before acting again")


def _state(error: BaseException) -> str:
    return str(getattr(error, "sqlstate", None) or "")
