"""Settings of the whole test suite: what runs first, how much hypothesis tries, and how a failure is found again."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Shared machines are slow now and then, so no example has a deadline. `print_blob` makes a failing example
# replay alone; the seed of the order is in pytest's header ("Using --randomly-seed=…").
settings.register_profile(
    "ci", max_examples=60, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("long", settings.get_profile("ci"), max_examples=5_000)
settings.load_profile("ci")

LONG_FIRST = ("spark", "simulation", "integration", "contract", "property")
"""Folders whose files take long, the longest first: a long file that begins last keeps one worker busy alone."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest. Their own order stays as it was shuffled."""
    items.sort(key=lambda item: _rank(item.path))


def _rank(path: Path) -> int:
    folder = path.relative_to(Path(__file__).parent).parts[0]
    return LONG_FIRST.index(folder) if folder in LONG_FIRST else len(LONG_FIRST)
