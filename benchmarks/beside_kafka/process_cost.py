"""What a broker's process costs, from /proc: CPU time and memory, of the process and all that descend from it."""

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
SAMPLE_PAUSE_SECONDS = 0.1
KIB = 1024

# Fields of /proc/PID/stat after the name in brackets: the third of the manual page is the first here.
_PARENT = 1
_TIMES = slice(11, 15)
_RSS_PAGES = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Resident bytes, and the proportional share of them, which counts shared pages once."""

    rss_bytes: int
    pss_bytes: int


def parse_stat(text: str) -> tuple[int, int]:
    """Return the parent's id and the ticks spent, in user and system mode and in children that ended."""
    fields = text.rpartition(")")[2].split()
    return int(fields[_PARENT]), sum(int(field) for field in fields[_TIMES])


def process_tree(pid: int) -> list[int]:
    """Return the process and its living descendants."""
    children: dict[int, list[int]] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            try:
                parent, _ = parse_stat((entry / "stat").read_text())
            except OSError:  # it has ended meanwhile
                continue
            children.setdefault(parent, []).append(int(entry.name))
    tree = [pid]
    for known in tree:
        tree += children.get(known, [])
    return tree


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds that the process and its descendants have spent so far."""
    ticks = 0
    for one in process_tree(pid):
        try:
            ticks += parse_stat((PROC / str(one) / "stat").read_text())[1]
        except OSError:
            continue
    return ticks / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What a process has spent: itself, and those of its children that have ended and that it has heard of."""

    parent: int
    own_ticks: int
    children_ticks: int


def spent_by(pid: int) -> dict[int, Spent]:
    """Return what the process and each of its living descendants have spent so far."""
    found: dict[int, Spent] = {}
    for one in process_tree(pid):
        try:
            fields = (PROC / str(one) / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        own, system, children, children_system = (int(field) for field in fields[_TIMES])
        found[one] = Spent(
            parent=int(fields[_PARENT]), own_ticks=own + system, children_ticks=children + children_system
        )
    return found


def seconds_between(before: Mapping[int, Spent], after: Mapping[int, Spent]) -> float:
    """Return the CPU seconds that a tree of processes has spent between two looks at it.

    PySpark's daemon does not want to hear of its children's ends. What an idle worker that Spark ends has spent in
    its life is then nowhere any more, and must not be taken off what the others have spent.
    """
    ticks = 0
    ended: dict[int, int] = {}
    for pid, then in before.items():
        if pid not in after:
            ended[then.parent] = ended.get(then.parent, 0) + then.own_ticks + then.children_ticks
    for pid, now in after.items():
        then = before.get(pid, Spent(parent=now.parent, own_ticks=0, children_ticks=0))
        told = now.children_ticks - then.children_ticks
        # Of those that it has heard of, only what they spent since the first look counts.
        ticks += now.own_ticks - then.own_ticks + told - min(told, ended.get(pid, 0))
    return ticks / os.sysconf("SC_CLK_TCK")


def memory(pid: int) -> Memory:
    """Return the memory of the process and its descendants."""
    rss = pss = 0
    for one in process_tree(pid):
        try:
            lines = (PROC / str(one) / "smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        sizes = {line.split(":")[0]: int(line.split()[1]) * KIB for line in lines[1:]}
        rss += sizes["Rss"]
        pss += sizes["Pss"]
    return Memory(rss_bytes=rss, pss_bytes=pss)


class PeakMemory:
    """Watches resident memory while it is entered. Reading it often is cheap; the proportional share is not."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.rss_bytes = 0

    def __enter__(self) -> "PeakMemory":
        self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        tree = process_tree(self._pid)
        while not self._ended.wait(SAMPLE_PAUSE_SECONDS):
            self.rss_bytes = max(self.rss_bytes, _resident_bytes(tree))


def _resident_bytes(tree: Sequence[int]) -> int:
    pages = 0
    for one in tree:
        try:
            pages += int((PROC / str(one) / "statm").read_text().split()[_RSS_PAGES])
        except OSError:
            continue
    return pages * os.sysconf("SC_PAGE_SIZE")
