"""`headrace consume`: what a topic holds goes to stdout, with kcat's habits and without a consumer group.

Must stay true: what is printed for a partition is contiguous from its start; with `--exit-at-end` it reaches to where
the partition ended when the command began, and no further.
"""

import enum
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.completion import complete_topic
from headrace.cli.formats import Formatter, compile_format, plain_format, unescape
from headrace.cli.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_SECONDS,
    Bootstrap,
    Output,
    OutputAs,
    Properties,
    Timeout,
    connection,
)
from headrace.cli.printing import progress, raise_if_unread
from headrace.cli.records import MAX_PARTITION, Incoming, to_json
from headrace.errors import Invalid, Missing

if TYPE_CHECKING:
    from headrace.cli.client.reader import RecordReader

POLL_SECONDS = 0.2
MAX_OFFSET_DIGITS = 18


class StartKind(enum.Enum):
    """The ways to say where to start."""

    BEGINNING = "beginning"
    END = "end"
    OFFSET = "offset"
    LAST = "last"
    TIMESTAMP = "timestamp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where to start. `number` is the offset, how many from the end, or a timestamp in milliseconds."""

    kind: StartKind
    number: int = 0

    def offset(self, start_offset: int, end_offset: int, by_time: int | None) -> int | None:
        """Return the first offset to read in a partition; None where it lies outside of what the partition holds.

        `by_time` is what a look-up by timestamp has found, None where nothing is that young.
        """
        if self.kind is StartKind.BEGINNING:
            return start_offset
        if self.kind is StartKind.LAST:
            return max(start_offset, end_offset - self.number)
        if self.kind is StartKind.OFFSET:
            return self.number if start_offset <= self.number <= end_offset else None
        return end_offset if by_time is None else by_time


def parse_start(text: str) -> Start:
    """Read what `--offset` takes. Raises `Invalid`."""
    names = {"beginning": StartKind.BEGINNING, "earliest": StartKind.BEGINNING}
    names |= {"end": StartKind.END, "latest": StartKind.END}
    if text in names:
        return Start(kind=names[text])
    kind = {"-": StartKind.LAST, "@": StartKind.TIMESTAMP}.get(text[:1], StartKind.OFFSET)
    digits = text[1:] if kind is not StartKind.OFFSET else text
    if not (digits.isascii() and digits.isdigit() and len(digits) <= MAX_OFFSET_DIGITS):
        raise Invalid(
            f"--offset is {text!r}; it takes beginning, end, an offset, -N for the last N, "
            "or @ and milliseconds since 1970"
        )
    return Start(kind=kind, number=int(digits))


class Reading:
    """Decides which records are printed, and when there is nothing more to read.

    `ends` holds where each partition ends the reading, and is None where it goes on for ever.
    """

    def __init__(self, offsets: Mapping[int, int], *, ends: Mapping[int, int] | None, count: int | None) -> None:
        self._ends = ends
        self._left = count
        self._open = {partition for partition, offset in offsets.items() if ends is None or offset < ends[partition]}

    @property
    def partitions(self) -> Collection[int]:
        """The partitions that are still read."""
        return self._open

    @property
    def is_over(self) -> bool:
        return not self._open or self._left == 0

    def take(self, record: Incoming) -> bool:
        """Return whether to print a record."""
        if self.is_over or record.partition not in self._open:
            return False
        if self._ends is not None and record.offset + 1 >= self._ends[record.partition]:
            self._open.discard(record.partition)
            # Offsets may have holes: the first record behind the end also tells that it was reached.
            if record.offset >= self._ends[record.partition]:
                return False
        if self._left is not None:
            self._left -= 1
        return True

    def reach_end(self, partition: int) -> None:
        """Take note that a partition has nothing more for now."""
        if self._ends is not None:
            self._open.discard(partition)


