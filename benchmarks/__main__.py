"""Run the benchmarks: `python -m benchmarks [name…]`.

A benchmark is a module in this directory with a `NAME` and a `run` that returns rows of (what, value, unit, target).
The exit code is 0 even if a target is missed: figures of a shared machine are for people to judge.
"""

import importlib
import pkgutil
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from rich.console import Console

from benchmarks.report import Figure, figures_of, save, show

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "latest.json"
WRONG_USE = 2


def discover() -> dict[str, ModuleType]:
    """Return the benchmarks by name."""
    modules = [importlib.import_module(f"benchmarks.{found.name}") for found in _candidates()]
    return {module.NAME: module for module in modules if hasattr(module, "NAME") and hasattr(module, "run")}


def _candidates() -> list[pkgutil.ModuleInfo]:
    return [found for found in pkgutil.iter_modules([str(HERE)]) if found.name not in ("__main__", "report")]


def main(names: Sequence[str]) -> int:
    """Run the benchmarks that are named, or all, print their figures and keep them."""
    known = discover()
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"no benchmark is called {', '.join(unknown)}; there are {', '.join(sorted(known))}", file=sys.stderr)
        return WRONG_USE
    figures: list[Figure] = []
    console = Console()
    for name in names or sorted(known):
        with console.status(f"{name} …"):
            figures += figures_of(name, known[name].run())
    show(figures, console)
    save(figures, RESULTS)
    console.print(f"\nkept in benchmarks/results/{RESULTS.name}", highlight=False)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
