"""What surrounds a request when a handler gets it, and how a handler says no.

A handler file has two functions:

    async def handle(node: Node, call: Call, request: XRequest) -> XResponse
    def refused(call: Call, request: XRequest, refusal: Refusal) -> XResponse

`handle` answers per item and lets pass what it cannot answer for. Whatever it raises becomes a `Refusal`, and
`refused` shapes that into an answer that names every item which was asked for: no partition is ever dropped.
"""

from dataclasses import dataclass

from headrace.errors import (
    Corrupt,
    Exists,
    Fenced,
    Invalid,
    Missing,
    OutcomeUnknown,
    Retryable,
    Unsupported,
    Unusable,
)
from headrace.model.error_codes import ErrorCode
from headrace.runtime.answers import ENDLESS_ROOM, Room


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Who asks, in which version, in how many bytes, and when it arrived (monotonic seconds).

    `turn_ms` is how long its connection took from an answer to the next request; `None`: not known (`greetings.py`).
    """

    api_key: int
    version: int
    size_bytes: int = 0
    client_id: str | None
    peer: str
    arrived_at: float
    turn_ms: int | None = None
    room: Room = ENDLESS_ROOM
    """Memory for the answer."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error code and a sentence for people."""

    code: ErrorCode
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Encoded:
    """An answer that is written already: the bytes of the message in the version of the call."""

    body: bytes


class Refused(Exception):
    """Raised inside handlers to answer one item, or the whole request, with a code."""

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        super().__init__(message or code.name)
        self.refusal = Refusal(code, message)


class HangUp(Exception):
    """Nothing sensible can be answered: close the connection. `kind` is for the metric, the message for people."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def refusal_of(error: BaseException) -> Refusal:
    """Return what a client hears of an error: retriable codes for what may pass, clear ones for what will not."""
    match error:
        case Refused():
            return error.refusal
        case Retryable() | Fenced():
            # Clients know it as retriable, and look for another broker.
            return Refusal(ErrorCode.KAFKA_STORAGE_ERROR, str(error))
        case OutcomeUnknown():
            return Refusal(ErrorCode.REQUEST_TIMED_OUT, str(error))
        case Corrupt() | Unusable():
            return Refusal(ErrorCode.KAFKA_STORAGE_ERROR, str(error))
        case Missing():
            return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, str(error))
        case Exists():
            return Refusal(ErrorCode.TOPIC_ALREADY_EXISTS, str(error))
        case Invalid():
            return Refusal(ErrorCode.INVALID_REQUEST, str(error))
        case Unsupported():
            return Refusal(ErrorCode.UNSUPPORTED_VERSION, str(error))
    return Refusal(ErrorCode.UNKNOWN_SERVER_ERROR, "the broker failed to handle this request; its log says more")
