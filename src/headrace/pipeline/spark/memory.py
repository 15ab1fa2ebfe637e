"""How much memory a process and everything it has started take, as Linux counts it."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")
_KIB = 1024


def memory_of_tree(root: int, *, proc: Path = _PROC) -> int | None:
    """Return the bytes that a process and its descendants hold; `None` where the system does not tell.

    A page that several of them share counts once, in parts: Python workers are forks of one process, and counted
    each on its own they would seem many times as large as they are together.
    """
    parents = dict(_parents(proc))
    if root not in parents:
        return None
    tree = {root}
    while children := {process for process, parent in parents.items() if parent in tree} - tree:
        tree |= children
    return sum(_proportional_bytes(proc, process) for process in tree)


def _parents(proc: Path) -> Iterator[tuple[int, int]]:
    for folder in proc.glob("[0-9]*"):
        # Processes end while we look.
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The name, in parentheses, may hold anything; what follows is numbers. The second one is the parent.
            yield int(folder.name), int((folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])


def _proportional_bytes(proc: Path, process: int) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in (proc / str(process) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * _KIB
    return 0
