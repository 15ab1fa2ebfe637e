"""Read windows of table entries: row groups of Parquet files, rebuilt as batches.

1. Take from the cache what is there.
2. Ask for the rest with one request per file: the bytes of its row groups, and its footer if that is not known.
3. On a thread: check every byte against the checksums that the index has, open the groups, rebuild the batches.

Must stay true: no byte is decoded before its checksum was found right, and none is served after one was found wrong.
Wrong bytes are asked for once more, because a store may have answered with half of them; then it is damage.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from headrace.errors import Corrupt, Missing
from headrace.fetch.budget import ReadBudget
from headrace.fetch.damage import Damage
from headrace.fetch.rebuilding import BatchShape, rebuild, shape_of
from headrace.fetch.row_groups import MAX_FOOTERS_BYTES, BoundedCache, RowGroupCache
from headrace.fetch.runs import Run
from headrace.fetch.windows import Window
from headrace.model.extents import RowGroup, TableFile
from headrace.model.ids import StreamId
from headrace.model.topics import TopicRules
from headrace.objects.port import Buffer, ByteRange, ObjectStore, object_key
from headrace.records.problems import InvalidBatch
from headrace.runtime.executor import Executor

if TYPE_CHECKING:
    from headrace.tables.parquet_reading import Footer

MAX_FILES_AT_ONCE = 8
"""How many files one read asks for at the same time."""

UNKNOWN_RATIO = 4
"""How much larger than its bytes in the file a row group is taken to be, as long as its footer is not known."""


class GroupKey(msgspec.Struct, frozen=True):
    """What a rebuilt row group depends on, and nothing else."""

    path: str
    number: int
    start_offset: int
    end_offset: int
    shape: BatchShape


class TableReader:
    """Brings row groups from the object store, or from memory."""

    def __init__(
        self,
        *,
        objects: ObjectStore,
        executor: Executor,
        cache: "RowGroupCache[GroupKey] | None" = None,
        rules_of: Callable[[StreamId], TopicRules | None] | None = None,
    ) -> None:
        """`rules_of` says what the configuration of a stream's topic demands, as far as it is known here."""
        self._objects = objects
        self._executor = executor
        self._cache = cache if cache is not None else RowGroupCache[GroupKey]()
        self._footers: BoundedCache[str, Footer] = BoundedCache(max_bytes=MAX_FOOTERS_BYTES)
        self._rules_of = rules_of or (lambda _: None)

    def expected_bytes(self, window: Window) -> int:
        """Return how large a window will be once it is rebuilt, about."""
        if window.file is None or window.group is None:
            return 0
        footer = self._footers.get(window.file.path)
        if footer is None or window.group.number >= footer.metadata.num_row_groups:
            return UNKNOWN_RATIO * window.group.size_bytes
        opened_bytes: int = footer.metadata.row_group(window.group.number).total_byte_size
        return opened_bytes

    async def read(
        self, stream: StreamId, windows: Sequence[Window], *, budget: ReadBudget | None = None
    ) -> list[Run]:
        """Return the batches of consecutive windows, covering all their offsets.

        Raises `Missing` if a file is gone, and `Corrupt` if its bytes are not those that were written. With a budget,
        what it takes to bring them is lent from it; what is in memory already takes nobody's turn.
        """
        shape = shape_of(self._rules_of(stream))
        by_key = {_key(window, shape): window for window in windows}

        async def load(keys: Sequence[GroupKey]) -> Mapping[GroupKey, list[Run]]:
            wanted = [by_key[key] for key in keys]
            size_bytes = sum(window.size_bytes + self.expected_bytes(window) for window in wanted)
            async with budget.lend(size_bytes) if budget is not None and size_bytes else nullcontext():
                return dict(zip(keys, await self._load(wanted, shape), strict=True))

        return [run for runs in await self._cache.get(list(by_key), load) for run in runs]

    async def salvage(
        self, stream: StreamId, windows: Sequence[Window], offset: int, *, budget: ReadBudget | None = None
    ) -> list[Run | Damage]:
        """Read windows again one by one, up to the first damage that hides `offset` or lies behind it."""
        parts: list[Run | Damage] = []
        for window in windows:
            try:
                parts += await self.read(stream, [window], budget=budget)
            except (Corrupt, Missing) as error:
                parts.append(_damage(window, str(error)))
                if window.end_offset > offset:
                    break
        return parts

    def close(self) -> None:
        """End what is being read for nobody in particular."""
        self._cache.close()

    async def _load(self, windows: Sequence[Window], shape: BatchShape) -> list[list[Run]]:
        by_file: dict[TableFile | None, list[int]] = {}
        for position, window in enumerate(windows):
            by_file.setdefault(window.file, []).append(position)
        slots = asyncio.Semaphore(MAX_FILES_AT_ONCE)

        async def in_turn(file: TableFile | None, positions: list[int]) -> list[list[Run]]:
            async with slots:
                return await self._load_file(file, [windows[position] for position in positions], shape)

        parts = await asyncio.gather(*(in_turn(*item) for item in by_file.items()), return_exceptions=True)
        loaded: list[list[Run]] = [[] for _ in windows]
        for positions, part in zip(by_file.values(), parts, strict=True):
            if isinstance(part, BaseException):
                raise part
            for position, runs in zip(positions, part, strict=True):
                loaded[position] = runs
        return loaded

    async def _load_file(
        self, file: TableFile | None, windows: Sequence[Window], shape: BatchShape
    ) -> list[list[Run]]:
        if file is None:
            return [rebuild(None, window.start_offset, window.end_offset, shape) for window in windows]
        try:
            return await self._open_file(file, windows, shape)
        except Corrupt:
            self._footers.drop(file.path)
            return await self._open_file(file, windows, shape)

    async def _open_file(self, file: TableFile, windows: Sequence[Window], shape: BatchShape) -> list[list[Run]]:
        footer = self._footers.get(file.path)
        groups = [window.group for window in windows if window.group is not None]
        assert len(groups) == len(windows), f"a window of {file.path} names no row group"
        ranges = [ByteRange(start_byte=group.start_byte, size_bytes=group.size_bytes) for group in groups]
        if footer is None:
            footer_start = file.size_bytes - file.footer_bytes
            ranges.append(ByteRange(start_byte=footer_start, size_bytes=file.footer_bytes))
        buffers = await self._objects.get_ranges(object_key(file.path), ranges)
        if footer is None:
            footer = await self._executor.run(partial(_parsed, file, buffers.pop()))
            self._footers.put(file.path, footer, footer.size_bytes)
        buffers.reverse()
        loaded: list[list[Run]] = []
        for window, group in zip(windows, groups, strict=True):
            # One by one: work of others gets its turn on the threads in between. What was opened is let go of.
            work = partial(_rebuilt, file, group, footer, buffers.pop(), window, shape)
            loaded.append(await self._executor.run(work))
        return loaded


