"""ApiVersions: the table that dispatches, in every version."""

import io
import json
from types import SimpleNamespace
from typing import cast

import pytest

from headrace.handlers.api_versions import MAX_SOFTWARE_CHARS, ApiVersions
from headrace.handlers.call import Refusal
from headrace.handlers.node import Node
from headrace.handlers.table import TABLE, served
from headrace.model.error_codes import ErrorCode
from headrace.runtime.logs import open_log
from headrace.testing.clock import ManualClock
from headrace.wire.messages import ApiVersionsRequest
from tests.unit.handlers.topic_node import ask, call, over_the_wire

ALL_VERSIONS = range(5)


class Logged:
    """A node with nothing but a log."""

    def __init__(self) -> None:
        self.written = io.StringIO()
        log = open_log(self.written, clock=ManualClock(), level="debug", format="json")
        self.node = cast(Node, SimpleNamespace(log=log))


@pytest.mark.parametrize("version", ALL_VERSIONS)
async def test_every_version_tells_the_table_that_dispatches(version: int) -> None:
    answer = await ask(ApiVersions(served).handle, Logged().node, version, ApiVersionsRequest())
    told = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
    assert told == {api.key: (api.first_version, api.last_version) for api in TABLE.values()}
    assert answer.error_code == 0


@pytest.mark.parametrize("version", ALL_VERSIONS)
def test_every_version_can_be_refused_and_tells_the_table_all_the_same(version: int) -> None:
    refusal = Refusal(ErrorCode.UNSUPPORTED_VERSION)
    answer = over_the_wire(ApiVersions(served).refused(call(version), ApiVersionsRequest(), refusal), version)
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION and len(answer.api_keys) == len(TABLE)


async def test_client_that_says_its_name_is_logged_in_one_short_line() -> None:
    logged = Logged()
    request = ApiVersionsRequest(client_software_name="evil\nname" * 100, client_software_version="1")
    await ask(ApiVersions(served).handle, logged.node, 3, request)
    (line,) = logged.written.getvalue().splitlines()
    software = json.loads(line)["software"]
    assert software.startswith("evil\\nname") and len(software) < 2 * MAX_SOFTWARE_CHARS


@pytest.mark.parametrize(("version", "first"), [(3, 1), (4, 0)])
async def test_the_groups_that_are_served_are_named_as_a_feature(version: int, first: int) -> None:
    answer = await ask(ApiVersions(served).handle, Logged().node, version, ApiVersionsRequest())
    (supported,), (finalized,) = answer.supported_features, answer.finalized_features
    assert (supported.name, supported.min_version, supported.max_version) == ("group.version", first, 1)
    assert (finalized.name, finalized.max_version_level, answer.finalized_features_epoch) == ("group.version", 1, 0)


async def test_versions_without_features_name_none() -> None:
    answer = await ask(ApiVersions(served).handle, Logged().node, 2, ApiVersionsRequest())
    assert (answer.supported_features, answer.finalized_features) == ([], [])
