"""ApiVersions 0-4: which APIs are served, in which versions.

The list comes from the table that dispatches, so the two cannot differ. A version that is not served is answered in
version 0 with UNSUPPORTED_VERSION and the list (the dispatcher does that), so that any client can find its way. 3
brought the client's name and features; features name only what is served. 4 allows a feature to begin at version 0,
which clients of version 3 cannot read: they are told that it begins at 1, as by Kafka.
"""

from collections.abc import Callable, Iterable

from headrace.handlers.call import Call, Refusal
from headrace.handlers.node import Node
from headrace.model.error_codes import ErrorCode
from headrace.runtime.text import one_line
from headrace.wire.messages import ApiVersionsRequest, ApiVersionsResponse

MAX_SOFTWARE_CHARS = 100
FIRST_VERSION_WITH_FEATURES = 3
FIRST_VERSION_FROM_ZERO = 4

GROUP_VERSION = "group.version"
"""Groups of KIP-848: 0 without, 1 with them."""

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
        return self._answer(call, ErrorCode.NONE)

    def refused(self, call: Call, request: ApiVersionsRequest, refusal: Refusal) -> ApiVersionsResponse:
        return self._answer(call, refusal.code)

    def _answer(self, call: Call, code: ErrorCode) -> ApiVersionsResponse:
        keys = [
            ApiVersionsResponse.ApiVersion(api_key=key, min_version=first, max_version=last)
            for key, first, last in self._served()
        ]
        if call.version < FIRST_VERSION_WITH_FEATURES:
            return ApiVersionsResponse(error_code=code, api_keys=keys)
        first = 0 if call.version >= FIRST_VERSION_FROM_ZERO else 1
        return ApiVersionsResponse(
            error_code=code,
            api_keys=keys,
            supported_features=[
                ApiVersionsResponse.SupportedFeatureKey(name=GROUP_VERSION, min_version=first, max_version=1)
            ],
            finalized_features_epoch=0,
            finalized_features=[
                ApiVersionsResponse.FinalizedFeatureKey(name=GROUP_VERSION, min_version_level=1, max_version_level=1)
            ],
        )
