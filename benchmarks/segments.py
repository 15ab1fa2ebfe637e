"""What one durable append costs on this disk, beside the two other ways to store a small frame.

- *prepared*: a segment of the local store, zero-written ahead (what a broker does);
- *growing*: the same writes to a file without zeros ahead, so that each fdatasync also writes size and blocks;
- *new file*: an object of its own, with temporary file, rename and fsync of the directory.

The ways take turns in rounds, so that a noisy neighbour hits all of them; the figures are medians. They are taken
on the calling thread, so that the disk is measured alone; one more line tells what a broker waits, whose event loop
hands the append to a thread and is woken again.
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from headrace.objects.disk import Disk
from headrace.objects.local import LocalObjects
from headrace.objects.port import object_key
from headrace.runtime.executor import InlineExecutor, ThreadExecutor

NAME = "segments"

FRAME = bytes(range(256)) * 16
ROUNDS = 10
APPENDS_PER_ROUND = 200
OBJECTS_PER_ROUND = 25
CAPACITY_BYTES = 64 * 1024 * 1024

Step = Callable[[int], Awaitable[object]]


async def _time_each(step: Step, first: int, count: int, into: list[float]) -> None:
    for n in range(first, first + count):
        began = time.perf_counter()
        await step(n)
        into.append((time.perf_counter() - began) * 1000)


async def _measure(directory: Path) -> dict[str, list[float]]:
    threads = ThreadExecutor("bench", threads=4)
    store = LocalObjects(directory / "objects", executor=InlineExecutor())
    beside = LocalObjects(directory / "objects", executor=threads)
    segment = await store.segments.create_segment(object_key("wal/inline"), capacity_bytes=CAPACITY_BYTES)
    threaded = await beside.segments.create_segment(object_key("wal/threaded"), capacity_bytes=CAPACITY_BYTES)
    disk = Disk()
    growing = disk.create(directory / "growing")

    async def grow(n: int) -> None:
        disk.write(growing, [FRAME], n * len(FRAME))
        disk.sync_data(growing)

    steps: dict[str, tuple[Step, int]] = {
        "prepared": (lambda _: segment.append([FRAME]), APPENDS_PER_ROUND),
        "growing": (grow, APPENDS_PER_ROUND),
        "new file": (lambda n: store.put(object_key(f"wal/objects/{n}"), [FRAME]), OBJECTS_PER_ROUND),
        "threaded": (lambda _: threaded.append([FRAME]), APPENDS_PER_ROUND),
    }
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(ROUNDS):
        for name, (step, count) in steps.items():
            await _time_each(step, turn * count, count, times[name])
    for opened in (segment, threaded):
        await opened.seal()
    for each in (store, beside):
        await each.close()
    disk.close(growing)
    threads.close()
    return times


def run() -> list[tuple[str, float, str, float | None]]:
    """Return (what, value, unit, target) for each figure."""
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as directory:
        times = asyncio.run(_measure(Path(directory)))
    median = {name: statistics.median(values) for name, values in times.items()}
    return [
        ("append of 4 KiB to a segment, zero-written ahead", median["prepared"], "ms", None),
        ("append of 4 KiB to a growing file", median["growing"], "ms", None),
        ("new file of 4 KiB with rename and directory fsync", median["new file"], "ms", None),
        ("growing file / segment", median["growing"] / median["prepared"], "times", None),
        ("new file / segment", median["new file"] / median["prepared"], "times", None),
        ("append of 4 KiB to a segment through a thread", median["threaded"], "ms", None),
        ("the same, 99th percentile", statistics.quantiles(times["threaded"], n=100)[98], "ms", None),
    ]


def main() -> None:
    """Print the figures."""
    for what, value, unit, _ in run():
        print(f"{what:<55} {value:8.3f} {unit}")


if __name__ == "__main__":
    main()