def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", autocompletion=complete_topic)],
    offset: Annotated[
        str,
        typer.Option(
            "-o",
            "--offset",
            metavar="WHERE",
            help="Where to start: beginning, end, an offset, -N (the last N of each partition) or @MILLISECONDS.",
        ),
    ] = "beginning",
    partition: Annotated[
        list[int] | None,
        typer.Option(
            "-p", "--partition", metavar="N", min=0, max=MAX_PARTITION, help="Read only this one; may be given often."
        ),
    ] = None,
    count: Annotated[int | None, typer.Option("-c", "--count", metavar="N", min=1, help="Stop after N.")] = None,
    exit_at_end: Annotated[bool, typer.Option("-e", "--exit-at-end", help="Stop at the end; else follow.")] = False,
    key_separator: Annotated[
        str | None, typer.Option("-K", "--key-separator", metavar="TEXT", help="Print the key, this, and the value.")
    ] = None,
    delimiter: Annotated[
        str, typer.Option("-D", "--delimiter", metavar="TEXT", help="What to print behind a message.")
    ] = "\\n",
    format_: Annotated[
        str | None,
        typer.Option("-f", "--format", metavar="FORMAT", help="kcat's: %t %p %o %k %K %s %S %R %h %T %% and \\n."),
    ] = None,
    show_null: Annotated[bool, typer.Option("-Z", "--show-null", help="Print NULL for null.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="The same as --output json.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    properties: Properties = None,
    output: OutputAs = Output.TEXT,
) -> None:
    """Print the messages of a topic, and follow it."""
    start = parse_start(offset)
    as_json = json_output or output is Output.JSON
    if as_json and (format_ is not None or key_separator is not None):
        raise Invalid("JSON goes with neither --format nor --key-separator")
    if format_ is not None and key_separator is not None:
        raise Invalid("either --format or --key-separator: %k in a format prints the key")
    write = _formatter(
        as_json, format_, key_separator=key_separator, delimiter=unescape(delimiter), show_null=show_null
    )
    reached = connection(bootstrap, timeout, properties)

    from headrace.cli.client.reader import RecordReader  # Late: see the package.

    reader = RecordReader(reached, topic, tell_ends=exit_at_end)
    try:
        partitions = _chosen(reader.open(), partition, topic)
        bounds = {number: reader.bounds(number) for number in partitions}
        offsets = _start_offsets(reader, start, bounds, topic)
        ends = {number: end for number, (_, end) in bounds.items()} if exit_at_end else None
        reading = Reading(offsets, ends=ends, count=count)
        reader.start({number: offsets[number] for number in reading.partitions})
        _read(reader, reading, write)
    finally:
        reader.close()


def _formatter(
    as_json: bool, format_: str | None, *, key_separator: str | None, delimiter: bytes, show_null: bool
) -> Formatter:
    if as_json:
        return lambda record: to_json(record) + b"\n"
    if format_ is not None:
        return compile_format(format_, show_null=show_null)
    separator = None if key_separator is None else unescape(key_separator)
    return plain_format(key_separator=separator, delimiter=delimiter, show_null=show_null)


def _chosen(existing: Sequence[int], wanted: Sequence[int] | None, topic: str) -> list[int]:
    """Return the partitions to read. Raises `Missing` if one is not there."""
    if not wanted:
        return list(existing)
    for number in wanted:
        if number not in existing:
            raise Missing(
                f"topic {topic} has no partition {number}: its partitions are {existing[0]} to {existing[-1]}"
            )
    return sorted(set(wanted))


def _start_offsets(
    reader: "RecordReader", start: Start, bounds: Mapping[int, tuple[int, int]], topic: str
) -> dict[int, int]:
    found: Mapping[int, int | None] = {}
    if start.kind is StartKind.TIMESTAMP:
        found = reader.offsets_at(start.number, list(bounds))
    offsets = {}
    for number, (start_offset, end_offset) in bounds.items():
        offset = start.offset(start_offset, end_offset, found.get(number))
        if offset is None:
            raise Missing(
                f"{topic} [{number}] holds offsets {start_offset} to {end_offset} (exclusive), not {start.number}: "
                "try --offset beginning or end, or choose with --partition"
            )
        offsets[number] = offset
    return offsets


def _read(reader: "RecordReader", reading: Reading, write: Formatter) -> None:
    """Print what is read until there is nothing more to read."""
    printed = 0
    out = sys.stdout.buffer
    with progress("messages read", wanted=not sys.stdout.isatty()) as show:
        while not reading.is_over:
            before = set(reading.partitions)
            for event in reader.read(POLL_SECONDS):
                if not isinstance(event, Incoming):
                    reading.reach_end(event.partition)
                elif reading.take(event):
                    out.write(write(event))
                    printed += 1
            out.flush()
            raise_if_unread()
            show(printed)
            for partition in before - set(reading.partitions):
                reader.stop(partition)
