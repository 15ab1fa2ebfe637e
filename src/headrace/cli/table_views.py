"""How `headrace table` shows what it found: plain data for programs, the same in words and columns for people."""

import dataclasses
import datetime
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from headrace.cli.cells import cell
from headrace.cli.printing import print_line, print_table
from headrace.tables.port import LOG_BRANCH
from headrace.tables.scanning import MAIN_REF

if TYPE_CHECKING:
    from headrace.broker.table_desk import Condemned, TopicTableView
    from headrace.pipeline.verify_report import VerifyReport

MAX_SHOWN_CHARS = 120
"""How much of a key or a value a sample shows; `--output json` shows all of it."""
ROW_COLUMNS = ("partition", "offset", "timestamp", "key", "value", "headers")
LETTER_COLUMNS = ("partition", "offset", "append_time", "reason", "key", "value")
NONE = "-"

_SIZES = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_AGES = ((86_400, "d"), (3600, "h"), (60, "min"))


def summary_as_data(view: "TopicTableView") -> dict[str, object]:
    """Return a line of the list as JSON can hold it."""
    main = None if view.description is None else view.description.ref(MAIN_REF)
    state = view.state
    return {
        "topic": view.topic.name,
        "table": _identifier(view),
        "status": view.status,
        "problem": view.problem,
        "lag_records": view.lag.records,
        "lag_seconds": round(view.lag.age_ms / 1000, 3),
        "rows": main.row_count if main is not None else None if state is None else state.rows,
        "files": main.file_count if main is not None else None if state is None else state.files,
        "snapshots": None if view.description is None else view.description.snapshot_count,
        "committed_at": _time(main.committed_at_ms if main is not None else None),
    }


def print_list(views: Sequence["TopicTableView"]) -> None:
    """Print a line per topic."""
    if not views:
        print("there are no topics")
        return
    columns = ("topic", "table", "status", "lag", "age", "rows", "files", "snapshots", "last commit")
    rows = []
    for view in views:
        data = summary_as_data(view)
        rows.append(
            (
                data["topic"],
                _or_none(data["table"]),
                data["status"],
                data["lag_records"],
                _age(view.lag.age_ms),
                *(_or_none(data[name]) for name in ("rows", "files", "snapshots", "committed_at")),
            )
        )
    print_table(columns, rows)
    for view in views:
        if view.problem:
            print_line(f"{view.topic.name}: {view.problem}")


def details_as_data(view: "TopicTableView", condemned: "Condemned") -> dict[str, object]:
    """Return everything that is known of one table as JSON can hold it."""
    described, state, saga = view.description, view.state, view.saga
    schema = view.rules.schema
    return {
        **summary_as_data(view),
        "topic_id": view.topic.id.hex(),
        "location": described.location if described is not None else None if state is None else state.location,
        "uuid": None if described is None else described.uuid,
        "metadata": None if described is None else described.metadata_location,
        "partition_by": [] if described is None else list(described.partition_spec),
        "schema": None if schema is None else {"type": str(schema.type), "version": schema.version},
        "columns": [] if described is None else [dataclasses.asdict(column) for column in described.columns],
        "refs": [] if described is None else [_ref_as_data(ref) for ref in described.refs],
        "vector": {str(partition): end for partition, end in sorted(view.vector.items())},
        "waiting_bytes": view.lag.size_bytes,
        "held_back_batches": 0 if state is None else state.held_back_batches,
        "dead_letters": 0 if state is None else state.dead_letters,
        "runs": 0 if state is None else state.runs,
        "failures": 0 if state is None else state.failures,
        "condemned": {"files": condemned.files, "since": _time(condemned.since_ms)},
        "under_way": None
        if saga is None
        else {
            "saga": saga.saga_id,
            "state": saga.state.name.lower(),
            "planned_at": _time(saga.planned_at_ms),
            "bytes": saga.planned_bytes,
            "files": len(saga.files),
            "ends": {str(partition): end for partition, end in sorted(saga.ends.items())},
        },
    }


def _ref_as_data(ref: object) -> dict[str, object]:
    data = dataclasses.asdict(ref)  # type: ignore[call-overload]
    committed_at_ms = data.pop("committed_at_ms")
    # A snapshot id has 63 bits, and JSON's readers in JavaScript keep 53 of them.
    return {**data, "snapshot_id": str(data["snapshot_id"]), "committed_at": _time(committed_at_ms)}


