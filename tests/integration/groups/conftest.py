"""One broker for all tests of a file that leave it as they found it.

`TEST_BOOTSTRAP` names a cluster that runs somewhere, such as an Apache Kafka, to see whether it behaves as these
tests say. Groups and topics are new in every run, so that it may be used again.
"""

import os
import uuid
from collections.abc import Callable, Iterator

import pytest

from tests.integration.wire.watching import mistakes
from tests.servers.headrace import HeadraceProcess, running_headrace


@pytest.fixture(scope="module")
def settings() -> dict[str, str]:
    """Return what the broker is told; a file that needs something else has a fixture of the same name."""
    return {}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, settings: dict[str, str]) -> Iterator[HeadraceProcess]:
    """Return a broker."""
    with running_headrace(tmp_path_factory.mktemp("data"), settings=settings) as running:
        yield running
        assert mistakes(running) == []


@pytest.fixture(scope="module")
def bootstrap(request: pytest.FixtureRequest) -> str:
    """Return where a broker serves."""
    elsewhere = os.environ.get("TEST_BOOTSTRAP")
    return elsewhere or str(request.getfixturevalue("broker").bootstrap)


@pytest.fixture
def port(bootstrap: str) -> int:
    """Return the broker's port on this machine, for those who speak to it directly."""
    return int(bootstrap.rpartition(":")[2])


@pytest.fixture
def new_name() -> Callable[[str], str]:
    """Return a function that makes names which nobody has used."""
    run = uuid.uuid4().hex[:8]
    return lambda stem: f"{stem}-{run}"
