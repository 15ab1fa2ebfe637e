"""What counts as refused, and what as unknown: the difference between a retry and a second append."""

import pytest
import requests
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    CommitStateUnknownException,
    ForbiddenError,
    NoSuchTableError,
    ServerError,
    ServiceUnavailableError,
    TooManyRequestsError,
    UnauthorizedError,
)
from sqlalchemy.exc import OperationalError
from urllib3.connection import HTTPConnection
from urllib3.exceptions import MaxRetryError, NewConnectionError, ProtocolError

from headrace.errors import Fenced, HeadraceError, OutcomeUnknown, Retryable, Throttled
from headrace.tables.iceberg.failures import asking, committing

REFUSED = NewConnectionError(HTTPConnection("localhost"), "connection refused")


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (CommitFailedException("changed"), Retryable),
        (NoSuchTableError("gone"), Retryable),
        (UnauthorizedError("401"), Retryable),
        (ForbiddenError("403"), Retryable),
        (BadRequestError("400"), Retryable),
        (TooManyRequestsError("429"), Throttled),
        (OperationalError("UPDATE", {}, Exception("database is locked")), Retryable),
        (requests.ConnectionError(MaxRetryError(None, "/", REFUSED)), Retryable),  # type: ignore[arg-type]
        (requests.ConnectTimeout("5 s"), Retryable),
        (FileExistsError("metadata"), Retryable),
        (CommitStateUnknownException("500"), OutcomeUnknown),
        (ServiceUnavailableError("503"), OutcomeUnknown),
        (ServerError("599"), OutcomeUnknown),
        (requests.ReadTimeout("30 s"), OutcomeUnknown),
        (requests.ConnectionError(ProtocolError("reset by peer")), OutcomeUnknown),
        (OperationalError("COMMIT", {}, Exception("disk I/O error")), OutcomeUnknown),
        (ValueError("no JSON"), OutcomeUnknown),
        (ConnectionResetError("reset"), OutcomeUnknown),
        (Fenced("ours pass through"), Fenced),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_a_failed_commit(error: Exception, meaning: type[HeadraceError]) -> None:
    with pytest.raises(meaning), committing("the commit"):
        raise error
    if meaning is not Fenced:
        assert issubclass(meaning, Retryable) != issubclass(meaning, OutcomeUnknown)


@pytest.mark.parametrize(
    "error",
    [
        ServiceUnavailableError("503"),
        requests.ReadTimeout("30 s"),
        OperationalError("SELECT", {}, Exception("disk I/O error")),
        EOFError(),
        SystemError("negative size"),
        FileNotFoundError("metadata"),
        NoSuchTableError("dropped meanwhile"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_failed_question_can_be_asked_again(error: Exception) -> None:
    with pytest.raises(Retryable), asking("the table"):
        raise error


def test_our_own_mistakes_are_not_hidden() -> None:
    with pytest.raises(AssertionError), asking("the table"):
        raise AssertionError("an invariant")
