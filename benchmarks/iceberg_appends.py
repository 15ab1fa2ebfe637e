"""What one run's Iceberg commit takes as the number of commits grows: embedded catalog, local disk, one file per run.

Every append expires what is too old, and what expiry frees is deleted, as the pipeline and its collector do. Figures
are medians over the commits before a mark, and the slowest of them. Merges of manifests fall into all windows. Beside
the time that a clock shows stands the CPU time, which neighbours on a shared machine change less.
"""

import asyncio
import io
import statistics
import tempfile
import time
from pathlib import Path

from headrace.model.topics import TopicId
from headrace.runtime.clock import SystemClock
from headrace.runtime.executor import ThreadExecutor
from headrace.runtime.logs import open_log
from headrace.runtime.rng import seeded_rng
from headrace.tables.files import ColumnStats, WrittenFile
from headrace.tables.format import Partitioning
from headrace.tables.iceberg.open import open_catalog
from headrace.tables.port import ExpiryRule, TableAppend, TableInfo, TopicTable

NAME = "iceberg_appends"
HAS_QUICK_FORM = True

MARKS = (20, 100, 1000, 5000)
QUICK_MARKS = (20, 100, 300)
WINDOW = 20
FLAT = 2.0
"""At the last mark an append may take so many times the CPU that it took with the full number of snapshots (100)."""

PARTITIONS = 12
ROWS_PER_FILE = 60_000
BUCKET = 20_000


async def _measure(directory: Path, commits: int) -> tuple[list[float], list[float], int, int]:
    """Append over and over; return milliseconds by the clock and of CPU, and the files and bytes of metadata left."""
    threads = ThreadExecutor("catalog", threads=1)
    clock = SystemClock()
    catalog = open_catalog(
        f"sqlite:{directory}/catalog.db",
        objects_url=f"file:{directory}/objects",
        executor=threads,
        rng=seeded_rng(1),
        log=open_log(io.StringIO(), clock=clock),
    )
    table = TopicTable(topic_id=TopicId(bytes(range(16))), topic_name="bench", partitioning=Partitioning())
    times: list[float] = []
    cpu_times: list[float] = []
    try:
        info = await catalog.ensure(table)
        ends: dict[int, int] = {}
        for number in range(commits):
            append = _run(table, info, number, ends)
            began, cpu_began = time.perf_counter(), time.process_time()
            done = await catalog.append(append, now_ms=clock.now_ms(), expiry=ExpiryRule())
            times.append((time.perf_counter() - began) * 1000)
            cpu_times.append((time.process_time() - cpu_began) * 1000)
            ends.update(append.ends)
            for key in done.freed:
                (directory / "objects" / key).unlink()
    finally:
        await catalog.close()
        threads.close()
    left = [path.stat().st_size for path in (directory / "objects").rglob("metadata/*")]
    return times, cpu_times, len(left), sum(left)


def _run(table: TopicTable, info: TableInfo, number: int, ends: dict[int, int]) -> TableAppend:
    """Return a run of one file with statistics as a task reports them."""
    bound = number.to_bytes(8, "little")
    columns = tuple(
        ColumnStats(field_id, 100_000, ROWS_PER_FILE, 0, bound, bound) for field_id in info.format.field_ids.values()
    )
    file = WrittenFile(
        path=f"{info.data_prefix}{number:032x}/0-1-{number}-{number + 1}-1-0.parquet",
        size_bytes=5_000_000,
        footer_bytes=2_000,
        footer_crc=0,
        row_count=ROWS_PER_FILE,
        slices=(),
        columns=columns,
        split_offsets=tuple(range(4, 4_000_004, 1_000_000)),
        bucket=BUCKET + number // 1440,
        partition=None,
        spec_id=info.format.spec_id,
    )
    return TableAppend(
        table=table,
        saga_id=f"{number:032x}",
        epoch=1,
        after=dict(ends),
        ends=dict.fromkeys(range(PARTITIONS), (number + 1) * 5000),
        files=[file],
    )


def run(*, is_quick: bool = False) -> list[tuple[str, float, str, float | None]]:
    """Return (what, value, unit, target) for each figure."""
    marks = QUICK_MARKS if is_quick else MARKS
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as directory:
        times, cpu_times, file_count, size_bytes = asyncio.run(_measure(Path(directory), marks[-1]))
    cpu = {mark: statistics.median(cpu_times[mark - WINDOW : mark]) for mark in marks}
    rows: list[tuple[str, float, str, float | None]] = []
    for mark in marks:
        window = times[mark - WINDOW : mark]
        target = FLAT * cpu[100] if mark == marks[-1] else None
        rows.append((f"append at {mark:,} commits, median of {WINDOW}", statistics.median(window), "ms", None))
        rows.append((f"append at {mark:,} commits, slowest of {WINDOW}", max(window), "ms", None))
        rows.append((f"append at {mark:,} commits, CPU, median of {WINDOW}", cpu[mark], "ms", target))
    rows.append(("all appends, 99th percentile", statistics.quantiles(times, n=100)[98], "ms", None))
    rows.append((f"metadata files after {marks[-1]:,} commits", file_count, "files", None))
    rows.append((f"bytes of metadata after {marks[-1]:,} commits", size_bytes / 1e6, "MB", None))
    return rows


def main() -> None:
    """Print the figures."""
    for what, value, unit, _ in run():
        print(f"{what:<55} {value:8.1f} {unit}")


if __name__ == "__main__":
    main()
