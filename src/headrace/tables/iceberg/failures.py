"""What a failure of a catalog means for whoever asked: nothing happened, or nobody knows.

Must stay true: a commit that may have been made is never called refused. What we do not recognise is unknown.
"""

import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import requests
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    BadRequestError,
    CommitFailedException,
    ForbiddenError,
    NamespaceAlreadyExistsError,
    NoSuchIdentifierError,
    NoSuchNamespaceError,
    NoSuchTableError,
    OAuthError,
    ResolveError,
    RESTError,
    TableAlreadyExistsError,
    TooManyRequestsError,
    UnauthorizedError,
    ValidationError,
    ValidationException,
)
from sqlalchemy.exc import OperationalError, SQLAlchemyError
from urllib3.exceptions import ConnectTimeoutError, MaxRetryError, NewConnectionError

from headrace.errors import HeadraceError, Invalid, OutcomeUnknown, Retryable, Throttled, Unsupported
from headrace.runtime.text import one_line

MAX_REASON_CHARS = 300

_DEFINITE_SQLITE = ("database is locked", "database table is locked", "unable to open database", "readonly database")
_REFUSALS = (
    CommitFailedException,
    NoSuchTableError,
    NoSuchNamespaceError,
    UnauthorizedError,
    ForbiddenError,
    OAuthError,
)

# Somebody else has created, renamed, dropped or changed it in the meantime: another look will tell.
_ANSWERS = (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchIdentifierError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)

# What PyIceberg raises for an answer or a metadata file that is not what Iceberg's specification says: it checks
# little before it decodes.
_UNREADABLE = (
    AttributeError,
    EOFError,
    LookupError,
    ResolveError,
    SystemError,
    TypeError,
    ValidationError,
    ValidationException,
    ValueError,
    zlib.error,
)


@contextmanager
def asking(what: str) -> Iterator[None]:
    """Turn failures of a call that can be repeated without harm into `Retryable`."""
    try:
        yield
    except HeadraceError:
        raise
    except TooManyRequestsError as error:
        raise Throttled(f"the catalog asks for fewer calls ({what}): {_reason(error)}") from error
    except BadRequestError as error:
        raise Invalid(
            f"the catalog refuses it ({what}): {_reason(error)}; where a table's name is at fault,"
            " catalog.table.names=escaped helps"
        ) from error
    except NotImplementedError as error:
        raise Unsupported(f"the catalog cannot do it ({what}): {_reason(error)}") from error
    except _ANSWERS as error:
        raise Retryable(f"the catalog says no ({what}): {_reason(error)}") from error
    except (RESTError, SQLAlchemyError, requests.RequestException, OSError) as error:
        raise Retryable(f"the catalog did not answer ({what}): {_reason(error)}") from error
    except _UNREADABLE as error:
        raise Retryable(f"the catalog's answer cannot be read ({what}): {_reason(error)}") from error


@contextmanager
def committing(what: str) -> Iterator[None]:
    """Turn failures of a commit into `Retryable` where it certainly was not made, else into `OutcomeUnknown`."""
    try:
        yield
    except HeadraceError:
        raise
    except Exception as error:
        if isinstance(error, TooManyRequestsError):
            raise Throttled(f"the catalog asks for fewer calls ({what}): {_reason(error)}") from error
        if was_refused(error):
            raise Retryable(f"the catalog refused {what}: {_reason(error)}") from error
        # Whatever else went wrong, the request may have arrived before it did.
        raise OutcomeUnknown(f"the catalog may have made {what}, or not: {_reason(error)}") from error


def was_refused(error: Exception) -> bool:
    """Tell whether a commit that ended with this error certainly was not made."""
    if isinstance(error, _REFUSALS):
        return True
    if isinstance(error, OperationalError):
        # With a rollback journal a transaction that could not get its lock is gone; it is never half there.
        return any(reason in str(error) for reason in _DEFINITE_SQLITE)
    if isinstance(error, requests.RequestException):
        return _never_connected(error)
    if isinstance(error, RESTError):
        # An answer below 500 is a refusal. PyIceberg tells the others apart by class only.
        return type(error) in (RESTError, BadRequestError, AuthorizationExpiredError)
    # A metadata file is written before the catalog is asked to name it; this one's name was taken.
    return isinstance(error, FileExistsError)


def _never_connected(error: requests.RequestException) -> bool:
    if isinstance(error, requests.ConnectTimeout):
        return True
    cause = error.args[0] if error.args else None
    if isinstance(cause, MaxRetryError):
        cause = cause.reason
    return isinstance(cause, NewConnectionError | ConnectTimeoutError)


def _reason(error: Exception) -> str:
    return one_line(f"{type(error).__name__}: {error}", max_chars=MAX_REASON_CHARS)
