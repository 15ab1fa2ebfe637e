import asyncpg
import pytest

from headrace.errors import Corrupt, HeadraceError, Invalid, OutcomeUnknown, Retryable, Throttled, Unusable
from headrace.metadata.postgres.failures import translate, translate_commit, translated


@pytest.mark.parametrize(
    ("error", "before_commit", "in_commit"),
    [
        (asyncpg.DeadlockDetectedError("x"), Retryable, Retryable),
        (asyncpg.SerializationError("x"), Retryable, Retryable),
        (asyncpg.DiskFullError("x"), Retryable, Retryable),
        (asyncpg.StatementCompletionUnknownError("x"), Retryable, OutcomeUnknown),
        (asyncpg.TooManyConnectionsError("x"), Throttled, Throttled),
        (asyncpg.LockNotAvailableError("x"), Retryable, OutcomeUnknown),
        (asyncpg.QueryCanceledError("x"), Retryable, OutcomeUnknown),
        (asyncpg.AdminShutdownError("x"), Retryable, OutcomeUnknown),
        (asyncpg.ConnectionDoesNotExistError("x"), Retryable, OutcomeUnknown),
        (asyncpg.InterfaceError("x"), Retryable, OutcomeUnknown),
        (ConnectionResetError("x"), Retryable, OutcomeUnknown),
        (TimeoutError(), Retryable, OutcomeUnknown),
        (asyncpg.DataCorruptedError("x"), Corrupt, OutcomeUnknown),
        (asyncpg.InvalidPasswordError("x"), Invalid, OutcomeUnknown),
        (asyncpg.UndefinedTableError("x"), Invalid, OutcomeUnknown),
        (asyncpg.NotNullViolationError("x"), Unusable, OutcomeUnknown),
    ],
)
def test_errors_mean_what_the_caller_must_do(
    error: Exception, before_commit: type[HeadraceError], in_commit: type[HeadraceError]
) -> None:
    assert type(translate(error)) is before_commit
    assert type(translate_commit(error)) is in_commit


def test_other_errors_pass_through() -> None:
    with pytest.raises(LookupError), translated():
        raise LookupError
    with pytest.raises(OutcomeUnknown), translated(is_commit=True):
        raise ConnectionResetError