def print_details(details: Mapping[str, object]) -> None:
    """Print what `details_as_data` returns."""
    plain_names = (
        *("topic", "topic_id", "table", "status", "problem", "location", "metadata", "partition_by", "schema"),
        *("lag_records", "lag_seconds", "waiting_bytes", "rows", "files", "snapshots", "committed_at"),
        *("vector", "held_back_batches", "dead_letters", "runs", "failures", "condemned", "under_way"),
    )
    print_table(
        ("what", "value"),
        [(name.replace("_", " "), _or_none(cell(details[name]))) for name in plain_names if details[name] != ""],
    )
    for name in ("columns", "refs"):
        items = details[name]
        assert isinstance(items, list), "columns and refs are lists"
        if items:
            print()
            print_table(
                [str(column).replace("_", " ") for column in items[0]],
                [[_or_none(cell(value)) for value in item.values()] for item in items],
            )


def print_rows(rows: Sequence[Mapping[str, object]]) -> None:
    """Print rows of a table, keys and values cut to what a screen takes."""
    if not rows:
        print("the table has no rows")
        return
    print_table(ROW_COLUMNS, [[_short(cell(row.get(name))) for name in ROW_COLUMNS] for row in rows])


def print_letters(letters: Sequence[Mapping[str, object]]) -> None:
    """Print dead letters, keys and values cut to what a screen takes."""
    if not letters:
        print("there are no dead letters")
        return
    print_table(LETTER_COLUMNS, [[_short(cell(letter.get(name))) for name in LETTER_COLUMNS] for letter in letters])


def report_as_data(report: "VerifyReport") -> dict[str, object]:
    """Return a proof as JSON can hold it."""
    return {
        "topic": report.topic,
        "table": report.table,
        "clean": report.is_clean,
        "looked_at": dataclasses.asdict(report.tally),
        "counts": {str(kind): count for kind, count in report.counts.items()},
        "findings": [dataclasses.asdict(finding) for finding in report.findings],
    }


def print_report(report: "VerifyReport") -> None:
    """Print a proof: what is wrong first, then what is worth knowing, then what was looked at."""
    ranks = {"damage": 0, "warning": 1, "note": 2}
    for finding in sorted(report.findings, key=lambda finding: ranks[finding.severity]):
        print_line(f"{finding.severity}: {finding.kind}: {finding.message}")
    spelled_out = len(report.findings)
    told = sum(report.worst.values())
    if told > spelled_out:
        print_line(f"and {told - spelled_out} more findings of the same kinds")
    tally = report.tally
    print_line(
        f"{report.topic}: {tally.entries} index entries ({tally.table_entries} in the table), {tally.files} files, "
        f"{tally.row_groups} row groups, {_size(tally.read_bytes)} checked; records in the log below the table's end "
        f"{tally.log_rows}, rows on {LOG_BRANCH} {tally.branch_rows}, on main {tally.main_rows}"
        f"{f', {tally.compared_records} compared with the WAL' if tally.compared_records else ''}"
        f"{f', {tally.held_back_batches} batches held back' if tally.held_back_batches else ''}"
    )
    if report.table is None:
        print_line(f"{report.topic} has no table yet" if report.is_clean else f"{report.topic} is DAMAGED")
    else:
        print_line(f"{report.topic} is {'clean' if report.is_clean else 'DAMAGED'}")


def _identifier(view: "TopicTableView") -> str | None:
    if view.description is not None:
        return ".".join(view.description.identifier)
    return ".".join(view.state.identifier) or None if view.state is not None else None


def _time(time_ms: int | None) -> str | None:
    if not time_ms:
        return None
    return datetime.datetime.fromtimestamp(time_ms / 1000, datetime.UTC).isoformat(timespec="seconds")


def _age(age_ms: int) -> str:
    """Return a duration as people say it, with two figures at least."""
    seconds = age_ms / 1000
    for size, unit in _AGES:
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.1f} s" if seconds else "0 s"


def _size(size_bytes: int) -> str:
    for size, unit in _SIZES:
        if size_bytes >= size:
            return f"{size_bytes / size:.1f} {unit}"
    return f"{size_bytes} bytes"


def _short(text: str) -> str:
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}… ({len(text)} characters)"


def _or_none(value: object) -> object:
    return NONE if value is None or value == "" else value
