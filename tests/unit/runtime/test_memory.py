"""Free memory goes back to the system when a process has grown by much, and not before."""

import sys

from headrace.runtime.executor import InlineExecutor
from headrace.runtime.memory import (
    TRIM_GROWTH_BYTES,
    MemoryTrimmer,
    limit_arenas,
    resident_memory_bytes,
    trim_memory,
)
from headrace.runtime.metrics import Metrics

MIB = 1024 * 1024


class Process:
    """A process of some size, of which some is used."""

    def __init__(self, size_bytes: int | None) -> None:
        self.size_bytes = size_bytes
        self.used_bytes = 0
        self.trims = 0
        self.trimmer = MemoryTrimmer(
            executor=InlineExecutor(), metrics=Metrics(), resident_bytes=lambda: self.size_bytes, trim=self._trim
        )

    def _trim(self) -> None:
        self.trims += 1
        self.size_bytes = self.used_bytes


async def test_memory_is_given_back_when_the_process_has_grown_by_much() -> None:
    process = Process(100 * MIB)
    process.used_bytes = 110 * MIB
    assert not await process.trimmer.tick()
    process.size_bytes = 100 * MIB + TRIM_GROWTH_BYTES - 1
    assert not await process.trimmer.tick() and process.trims == 0
    process.size_bytes = 100 * MIB + TRIM_GROWTH_BYTES
    assert await process.trimmer.tick() and process.size_bytes == 110 * MIB
    assert not await process.trimmer.tick(), "what is in use is the new level"


async def test_growth_counts_from_the_smallest_size_since_the_last_time() -> None:
    process = Process(500 * MIB)
    await process.trimmer.tick()
    process.size_bytes = 100 * MIB
    await process.trimmer.tick()
    process.size_bytes = 100 * MIB + TRIM_GROWTH_BYTES
    assert await process.trimmer.tick()


async def test_a_system_that_does_not_say_how_large_it_is_is_left_alone() -> None:
    process = Process(None)
    assert not await process.trimmer.tick() and process.trims == 0


def test_the_real_calls_work_here() -> None:
    limit_arenas()
    trim_memory()
    if sys.platform == "linux":
        assert (resident_memory_bytes() or 0) > MIB
