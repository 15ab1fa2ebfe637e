"""What the errors of `obstore` mean for us.

obstore has few exception types, and two of them mislead: a 409 ("another write is under way, try again") comes as
`AlreadyExistsError`, exactly as a 412 ("it is there") does, while Azure says with a 409 that a blob is there; and a
connection that was never made looks like one that broke after the request was sent. The truth is in the text, so the
text is read here and nowhere else.
`tests/unit/objects/test_remote_errors.py` shows each answer of a server to a real client and will fail when the
text changes.
"""

import re

from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    InvalidPathError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)

from headrace.errors import Exists, HeadraceError, Invalid, Missing, OutcomeUnknown, Retryable, Throttled

# obstore raises the built-in FileNotFoundError for 404; a ValueError is a request that it refuses to send.
RAISED = (BaseError, FileNotFoundError)

_STATUS = re.compile(r"non-2xx status code: (\d{3})")
_SLOW_DOWN = re.compile(r"SlowDown|ServerBusy|TooManyRequests|RequestLimitExceeded")
_BLOB_EXISTS = re.compile(r"\bBlobAlreadyExists\b")
_NEVER_CONNECTED = re.compile(r"kind: Connect,")
# The request could not even be made, for example because plain HTTP is not allowed.
_NEVER_BUILT = re.compile(r"HTTP error: builder error")
_MAX_TOLD_CHARACTERS = 300


def read_error(error: Exception, what: str) -> HeadraceError:
    """Return our error for a failed read, which has no effect whatever happened."""
    status, told = _status(error), _told(error, what)
    if isinstance(error, FileNotFoundError):
        return Missing(told)
    if (refused := _refused(error, status, told)) is not None:
        return refused
    return Retryable(told)


def write_error(error: Exception, what: str) -> HeadraceError:
    """Return our error for a failed write: without a clear refusal its outcome is unknown."""
    status, told = _status(error), _told(error, what)
    if status == 409 and not _BLOB_EXISTS.search(str(error)):
        return Retryable(f"another write is under way: {told}")
    if isinstance(error, AlreadyExistsError | PreconditionError):
        return Exists(told)
    if isinstance(error, FileNotFoundError):
        return Invalid(f"the bucket or container is not there, create it first: {told}")
    if (refused := _refused(error, status, told)) is not None:
        return refused
    if status is None and _NEVER_CONNECTED.search(str(error)):
        return Retryable(f"no connection: {told}")
    return OutcomeUnknown(told)


def is_past_the_end(error: Exception) -> bool:
    """Tell whether a ranged read began behind the object's last byte."""
    return _status(error) == 416 or "StartTooLarge" in str(error)


def _refused(error: Exception, status: int | None, told: str) -> HeadraceError | None:
    if status == 429 or (status == 503 and _SLOW_DOWN.search(str(error))):
        return Throttled(told)
    if isinstance(error, PermissionDeniedError | UnauthenticatedError):
        return Invalid(f"check the bucket's name, the credentials and what they allow: {told}")
    if status is None and _NEVER_BUILT.search(str(error)):
        return Invalid(f"check the endpoint (plain HTTP needs AWS_ALLOW_HTTP=true): {told}")
    if isinstance(error, InvalidPathError) or (status is not None and 400 <= status < 500 and status != 408):
        return Invalid(told)
    return None


def _status(error: Exception) -> int | None:
    found = _STATUS.search(str(error))
    return int(found.group(1)) if found else None


def _told(error: Exception, what: str) -> str:
    first_part = " ".join(str(error).partition("\n\nDebug source")[0].split())
    return f"{what}: {first_part[:_MAX_TOLD_CHARACTERS]}"
