"""Generated pages say what the code says."""

from pathlib import Path

import pytest

from tools.generate_docs import PAGES


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_the_page_is_fresh(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == PAGES[path](), "stale: run `make docs` and commit the result"
