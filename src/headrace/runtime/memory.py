"""Give memory that nothing uses back to the system.

The C library keeps what was freed, in case somebody asks for it again. After a storm of large requests that no object
holds any more, a process can look a hundred MiB larger than it is, and it grows on with the next storm, because the
pieces that are left do not fit. So when the process has grown by much, the library is asked to give back whole pages.

Must stay true: nothing happens while the process stays about as large as it was; and the work is done on a thread.
"""

import ctypes
import resource
from collections.abc import Callable
from pathlib import Path

from headrace.runtime.executor import Executor
from headrace.runtime.metrics import Metrics

TRIM_GROWTH_BYTES = 32 * 1024 * 1024
"""By how much the process must have grown since the last time before memory is given back again."""

MAX_ARENAS = 2
"""How many heaps the C library keeps for all threads; it would make eight per core. Each keeps free pieces of its
own, and Python's threads allocate one at a time anyway."""

_M_ARENA_MAX = -8
_STATM = Path("/proc/self/statm")


class MemoryTrimmer:
    """Looks at the size of this process, and gives back what the C library keeps for nobody."""

    def __init__(
        self,
        *,
        executor: Executor,
        metrics: Metrics,
        resident_bytes: Callable[[], int | None] | None = None,
        trim: Callable[[], None] | None = None,
    ) -> None:
        self._executor = executor
        self._resident_bytes = resident_bytes or resident_memory_bytes
        self._trim = trim or trim_memory
        self._level_bytes: int | None = None
        self._trims = metrics.counters("memory_trims", "How often free memory was given back to the system.").of()

    async def tick(self) -> bool:
        """Give memory back if the process has grown by much since the last look; say whether it was done."""
        size_bytes = self._resident_bytes()
        if size_bytes is None:
            return False
        if self._level_bytes is None or size_bytes < self._level_bytes:
            self._level_bytes = size_bytes
        if size_bytes - self._level_bytes < TRIM_GROWTH_BYTES:
            return False
        await self._executor.run(self._trim)
        self._trims.inc()
        self._level_bytes = self._resident_bytes()
        return True


def resident_memory_bytes() -> int | None:
    """Return how much memory this process takes; `None` where the system does not say so."""
    try:
        pages = int(_STATM.read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * resource.getpagesize()


def trim_memory() -> None:
    """Ask the C library to give back free pages. Others than glibc have no such call, and keep less."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def limit_arenas() -> None:
    """Let all threads share a few heaps; to be called before threads begin. glibc only, as above."""
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim") and hasattr(library, "mallopt"):
        library.mallopt(_M_ARENA_MAX, MAX_ARENAS)
