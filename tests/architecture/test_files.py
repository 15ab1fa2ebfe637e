"""What every file of the tree owes its reader."""

import ast
from pathlib import Path

import pytest

import headrace

PROJECT = Path(__file__).parents[2]
PACKAGE = Path(headrace.__file__).parent
MAX_LINES = 600
NOBODYS_HOMES = {"utils.py", "util.py", "helpers.py", "common.py", "misc.py"}


def missing_docstrings(package: Path) -> list[str]:
    """Return the modules without a docstring, and the packages without an `__init__.py`."""
    bare = [path for path in sorted(package.rglob("*.py")) if not ast.get_docstring(ast.parse(path.read_text()))]
    homeless = [
        path
        for path in sorted(package.rglob("*"))
        if path.is_dir() and any(path.glob("*.py")) and not (path / "__init__.py").exists()
    ]
    return [str(path.relative_to(package)) for path in bare + homeless]


def test_every_package_and_module_says_what_it_is_for() -> None:
    assert missing_docstrings(PACKAGE) == []


def test_a_bare_module_and_a_package_without_init_are_found(tmp_path: Path) -> None:
    (tmp_path / "wal").mkdir()
    (tmp_path / "wal" / "frame.py").write_text("X = 1\n")
    assert missing_docstrings(tmp_path) == ["wal/frame.py", "wal"]


@pytest.mark.parametrize("folder", ["src", "tests", "benchmarks", "tools"])
def test_no_file_is_nobodys_home(folder: str) -> None:
    assert [str(path) for path in (PROJECT / folder).rglob("*.py") if path.name in NOBODYS_HOMES] == []


def test_no_module_has_outgrown_its_roof() -> None:
    lengths = {str(path.relative_to(PACKAGE)): len(path.read_text().splitlines()) for path in PACKAGE.rglob("*.py")}
    assert {name: lines for name, lines in lengths.items() if lines > MAX_LINES} == {}


def test_every_test_directory_is_a_package() -> None:
    folders = {path.parent for path in (PROJECT / "tests").rglob("test_*.py")}
    assert [str(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []
