"""Run the benchmarks: `python -m benchmarks [--quick] [name…]`.

A benchmark is a module in this directory with a `NAME` and a `run` that returns rows of (what, value, unit, target).
One that sets `HAS_QUICK_FORM` has a `run` that takes `is_quick`; `--quick` without names runs these, in short.
One with a `main` has options and an exit code of its own: named first, it gets the rest of the command line.
The exit code is 0 even if a target is missed: figures of a shared machine are for people to judge.
"""

import importlib
import pkgutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType

from rich.console import Console

from benchmarks import hostile
from benchmarks.report import Figure, figures_of, save, show

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "latest.json"
WRONG_USE = 2
QUICK = "--quick"

Row = tuple[str, float, str, float | None]


def discover() -> dict[str, ModuleType]:
    """Return the benchmarks by name."""
    modules = [importlib.import_module(f"benchmarks.{found.name}") for found in _candidates()]
    return {module.NAME: module for module in modules if hasattr(module, "NAME") and hasattr(module, "run")}


def _candidates() -> list[pkgutil.ModuleInfo]:
    return [found for found in pkgutil.iter_modules([str(HERE)]) if found.name not in ("__main__", "report")]


def main(arguments: Sequence[str]) -> int:
    """Run the benchmarks that are named, or all, print their figures and keep them."""
    if arguments and arguments[0] == hostile.NAME:
        return hostile.main(arguments[1:])
    is_quick = QUICK in arguments
    names = [argument for argument in arguments if argument != QUICK]
    known = discover()
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"no benchmark is called {', '.join(unknown)}; there are {', '.join(sorted(known))}", file=sys.stderr)
        return WRONG_USE
    figures: list[Figure] = []
    console = Console()
    for name in names or sorted(name for name in known if not is_quick or has_quick_form(known[name])):
        with console.status(f"{name} …"):
            figures += figures_of(name, rows_of(known[name], is_quick=is_quick))
    show(figures, console)
    save(figures, RESULTS)
    console.print(f"\nkept in benchmarks/results/{RESULTS.name}", highlight=False)
    return 0


def rows_of(module: ModuleType, *, is_quick: bool) -> Iterable[Row]:
    """Run one benchmark, in its short form if that is asked for and there is one."""
    return module.run(is_quick=is_quick) if has_quick_form(module) else module.run()  # type: ignore[no-any-return]


def has_quick_form(module: ModuleType) -> bool:
    """Tell whether the benchmark can be run in short."""
    return getattr(module, "HAS_QUICK_FORM", False)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
