"""One broker for all tests of a file that leave it as they found it."""

from collections.abc import Iterator

import pytest

from tests.servers.headrace import HeadraceProcess, running_headrace


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeadraceProcess]:
    with running_headrace(tmp_path_factory.mktemp("data")) as process:
        yield process
