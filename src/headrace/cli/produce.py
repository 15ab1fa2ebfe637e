"""`headrace produce`: what comes in on stdin goes into a topic, with kcat's habits.

Must stay true: every message that was read is either counted as acknowledged or reported as failed, also when the
input ends in the middle, when a later line is wrong, and when somebody presses Ctrl-C.
"""

import enum
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.completion import complete_topic
from headrace.cli.exits import FAILED, code_of
from headrace.cli.formats import parse_line, raw_bytes, split, unescape
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
from headrace.cli.printing import complain, print_json, progress
from headrace.cli.records import MAX_PARTITION, Header, Outgoing, from_json
from headrace.errors import HeadraceError, Invalid

if TYPE_CHECKING:
    from headrace.cli.client.sender import RecordSender

READ_BYTES = 1 << 16
MAX_FAILURES_TOLD = 10


class Compression(enum.StrEnum):
    """The codecs of Kafka."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class Acks(enum.StrEnum):
    """Who confirms a message before it counts: nobody, the leader, or all replicas."""

    ALL = "all"
    LEADER = "1"
    NOBODY = "0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """How input becomes records. `headers` and `partition` are for records that name none."""

    delimiter: bytes
    key_separator: bytes | None
    empty_is_null: bool
    is_json: bool
    headers: tuple[Header, ...]
    partition: int | None

    def records(self, chunks: Iterable[bytes]) -> Iterator[Outgoing]:
        """Cut a stream into records. Raises `Invalid` with the number of a message that is none."""
        for number, piece in enumerate(split(chunks, self.delimiter), start=1):
            yield self._completed(self._record(piece, number))

    def whole(self, value: bytes) -> Outgoing:
        """Make one record of all of a file."""
        return self._completed(Outgoing(value=None if self.empty_is_null and not value else value))

    def _record(self, piece: bytes, number: int) -> Outgoing:
        if not self.is_json:
            return parse_line(piece, key_separator=self.key_separator, empty_is_null=self.empty_is_null)
        try:
            return from_json(piece)
        except Invalid as error:
            raise Invalid(f"message {number}: {error}") from error

    def _completed(self, record: Outgoing) -> Outgoing:
        if not self.headers and self.partition is None:
            return record
        return replace(
            record,
            headers=record.headers or self.headers,
            partition=self.partition if record.partition is None else record.partition,
        )


def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", autocompletion=complete_topic)],
    file: Annotated[
        list[Path] | None,
        typer.Option(metavar="PATH", help="Send a whole file as one message, not stdin; may be given often."),
    ] = None,
    key_separator: Annotated[
        str | None, typer.Option("-K", "--key-separator", metavar="TEXT", help="What parts a key from its value.")
    ] = None,
    delimiter: Annotated[
        str, typer.Option("-D", "--delimiter", metavar="TEXT", help="What ends a message.", show_default=True)
    ] = "\\n",
    partition: Annotated[
        int | None, typer.Option("-p", "--partition", metavar="N", min=0, max=MAX_PARTITION, help="Where to send to.")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option("-H", "--header", metavar="NAME=VALUE", help="A header; may be given often.")
    ] = None,
    compression: Annotated[
        Compression, typer.Option("-z", "--compression", help="How to compress.")
    ] = Compression.NONE,
    empty_is_null: Annotated[bool, typer.Option("-Z", "--empty-is-null", help="Send what is empty as null.")] = False,
    json_input: Annotated[bool, typer.Option("--json", help="Each message is a JSON object.")] = False,
    acks: Annotated[Acks, typer.Option("--acks", help="Who must have a message before it counts.")] = Acks.ALL,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    properties: Properties = None,
    output: OutputAs = Output.TEXT,
) -> None:
    """Produce messages: each line of stdin is one."""
    if json_input and (key_separator is not None or file):
        raise Invalid('--json goes with neither --key-separator nor --file: "key" names the key')
    taken = Input(
        delimiter=_not_empty(delimiter, "--delimiter"),
        key_separator=None if key_separator is None else _not_empty(key_separator, "--key-separator"),
        empty_is_null=empty_is_null,
        is_json=json_input,
        headers=tuple(_header(text) for text in header or ()),
        partition=partition,
    )
    records = _from_files(taken, file) if file else taken.records(_stdin())
    reached = connection(bootstrap, timeout, properties)

    from headrace.cli.client.sender import RecordSender  # Late: see the package.

    sender = RecordSender(reached, topic, {"acks": acks.value, "compression.type": compression.value})
    sender.open()
    if not file and sys.stdin.isatty():
        complain("one message per line; Ctrl-D ends")
    ended = _send(sender, records)
    _report(sender, topic, acks, output)
    if isinstance(ended, HeadraceError):
        complain(str(ended))
    if ended is not None or sender.failed:
        raise typer.Exit(FAILED if ended is None else code_of(ended))


def _send(sender: "RecordSender", records: Iterable[Outgoing]) -> HeadraceError | KeyboardInterrupt | None:
    """Send all records, wait for the outcome of each, and return what cut it short."""
    ended: HeadraceError | KeyboardInterrupt | None = None
    with progress("messages acknowledged", wanted=not sys.stdin.isatty()) as show:
        try:
            for record in records:
                sender.send(record)
                show(sender.acknowledged)
        except (HeadraceError, KeyboardInterrupt) as error:
            # After a wrong line and after Ctrl-C as well, what was sent before it shall arrive.
            ended = error
        try:
            while not sender.flush():
                show(sender.acknowledged)
        except (HeadraceError, KeyboardInterrupt) as error:
            sender.abandon()
            ended = ended or error
    return ended


def _report(sender: "RecordSender", topic: str, acks: Acks, output: Output) -> None:
    """Say what became of the messages: JSON on stdout, or sentences on stderr."""
    failures = sorted(sender.failures.items())
    if output is Output.JSON:
        print_json(
            {
                "topic": topic,
                "acknowledged": sender.acknowledged,
                "failed": sender.failed,
                "failures": [{"message": number, "reason": reason} for number, reason in failures],
            }
        )
        return
    for number, reason in failures[:MAX_FAILURES_TOLD]:
        complain(f"message {number} failed: {reason}")
    if sender.failed > MAX_FAILURES_TOLD:
        complain(f"and {sender.failed - MAX_FAILURES_TOLD} more failed")
    done = "sent (acks=0: nobody confirmed them)" if acks is Acks.NOBODY else "acknowledged"
    refused = f", {sender.failed} failed" if sender.failed else ""
    complain(f"{sender.acknowledged} message{'' if sender.acknowledged == 1 else 's'} {done} in {topic}{refused}")


def _stdin() -> Iterator[bytes]:
    """Yield bytes as they come: a line that somebody types is sent when it is typed."""
    return iter(lambda: os.read(sys.stdin.fileno(), READ_BYTES), b"")


def _from_files(taken: Input, paths: Sequence[Path]) -> Iterator[Outgoing]:
    """Yield a record per file. All are looked at first, so that a slip of the pen sends nothing."""
    for path in paths:
        if path.is_dir() or not os.access(path, os.R_OK):
            raise Invalid(f"--file: {path} is no file that can be read")
    return (taken.whole(path.read_bytes()) for path in paths)


def _header(text: str) -> Header:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise Invalid(f"--header takes NAME=VALUE, not {text!r}")
    return name, raw_bytes(value)


def _not_empty(text: str, option: str) -> bytes:
    if not text:
        raise Invalid(f"{option} is empty")
    return unescape(text)
