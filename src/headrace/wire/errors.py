"""What the codec raises, and nothing else, whatever the bytes are."""

from typing import TYPE_CHECKING, NoReturn

from headrace.errors import Invalid

if TYPE_CHECKING:
    from headrace.wire.messages import RequestHeader


class WireError(Invalid):
    """These bytes are no such message, or this message cannot be written in such a version."""


class UnsupportedRequest(WireError):
    """The header is sound, but we do not serve this API in this version; ApiVersions still gets an answer."""

    def __init__(self, header: "RequestHeader") -> None:
        super().__init__(f"API {header.request_api_key} is not served in version {header.request_api_version}")
        self.header = header


class TooManyElements(WireError):
    """The request may be sound, but it has more elements than the caller takes at once."""


def refuse_length(what: str, length: int, position: int, end: int) -> NoReturn:
    """Raise for a length or count that is negative, or more than the rest of the frame can hold."""
    raise WireError(f"{what}: {length} does not fit, {end - position} bytes remain at byte {position}")


def refuse_count(what: str, count: int, position: int, end: int, left: int) -> NoReturn:
    """Raise for a count that is more than the frame can hold, or more than is allowed in one request."""
    if left < 0:
        raise TooManyElements(
            f"{what}: with {count} more, the request has {-left} elements more than are taken at once"
        )
    refuse_length(what, count, position, end)


def refuse_null(what: str, position: int) -> NoReturn:
    """Raise for a null where this version has none."""
    raise WireError(f"{what} is null before byte {position}, and may not be in this version")


def refuse_rest(what: str, position: int, end: int) -> NoReturn:
    """Raise for bytes behind the end of a message or a tagged field."""
    raise WireError(f"{what} ends at byte {position} but was said to end at byte {end}")


def refuse_value(what: str) -> NoReturn:
    """Raise for a value that would be lost because the version to be written has no such field."""
    raise WireError(f"{what} is set, and this version cannot carry it: leave its default, or write a later version")


def refuse_uuid(what: str, value: bytes) -> NoReturn:
    """Raise for a uuid that is not one."""
    raise WireError(f"{what} has {len(value)} bytes, and a uuid has 16")
