"""Write a run's files in the process itself, with the very code that Spark's tasks run: for tests and simulations."""

from collections.abc import Callable, Sequence

from headrace.objects.port import ObjectStore
from headrace.pipeline.key_scanning import scan_keys
from headrace.pipeline.performing import perform_task
from headrace.pipeline.rewrites import TableTask
from headrace.pipeline.scans import ScannedStream, ScanTask
from headrace.runtime.rng import Rng
from headrace.tables.files import WrittenFile


class LocalWriter:
    """A `TableWriter` without Spark. `after_file` is called behind each file, so that a test can end things there."""

    def __init__(self, objects: ObjectStore, *, rng: Rng, after_file: Callable[[], None] = lambda: None) -> None:
        self._objects = objects
        self._rng = rng
        self._after_file = after_file

    async def write(self, tasks: Sequence[TableTask]) -> list[WrittenFile]:
        """Write one file after the other."""
        files: list[WrittenFile] = []
        for task in tasks:
            files.append(await perform_task(task, self._objects, attempt=f"0-{self._rng.getrandbits(32):08x}"))
            self._after_file()
        return files

    async def scan(self, tasks: Sequence[ScanTask]) -> list[ScannedStream]:
        """Scan one stream after the other."""
        return [await scan_keys(task, self._objects, attempt=f"0-{self._rng.getrandbits(32):08x}") for task in tasks]
