"""ApiVersions 0-4: which APIs are served, in which versions.

The list comes from the table that dispatches, so the two cannot differ. A version that is not served is answered in
version 0 with UNSUPPORTED_VERSION and the list (the dispatcher does that), so that any client can find its way. 3
brought the client's name and features; features name only what is served, and nothing of that kind is yet. 4 allows a
feature to begin at version 0.
"""

from collections.abc import Callable, Iterable

from headrace.handlers.call import Call, Refusal
from headrace.handlers.node import Node
from headrace.model.error_codes import ErrorCode
from headrace.runtime.text import one_line
from headrace.wire.messages import ApiVersionsRequest, ApiVersionsResponse

MAX_SOFTWARE_CHARS = 100

Served = Callable[[], Iterable[tuple[int, int, int]]]
"""API key, first and last version, for each API that is served."""


class ApiVersions:
    """The handler, over the table that it stands in."""

    def __init__(self, served: Served) -> None:
        self._served = served

    async def handle(self, node: Node, call: Call, request: ApiVersionsRequest) -> ApiVersionsResponse:
        """Answer with the table."""
        if request.client_software_name:
            software = f"{request.client_software_name} {request.client_software_version}"
            node.log.debug(
                "a client said hello", peer=call.peer, software=one_line(software, max_chars=MAX_SOFTWARE_CHARS)
            )
        return self._answer(ErrorCode.NONE)

    def refused(self, call: Call, request: ApiVersionsRequest, refusal: Refusal) -> ApiVersionsResponse:
        return self._answer(refusal.code)

    def _answer(self, code: ErrorCode) -> ApiVersionsResponse:
        return ApiVersionsResponse(
            error_code=code,
            api_keys=[
                ApiVersionsResponse.ApiVersion(api_key=key, min_version=first, max_version=last)
                for key, first, last in self._served()
            ],
        )
