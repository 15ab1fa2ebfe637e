"""What surrounds a message in a frame: size, header, and which header belongs to which message.

A frame is a 4-byte size, a header and a message. The header's version follows from API and version. An ApiVersions
response has the oldest header always: a client that asks for it cannot know yet what its broker understands.
"""

from functools import cache
from struct import Struct
from struct import error as struct_error
from typing import Any

from headrace.wire.compiler import Reader, Writer, reader, writer
from headrace.wire.errors import UnsupportedRequest, WireError
from headrace.wire.messages import Buffer, Message, RequestHeader
from headrace.wire.reading import MAX_REQUEST_ELEMENTS
from headrace.wire.schema import Versions, apis

API_VERSIONS_KEY = 18
SIZE_BYTES = 4

_KEY_AND_VERSION = Struct(">hh")
_SIZE = Struct(">i")
_SIZE_AND_HEADER_V0 = Struct(">ii")
_SIZE_AND_HEADER_V1 = Struct(">iib")
_HEADER_V0_BYTES = 4
_HEADER_V1_BYTES = 5


@cache
def known_versions() -> dict[int, Versions]:
    """Return, by API key, the first and the last version that this codec reads and writes."""
    return {key: api.versions for key, api in apis().items()}


def request_header_version(api_key: int, version: int) -> int:
    """Return the version of the header in front of such a request, also for a version that nobody knows yet."""
    return 2 if apis()[api_key].is_flexible_in(version) else 1


def response_header_version(api_key: int, version: int) -> int:
    """Return the version of the header in front of such a response."""
    return 1 if api_key != API_VERSIONS_KEY and apis()[api_key].is_flexible_in(version) else 0


def parse_header(frame: memoryview) -> tuple[RequestHeader, int]:
    """Read the header of a request (the frame without its size); return it and where the body begins.

    Raises `WireError` for garbage and for an API that is not in the table, whose header cannot be read either.
    """
    try:
        api_key, version = _KEY_AND_VERSION.unpack_from(frame)
    except struct_error as error:
        raise WireError(f"a frame of {len(frame)} bytes is shorter than any request header") from error
    if api_key not in apis():
        raise WireError(f"API {api_key} is not known here")
    header: tuple[RequestHeader, int] = _header_reader(api_key, version)(frame)
    return header


def parse_request(frame: memoryview, *, max_elements: int = MAX_REQUEST_ELEMENTS) -> tuple[RequestHeader, Any]:
    """Read a request (the frame without its size); return its header and its message.

    Records in the message are views of the frame. Raises `UnsupportedRequest`, which has the header, for a version
    that is not in the table, `TooManyElements` for one with more than `max_elements` in all its arrays, before they
    are made, and `WireError` for everything else that is wrong.
    """
    header, position = parse_header(frame)
    first, last = known_versions()[header.request_api_key]
    if not first <= header.request_api_version <= last:
        raise UnsupportedRequest(header)
    read = _request_reader(header.request_api_key, header.request_api_version)
    return header, read(frame, position, max_elements)


def encode_response(api_key: int, version: int, correlation_id: int, response: Message) -> list[Buffer]:
    """Return a whole frame as buffers to be written one after the other; records are among them, not copied."""
    out: list[Buffer] = []
    cuts: list[int] = []
    write, header_version = _response_writer(api_key, version)
    write(response, out, cuts)
    if not cuts:
        body = b"".join(out)
        return [_prefix(header_version, len(body), correlation_id) + body]
    buffers = _between(out, cuts)
    # Something always stands before the first records.
    buffers[0] = _prefix(header_version, sum(map(len, buffers)), correlation_id) + buffers[0]
    return buffers


def encode_body(api_key: int, version: int, response: Message) -> bytes:
    """Return a response without what surrounds it, to be sent many times with `frame_body`; records are copied."""
    out: list[Buffer] = []
    write, _ = _response_writer(api_key, version)
    write(response, out, [])
    return b"".join(out)


def frame_body(api_key: int, version: int, correlation_id: int, body: bytes) -> list[Buffer]:
    """Return a whole frame around a body that is not copied."""
    return [_prefix(response_header_version(api_key, version), len(body), correlation_id), body]


def encode_request(api_key: int, version: int, correlation_id: int, client_id: str | None, request: Message) -> bytes:
    """Return a whole frame in one piece; for tests and tools."""
    header = RequestHeader(
        request_api_key=api_key, request_api_version=version, correlation_id=correlation_id, client_id=client_id
    )
    out: list[Buffer] = []
    writer("RequestHeader", request_header_version(api_key, version))(header, out, [])
    writer(f"{apis()[api_key].name}Request", version)(request, out, [])
    body = b"".join(out)
    return _SIZE.pack(len(body)) + body


def parse_response(api_key: int, version: int, frame: memoryview) -> tuple[int, Any]:
    """Read a response (the frame without its size); return correlation id and message; for tests and tools."""
    header, position = reader("ResponseHeader", response_header_version(api_key, version))(frame)
    message = reader(f"{apis()[api_key].name}Response", version)(frame, position)
    return header.correlation_id, message


def _prefix(header_version: int, body_bytes: int, correlation_id: int) -> bytes:
    if header_version:
        return _SIZE_AND_HEADER_V1.pack(body_bytes + _HEADER_V1_BYTES, correlation_id, 0)
    return _SIZE_AND_HEADER_V0.pack(body_bytes + _HEADER_V0_BYTES, correlation_id)


def _between(out: list[Buffer], cuts: list[int]) -> list[Buffer]:
    """Join what lies between the records."""
    buffers: list[Buffer] = []
    begin = 0
    for cut in cuts:
        if cut > begin:
            buffers.append(b"".join(out[begin:cut]))
        buffers.append(out[cut])
        begin = cut + 1
    if begin < len(out):
        buffers.append(b"".join(out[begin:]))
    return buffers


@cache
def _request_reader(api_key: int, version: int) -> Reader:
    return reader(f"{apis()[api_key].name}Request", version)


@cache
def _response_writer(api_key: int, version: int) -> tuple[Writer, int]:
    return writer(f"{apis()[api_key].name}Response", version), response_header_version(api_key, version)


def _header_reader(api_key: int, version: int) -> Reader:
    return reader("RequestHeader", request_header_version(api_key, version))
