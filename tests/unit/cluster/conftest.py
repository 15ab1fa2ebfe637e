from collections.abc import AsyncIterator

import pytest

from tests.unit.cluster.stage import Stage


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    made = Stage()
    yield made
    await made.close()
