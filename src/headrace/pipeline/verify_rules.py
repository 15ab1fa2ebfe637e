"""Rules of a proof that need no I/O: what the index must cover, and what the branch must name."""

from collections.abc import Collection, Mapping, Sequence

from headrace.index.values import IndexEntry
from headrace.model.extents import TableExtent, TableFile
from headrace.pipeline.offset_runs import OffsetRuns, shown
from headrace.pipeline.verify_look import StreamLook, TopicLook
from headrace.pipeline.verify_report import Kind, VerifyReport
from headrace.tables.port import LOG_BRANCH
from headrace.tables.scanning import NamedFile


def check_entries(stream: StreamLook, report: VerifyReport) -> None:
    """Check that a stream's entries cover log start to high watermark, each offset once."""
    next_offset = stream.head.log_start
    for number, entry in enumerate(stream.entries):
        report.tally.entries += 1
        report.tally.table_entries += isinstance(entry.extent, TableExtent)
        if entry.start_offset > next_offset:
            report.damage(
                Kind.GAP,
                f"{where(stream)}: no entry covers the offsets {next_offset}–{entry.start_offset - 1}",
                count=entry.start_offset - next_offset,
            )
        elif number and entry.start_offset < next_offset:
            report.damage(
                Kind.OVERLAP, f"{where(stream)}: {offsets_of(entry)} are covered twice from {next_offset} on"
            )
        next_offset = max(next_offset, entry.end_offset)
    if next_offset < stream.head.high_watermark:
        report.damage(
            Kind.GAP,
            f"{where(stream)}: no entry covers the offsets {next_offset}–{stream.head.high_watermark - 1}",
            count=stream.head.high_watermark - next_offset,
        )


def check_files(
    indexed: Mapping[str, TableFile],
    named: Sequence[NamedFile],
    report: VerifyReport,
    *,
    leaving: Collection[str] = (),
) -> None:
    """Check that the branch names each file once, and all that the index names, as the index has them.

    `leaving` are files that a rewrite under way has replaced: the index may still name them.
    """
    by_key: dict[str, NamedFile] = {}
    for file in named:
        if file.key in by_key:
            report.damage(Kind.FILE_TWICE, f"{LOG_BRANCH} names the file {file.key} twice")
        if file.has_deletes:
            report.damage(Kind.FILE_DIFFERS, f"rows of {file.key} were deleted on {LOG_BRANCH}: nobody may")
        by_key[file.key] = file
    for path, indexed_file in indexed.items():
        found = by_key.get(path)
        if found is None and path in leaving:
            continue
        if found is None:
            report.damage(Kind.FILE_NOT_IN_TABLE, f"the index names {path}, and {LOG_BRANCH} does not")
        elif found.size_bytes != indexed_file.size_bytes:
            report.damage(
                Kind.FILE_DIFFERS,
                f"{path} has {indexed_file.size_bytes} bytes for the index and {found.size_bytes} for the table",
            )


def indexed_files(look: TopicLook) -> dict[str, TableFile]:
    """Return the table files that the index names, by path."""
    return {
        file.path: file
        for stream in look.streams
        for entry in stream.entries
        if isinstance(entry.extent, TableExtent)
        for file in entry.extent.files
    }


def damage_if(report: VerifyReport, kind: Kind, what: str, offsets: OffsetRuns) -> None:
    """Call offsets damaged, if there are any."""
    if count := offsets.count():
        report.damage(kind, f"{what}: {count} offsets: {shown(offsets.runs())}", count=count)


def where(stream: StreamLook) -> str:
    """Return a stream as people know it."""
    return f"partition {stream.partition}"


def offsets_of(entry: IndexEntry) -> str:
    """Return an entry's offsets as people read them, both ends inclusive."""
    return f"offsets {entry.start_offset}–{entry.end_offset - 1}"


def vector(ends: Mapping[int, int]) -> str:
    """Return a vector as people read it."""
    return ", ".join(f"{partition}:{end}" for partition, end in sorted(ends.items())) or "nothing"
