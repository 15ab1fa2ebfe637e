"""Where a reading starts and ends, and the command on a mock cluster."""

import json
import os
import signal
import subprocess
import sys

import pytest

from headrace.cli.consume import Reading, Start, StartKind, parse_start
from headrace.cli.main import run
from headrace.cli.records import Incoming
from headrace.errors import Invalid

PROGRAM = "from headrace.cli.main import main; main()"
# A shell that runs tests in the background tells its children to ignore interrupts.
HEED_INTERRUPTS = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
LIMIT_SECONDS = 120


def _record(partition: int, offset: int) -> Incoming:
    return Incoming(topic="t", partition=partition, offset=offset, value=b"")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("beginning", Start(kind=StartKind.BEGINNING)),
        ("earliest", Start(kind=StartKind.BEGINNING)),
        ("end", Start(kind=StartKind.END)),
        ("latest", Start(kind=StartKind.END)),
        ("0", Start(kind=StartKind.OFFSET, number=0)),
        ("42", Start(kind=StartKind.OFFSET, number=42)),
        ("-5", Start(kind=StartKind.LAST, number=5)),
        ("@1700000000000", Start(kind=StartKind.TIMESTAMP, number=1_700_000_000_000)),
    ],
)
def test_every_way_to_say_where_to_start(text: str, expected: Start) -> None:
    assert parse_start(text) == expected


@pytest.mark.parametrize("text", ["", "-", "@", "stored", "1.5", "--5", "@-1", "٣", "9" * 19])
def test_other_words_are_refused(text: str) -> None:
    with pytest.raises(Invalid, match="--offset is"):
        parse_start(text)


@pytest.mark.parametrize(
    ("text", "by_time", "expected"),
    [
        ("beginning", None, 10),
        ("end", None, 20),
        ("10", None, 10),
        ("20", None, 20),
        ("9", None, None),
        ("21", None, None),
        ("-3", None, 17),
        ("-30", None, 10),
        ("@5", 12, 12),
        ("@5", None, 20),
    ],
)
def test_the_start_in_a_partition_that_holds_ten_to_twenty(
    text: str, by_time: int | None, expected: int | None
) -> None:
    assert parse_start(text).offset(10, 20, by_time) == expected


def test_a_reading_without_an_end_goes_on() -> None:
    reading = Reading({0: 0}, ends=None, count=None)
    assert reading.take(_record(0, 0))
    reading.reach_end(0)
    assert not reading.is_over and reading.take(_record(0, 1))


def test_a_reading_ends_where_each_partition_ended() -> None:
    reading = Reading({0: 0, 1: 5, 2: 3}, ends={0: 2, 1: 5, 2: 4}, count=None)
    assert set(reading.partitions) == {0, 2}
    assert reading.take(_record(0, 0)) and reading.take(_record(0, 1))
    assert not reading.take(_record(0, 2))
    assert not reading.is_over
    assert reading.take(_record(2, 3))
    assert reading.is_over


def test_a_hole_at_the_end_does_not_keep_a_reading_open() -> None:
    reading = Reading({0: 0, 1: 0}, ends={0: 5, 1: 5}, count=None)
    assert reading.take(_record(0, 2))
    assert not reading.take(_record(0, 7))
    reading.reach_end(1)
    assert reading.is_over


def test_a_reading_ends_after_its_count() -> None:
    reading = Reading({0: 0}, ends=None, count=2)
    steps = [(reading.take(_record(0, offset)), reading.is_over) for offset in range(3)]
    assert steps == [(True, False), (True, True), (False, True)]


@pytest.fixture
def produced(mock_cluster: str, request: pytest.FixtureRequest) -> list[str]:
    """Produce four messages to partitions 0 and 1 of a topic; return that topic and how to reach it."""
    topic = f"consume-{request.node.name}".replace("[", "-").replace("]", "")[:200]
    lines = "".join(
        json.dumps({"value": f"v{number}", "key": f"k{number}", "partition": number % 2}) + "\n"
        for number in range(4)
    )
    ended = _headrace("produce", topic, "--bootstrap", mock_cluster, "--json", given=lines.encode())
    assert ended.returncode == 0, ended.stderr
    return [topic, "--bootstrap", mock_cluster]


