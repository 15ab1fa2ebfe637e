"""Read what the index names of a topic's table: what rewrites and releases are planned from.

Only entries below the table's vector are read, page by page; of large files no more is kept than that they are there.
Whoever holds the topic's lease while no saga is under way finds the index as it stays, but for trimming: a file that
it does not name now is never named again.
"""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.index.values import INDEX_ENTRY, IndexEntry, StreamHead
from headrace.metadata.keys import DomainKeys
from headrace.metadata.port import MAX_RANGE_LIMIT, MetadataStore
from headrace.model.extents import TableExtent, TableFile
from headrace.model.ids import StreamId
from headrace.pipeline.backlog import read_heads
from headrace.pipeline.rewrites import TablePiece

ENTRIES_PER_READ = 500
assert ENTRIES_PER_READ <= MAX_RANGE_LIMIT

MAX_PIECES = 20_000
"""How many entries of small files one look keeps; files of which not all were kept are left for a later one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedEntry:
    """An index entry as a planner of rewrites sees it.

    `paths` are the files it names. `piece` is what could be rewritten: `None` for a WAL entry, for one of a large
    file, and for one whose rows are not exactly those of its row groups.
    """

    start_offset: int
    end_offset: int
    append_time_ms: int
    is_wal: bool
    paths: tuple[str, ...]
    piece: TablePiece | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedStream:
    """The entries of one stream below the table's vector, in order. `is_trimmed`: none lies below the log start.
    `is_empty`: the log has forgotten all of it."""

    partition: int
    stream: StreamId
    log_start: int
    entries: Sequence[NamedEntry]
    is_trimmed: bool
    is_empty: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedFiles:
    """What the index names of one topic. `is_whole` is false where pieces were left out for their number."""

    streams: Sequence[NamedStream]
    is_whole: bool = True
    paths: frozenset[str] = field(default_factory=frozenset)


class IndexNames:
    """Tells which files the index of a domain names."""

    def __init__(self, store: MetadataStore, keys: DomainKeys) -> None:
        self._store = store
        self._keys = keys

    async def among(self, paths: Collection[str], streams: Sequence[StreamId], ends: Mapping[int, int]) -> set[str]:
        """Return those of the paths that an entry of one of a topic's streams names."""
        found: set[str] = set()
        for partition, stream in enumerate(streams):
            async for entry in _entries(self._store, self._keys, stream, ends.get(partition, 0)):
                if isinstance(entry.extent, TableExtent):
                    found.update(file.path for file in entry.extent.files if file.path in paths)
        return found


async def read_named(
    store: MetadataStore,
    keys: DomainKeys,
    streams: Sequence[StreamId],
    ends: Mapping[int, int],
    *,
    small_bytes: int,
    max_pieces: int = MAX_PIECES,
) -> NamedFiles:
    """Return what the index names below a vector; files of `small_bytes` and more are large."""
    heads = await read_heads(store, keys, [stream for number, stream in enumerate(streams) if number in ends])
    named: list[NamedStream] = []
    paths: set[str] = set()
    pieces = 0
    for partition, stream in enumerate(streams):
        head = heads.get(stream)
        if head is None:
            continue
        entries: list[NamedEntry] = []
        async for entry in _entries(store, keys, stream, ends[partition]):
            # What lies below the log start is about to be trimmed, and its file to be released.
            is_wanted = pieces < max_pieces and entry.end_offset > head.log_start
            kept = named_entry(entry, small_bytes=small_bytes if is_wanted else 0)
            pieces += kept.piece is not None
            paths.update(kept.paths)
            entries.append(kept)
        named.append(_named_stream(partition, stream, head, entries))
    return NamedFiles(streams=named, is_whole=pieces < max_pieces, paths=frozenset(paths))


def named_entry(entry: IndexEntry, *, small_bytes: int) -> NamedEntry:
    """Return an entry without what nobody needs of it."""
    extent = entry.extent
    files = extent.files if isinstance(extent, TableExtent) else ()
    piece: TablePiece | None = None
    if isinstance(extent, TableExtent) and not files:
        piece = TablePiece(entry.start_offset, entry.end_offset, None)
    # A group that begins before its entry holds rows that were trimmed: the file is not rewritten any more.
    elif len(files) == 1 and files[0].size_bytes < small_bytes and _begins_at(files[0], entry.start_offset):
        piece = TablePiece(entry.start_offset, entry.end_offset, files[0])
    return NamedEntry(
        start_offset=entry.start_offset,
        end_offset=entry.end_offset,
        append_time_ms=entry.append_time_ms,
        is_wal=not isinstance(extent, TableExtent),
        paths=tuple(file.path for file in files),
        piece=piece,
    )


def _begins_at(file: TableFile, offset: int) -> bool:
    return bool(file.row_groups) and file.row_groups[0].first_offset == offset


def _named_stream(partition: int, stream: StreamId, head: StreamHead, entries: Sequence[NamedEntry]) -> NamedStream:
    return NamedStream(
        partition=partition,
        stream=stream,
        log_start=head.log_start,
        entries=entries,
        is_trimmed=not entries or entries[0].end_offset > head.log_start,
        is_empty=head.log_start == head.high_watermark,
    )


async def _entries(
    store: MetadataStore, keys: DomainKeys, stream: StreamId, end_offset: int
) -> AsyncIterator[IndexEntry]:
    after = 0
    while True:
        page = keys.entries(stream, after_offset=after, until_offset=end_offset, limit=ENTRIES_PER_READ)
        found = await store.range(page)
        for item in found:
            entry = INDEX_ENTRY.decode(item.value, item.key)
            after = entry.end_offset
            yield entry
        if len(found) < ENTRIES_PER_READ:
            return
