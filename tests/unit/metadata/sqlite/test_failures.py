import apsw
import pytest

from headrace.errors import Corrupt, HeadraceError, Invalid, OutcomeUnknown, Retryable, Unusable
from headrace.metadata.sqlite.failures import translate, translate_commit


@pytest.mark.parametrize(
    ("error", "before_commit", "in_commit"),
    [
        (apsw.BusyError("x"), Retryable, Retryable),
        (apsw.ProtocolError("x"), Retryable, OutcomeUnknown),
        (apsw.FullError("x"), Retryable, Retryable),
        (apsw.IOError("x"), Retryable, OutcomeUnknown),
        (apsw.CorruptError("x"), Corrupt, OutcomeUnknown),
        (apsw.TooBigError("x"), Invalid, OutcomeUnknown),
        (apsw.MisuseError("x"), Unusable, OutcomeUnknown),
    ],
)
def test_errors_mean_what_the_caller_must_do(
    error: apsw.Error, before_commit: type[HeadraceError], in_commit: type[HeadraceError]
) -> None:
    assert type(translate(error, "meta.db")) is before_commit
    assert type(translate_commit(error, "meta.db")) is in_commit