def _headrace(*arguments: str, given: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        input=given,
        capture_output=True,
        check=False,
        timeout=LIMIT_SECONDS,
    )


def test_exit_at_end_prints_everything_once(produced: list[str], capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert run(["consume", *produced, "-e", "-f", r"%p %o %k %s\n"]) == 0
    assert sorted(capfdbinary.readouterr().out.splitlines()) == [
        b"0 0 k0 v0",
        b"0 1 k2 v2",
        b"1 0 k1 v1",
        b"1 1 k3 v3",
    ]


def test_partition_offset_and_count_choose(produced: list[str], capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert run(["consume", *produced, "-e", "-p", "1", "-o", "-1", "-K", "|", "-D", ";"]) == 0
    assert capfdbinary.readouterr().out == b"k3|v3;"
    assert run(["consume", *produced, "-p", "0", "-o", "1", "-c", "1"]) == 0
    assert capfdbinary.readouterr().out == b"v2\n"
    assert run(["consume", *produced, "-e", "-o", "end"]) == 0
    assert capfdbinary.readouterr().out == b""


@pytest.mark.parametrize("option", [["--json"], ["--output", "json"]])
def test_json_is_one_object_per_line(
    option: list[str], produced: list[str], capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert run(["consume", *produced, "-e", *option]) == 0
    printed = [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    assert {(row["topic"], row["partition"], row["offset"], row["value"]) for row in printed} == {
        (produced[0], 0, 0, "v0"),
        (produced[0], 0, 1, "v2"),
        (produced[0], 1, 0, "v1"),
        (produced[0], 1, 1, "v3"),
    }


def test_an_offset_or_a_partition_that_is_not_there_is_told_with_what_there_is(
    produced: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["consume", *produced, "-e", "-p", "1", "-o", "50"]) == 1
    assert "[1] holds offsets 0 to 2 (exclusive), not 50" in capfd.readouterr().err
    assert run(["consume", *produced, "-e", "-p", "9"]) == 1
    assert "has no partition 9: its partitions are 0 to 3" in capfd.readouterr().err


def test_following_ends_with_code_130_on_an_interrupt(produced: list[str]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HEED_INTERRUPTS + PROGRAM, "consume", *produced],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    lines = {process.stdout.readline() for _ in range(4)}
    process.send_signal(signal.SIGINT)
    rest, complaints = process.communicate(timeout=LIMIT_SECONDS)
    assert lines == {b"v0\n", b"v1\n", b"v2\n", b"v3\n"}
    assert (process.returncode, rest, complaints) == (130, b"", b"")


def test_a_reader_that_has_seen_enough_ends_it_without_a_word(produced: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as closed:
        ended = subprocess.run(
            [sys.executable, "-c", PROGRAM, "consume", *produced],
            stdout=closed,
            stderr=subprocess.PIPE,
            check=False,
            timeout=LIMIT_SECONDS,
        )
    assert (ended.returncode, ended.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["-o", "stored"], "--offset is 'stored'"),
        (["-f", "%q"], "%q in the format means nothing"),
        (["--json", "-K", ":"], "JSON goes with neither"),
        (["--output", "json", "-f", "%s"], "JSON goes with neither"),
        (["-f", "%s", "-K", ":"], "either --format or --key-separator"),
        (["-c", "0"], "--count"),
        (["-X", "no.such.property=1"], 'No such configuration property: "no.such.property"'),
        (["-X", "group.id"], "-X takes NAME=VALUE"),
        (["--bootstrap", ""], "--bootstrap is empty"),
    ],
)
def test_wrong_use_is_told_before_anything_is_asked(
    options: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["consume", "t", *options]) == 2
    printed = capsys.readouterr()
    assert complaint in printed.err and printed.out == ""