def _damage(window: Window, why: str) -> Damage:
    """Return a window that cannot be read. Where the footer is wrong, the reason says so."""
    return Damage(
        object_key="" if window.file is None else window.file.path,
        start_byte=0 if window.group is None else window.group.start_byte,
        size_bytes=window.size_bytes,
        start_offset=window.start_offset,
        end_offset=window.end_offset,
        why=why,
    )


def _key(window: Window, shape: BatchShape) -> GroupKey:
    path = "" if window.file is None else window.file.path
    number = -1 if window.group is None else window.group.number
    return GroupKey(path, number, window.start_offset, window.end_offset, shape)


def _parsed(file: TableFile, data: Buffer) -> "Footer":
    # Imported late: pyarrow takes a tenth of a second to load, and a broker is to be ready before anybody needs it.
    from headrace.tables.parquet_reading import parse_footer

    return parse_footer(file, data)


def _rebuilt(
    file: TableFile, group: RowGroup, footer: "Footer", data: Buffer, window: Window, shape: BatchShape
) -> list[Run]:
    from headrace.tables.parquet_reading import read_row_group

    start_offset, end_offset = window.start_offset, window.end_offset
    columns = read_row_group(file, group, footer, data, start_offset=start_offset, end_offset=end_offset)
    try:
        return rebuild(columns, start_offset, end_offset, shape)
    except InvalidBatch as error:
        raise Corrupt(f"row group {group.number} of {file.path} holds no records of a log: {error}") from error
