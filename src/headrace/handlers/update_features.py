"""UpdateFeatures (57), versions 0-2: features follow from the release, so none can be changed.

- v1 names the kind of change and can ask for validation only; v2 leaves results of single features out and refuses
  all of them together.

Setting a feature to the level that it has succeeds, as a tool that runs twice expects.
"""

from headrace.handlers.api_versions import GROUP_VERSION
from headrace.handlers.call import Call, Refusal
from headrace.handlers.node import Node
from headrace.model.error_codes import ErrorCode
from headrace.wire.messages import UpdateFeaturesRequest, UpdateFeaturesResponse

LEVELS = {GROUP_VERSION: 1}
"""What ApiVersions reports as finalized."""

FIRST_WITHOUT_RESULTS = 2

_Asked = UpdateFeaturesRequest.FeatureUpdateKey
_Result = UpdateFeaturesResponse.UpdatableFeatureResult


async def handle(node: Node, call: Call, request: UpdateFeaturesRequest) -> UpdateFeaturesResponse:
    """Answer every feature that was named; nothing is changed."""
    outcomes = [_outcome(asked) for asked in request.feature_updates]
    if call.version >= FIRST_WITHOUT_RESULTS:
        failed = next((one for one in outcomes if one.code is not ErrorCode.NONE), Refusal(ErrorCode.NONE))
        return UpdateFeaturesResponse(error_code=failed.code, error_message=failed.message)
    return UpdateFeaturesResponse(
        error_message=None,
        results=[
            _Result(feature=asked.feature, error_code=one.code, error_message=one.message)
            for asked, one in zip(request.feature_updates, outcomes, strict=True)
        ],
    )


def refused(call: Call, request: UpdateFeaturesRequest, refusal: Refusal) -> UpdateFeaturesResponse:
    """Refuse the whole request."""
    return UpdateFeaturesResponse(error_code=refusal.code, error_message=refusal.message)


def _outcome(asked: _Asked) -> Refusal:
    level = LEVELS.get(asked.feature)
    if level is None:
        known = ", ".join(sorted(LEVELS))
        return Refusal(ErrorCode.INVALID_UPDATE_VERSION, f"there is no such feature: known are {known}")
    if asked.max_version_level != level:
        return Refusal(
            ErrorCode.INVALID_UPDATE_VERSION, f"{asked.feature} is {level} in this release and cannot be changed"
        )
    return Refusal(ErrorCode.NONE)
