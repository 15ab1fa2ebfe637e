"""What an SQLite error means for the caller's next move.

Must stay true: before COMMIT nothing has been written, so an error is a definite failure. An I/O error in
COMMIT is not: the commit may be on disk, and a second fsync that succeeds proves nothing about the first.
"""

import apsw

from headrace.errors import Corrupt, HeadraceError, Invalid, OutcomeUnknown, Retryable, Unusable
from headrace.metadata.sqlite.lock_holders import holder_in_words


def translate(error: apsw.Error, path: str) -> HeadraceError:
    """Return what to raise for an error that happened before COMMIT, or in a read."""
    if isinstance(error, apsw.BusyError | apsw.LockedError | apsw.ProtocolError):
        return Retryable(f"nothing was written: {holder_in_words(path)} ({error})")
    if isinstance(error, apsw.FullError):
        return Retryable(f"the disk of {path} is full, nothing was written: free some space")
    if isinstance(error, apsw.CorruptError | apsw.NotADBError):
        return Corrupt(f"{path} is damaged, nothing was changed: {error}; restore it from a backup")
    if isinstance(error, apsw.TooBigError):
        return Invalid(f"too many bytes for one read or write in {path}: {error}; use a smaller limit")
    if isinstance(
        error, apsw.IOError | apsw.CantOpenError | apsw.ReadOnlyError | apsw.NoMemError | apsw.PermissionsError
    ):
        return Retryable(f"{path} cannot be read or written now, nothing was changed: {error}")
    return Unusable(f"{path} answers in a way we do not know, nothing was changed: {error!r}")


def translate_commit(error: apsw.Error, path: str) -> HeadraceError:
    """Return what to raise for an error in COMMIT. After `OutcomeUnknown` the engine must not be used again."""
    if isinstance(error, apsw.BusyError | apsw.LockedError | apsw.FullError):
        return translate(error, path)
    return OutcomeUnknown(f"a commit in {path} may or may not be on disk: {error!r}; read before acting again")
