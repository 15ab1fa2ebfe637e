"""The page of limits: every number in the code that bounds something, with the sentence that stands below it.

A limit is a module's constant whose name says what it counts and which has a docstring. A test fails until
`make docs` has put a new one there.
"""

import ast
import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"

HEAD = """\
# Limits

<!-- Generated from the constants of src/headrace by `make docs`. Change them there. -->

What bounds a broker and the pipeline, beside the [settings](settings.md). Each number has a name, a unit, a reason.
Limits that people may want to change are settings; the ones below are not.
"""

_NAMES = re.compile(
    r"^(MAX|MIN)_|_MAX_|_(BYTES|S|MS|COUNT|THREADS|PARTS|ELEMENTS|NAMES|BATCHES|ROWS|KEYS|ENTRIES)$|_PER_|_AT_ONCE|"
    r"LIMIT|ATTEMPTS|REPEATS"
)
_LEFT_OUT = ("headrace/cli/", "headrace/testing/", "headrace/pipeline/spark/")
_STEP_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Limit:
    """One constant, as the page shows it."""

    module: str
    name: str
    value: int | float
    sentence: str


def limits_page() -> str:
    """Return the text of docs/reference/limits.md."""
    sections: dict[str, list[Limit]] = {}
    for limit in limits():
        sections.setdefault(limit.module.split(".")[1], []).append(limit)
    return HEAD + "".join(_section(package, found) for package, found in sorted(sections.items()))


def limits() -> Iterator[Limit]:
    """Yield the limits of all modules, in the order of the tree."""
    for path in sorted((SOURCE / "headrace").rglob("*.py")):
        relative = path.relative_to(SOURCE).as_posix()
        if not relative.startswith(_LEFT_OUT):
            yield from _limits_of(path, relative.removesuffix(".py").removesuffix("/__init__").replace("/", "."))


def _limits_of(path: Path, module: str) -> Iterator[Limit]:
    body = ast.parse(path.read_text(encoding="utf-8")).body
    for statement, below in pairwise(body):
        name, sentence = _name_of(statement), _sentence_of(below)
        if name is None or sentence is None or not _NAMES.search(name):
            continue
        value = getattr(importlib.import_module(module), name)
        if isinstance(value, int | float):
            yield Limit(module, name, value, sentence)


def _name_of(statement: ast.stmt) -> str | None:
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return None if name.startswith("_") else name
    return None


def _sentence_of(statement: ast.stmt) -> str | None:
    match statement:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return " ".join(text.split())
    return None


def _section(package: str, found: list[Limit]) -> str:
    rows = [
        f"| `{limit.name}` | {_shown(limit)} | {limit.sentence} | `{limit.module.partition('.')[2]}` |"
        for limit in found
    ]
    return (
        f"\n## {package}\n\n| limit | value | what it is for | where |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"
    )


def _shown(limit: Limit) -> str:
    """Return the number with its unit, which stands at the end of the name."""
    value = limit.value
    if limit.name.endswith("_BYTES") and isinstance(value, int):
        for size, unit in ((_STEP_BYTES**2, "MiB"), (_STEP_BYTES, "KiB")):
            if value >= size and value % size == 0:
                return f"{value // size:,} {unit}"
        return f"{value:,} bytes"
    unit = " ms" if limit.name.endswith("_MS") else " s" if limit.name.endswith("_S") else ""
    return f"{value:,}{unit}"
