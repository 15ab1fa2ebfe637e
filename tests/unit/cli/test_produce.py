"""How input becomes records, and the command on a mock cluster."""

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.cli.main import run
from headrace.cli.produce import Input
from headrace.cli.records import Outgoing
from headrace.errors import Invalid

PROGRAM = "from headrace.cli.main import main; main()"
# A shell that runs tests in the background tells its children to ignore interrupts.
HEED_INTERRUPTS = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
LIMIT_SECONDS = 120

LINES = Input(
    delimiter=b"\n", key_separator=None, empty_is_null=False, is_json=False, headers=(("h", b"1"),), partition=2
)
JSON = Input(
    delimiter=b"\n", key_separator=None, empty_is_null=False, is_json=True, headers=(("h", b"1"),), partition=2
)


def test_lines_get_the_headers_and_the_partition_of_the_command() -> None:
    assert list(LINES.records([b"a\n\nb"])) == [
        Outgoing(value=b"a", headers=(("h", b"1"),), partition=2),
        Outgoing(value=b"b", headers=(("h", b"1"),), partition=2),
    ]


def test_what_a_json_record_says_itself_wins() -> None:
    [own, bare] = JSON.records([b'{"value": "a", "partition": 0, "headers": {"x": "y"}}\n{"value": "b"}\n'])
    assert (own.partition, own.headers) == (0, (("x", b"y"),))
    assert (bare.partition, bare.headers) == (2, (("h", b"1"),))


def test_a_wrong_json_record_is_named_by_its_number_after_those_before_it() -> None:
    records = JSON.records([b'{"value": "a"}\nnonsense\n'])
    assert next(records).value == b"a"
    with pytest.raises(Invalid, match="message 2: not JSON"):
        next(records)


@pytest.fixture
def give(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[bytes], None]]:
    """Yield what puts bytes on stdin."""
    with contextlib.ExitStack() as opened:

        def put(given: bytes) -> None:
            (tmp_path / "stdin").write_bytes(given)
            monkeypatch.setattr("sys.stdin", opened.enter_context((tmp_path / "stdin").open()))

        yield put


def _consume(topic: str, bootstrap: str, capfdbinary: pytest.CaptureFixture[bytes]) -> list[bytes]:
    capfdbinary.readouterr()
    assert run(["consume", topic, "--bootstrap", bootstrap, "-e", "-f", r"%p %k %s %h\n", "-Z"]) == 0
    return sorted(capfdbinary.readouterr().out.splitlines())


def test_lines_arrive_as_they_were_given(
    mock_cluster: str, give: Callable[[bytes], None], capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    give(b"a:1;b:\xff\x00\n;:;no key;c:")
    options = ["-K", ":", "-D", ";", "-Z", "-p", "3", "-H", "x=1", "-H", "x=", "-z", "gzip"]
    assert run(["produce", "produce-lines", "--bootstrap", mock_cluster, *options]) == 0
    assert capfdbinary.readouterr().err == b"headrace: 5 messages acknowledged in produce-lines\n"
    assert _consume("produce-lines", mock_cluster, capfdbinary) == sorted(
        b"3 NULL NULL x=1,x=\n3 NULL no key x=1,x=\n3 a 1 x=1,x=\n3 b \xff\x00\n x=1,x=\n3 c NULL x=1,x=".splitlines()
    )


def test_files_are_whole_messages(
    mock_cluster: str, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    for path in paths:
        path.write_bytes(b"all of " + path.name.encode())
    options = [word for path in paths for word in ("--file", str(path))]
    assert run(["produce", "produce-files", "--bootstrap", mock_cluster, "-p", "0", *options]) == 0
    assert _consume("produce-files", mock_cluster, capfdbinary) == [b"0 NULL all of a ", b"0 NULL all of b "]


def test_a_failed_message_is_named_and_spares_its_neighbours(
    mock_cluster: str, give: Callable[[bytes], None], capfd: pytest.CaptureFixture[str]
) -> None:
    command = ["produce", "produce-failed", "--bootstrap", mock_cluster, "-X", "message.max.bytes=1000"]
    give(b"small\n" + b"x" * 2000 + b"\nsmall\n")
    assert run(command) == 1
    told = capfd.readouterr().err.splitlines()
    assert told[0].startswith("headrace: message 2 failed: too large: raise -X message.max.bytes")
    assert told[1:] == ["headrace: 2 messages acknowledged in produce-failed, 1 failed"]
    give(b"a\nb\n")
    assert run([*command, "-p", "99", "--output", "json"]) == 1
    reason = "the topic has no such partition"
    assert json.loads(capfd.readouterr().out) == {
        "topic": "produce-failed",
        "acknowledged": 0,
        "failed": 2,
        "failures": [{"message": 1, "reason": reason}, {"message": 2, "reason": reason}],
    }


def test_what_precedes_a_wrong_line_is_sent_and_accounted_for(
    mock_cluster: str, give: Callable[[bytes], None], capfd: pytest.CaptureFixture[str]
) -> None:
    give(b'{"value": "a"}\nnonsense\n{"value": "c"}\n')
    assert run(["produce", "produce-wrong", "--bootstrap", mock_cluster, "--json"]) == 2
    [acknowledged, wrong] = capfd.readouterr().err.splitlines()
    assert acknowledged == "headrace: 1 message acknowledged in produce-wrong"
    assert wrong.startswith("headrace: message 2: not JSON")


def test_an_interrupt_lets_what_was_sent_arrive_and_ends_with_code_130(mock_cluster: str) -> None:
    target = ["produce-interrupt", "--bootstrap", mock_cluster]
    process = subprocess.Popen(
        [sys.executable, "-c", HEED_INTERRUPTS + PROGRAM, "produce", *target],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None and process.stderr is not None
    process.stdin.write(b"typed\n")
    process.stdin.flush()
    assert _wait_for_one(target) == b"typed\n"
    process.send_signal(signal.SIGINT)
    assert process.stderr.read() == b"headrace: 1 message acknowledged in produce-interrupt\n"
    assert process.wait(LIMIT_SECONDS) == 130
    process.stdin.close()
    process.stderr.close()


def _wait_for_one(target: list[str]) -> bytes:
    """Consume one message; the topic comes into being when the first one is produced, so it may not be there yet."""
    command = [sys.executable, "-c", PROGRAM, "consume", *target, "-c", "1"]
    deadline = time.monotonic() + LIMIT_SECONDS
    while True:
        ended = subprocess.run(command, capture_output=True, check=False, timeout=LIMIT_SECONDS)
        if ended.returncode == 0 or time.monotonic() > deadline:
            assert ended.returncode == 0, ended.stderr
            return ended.stdout


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["-D", ""], "--delimiter is empty"),
        (["-K", ""], "--key-separator is empty"),
        (["-D", "\\q"], "is no escape"),
        (["-H", "name"], "--header takes NAME=VALUE"),
        (["--file", "/nowhere/at/all"], "/nowhere/at/all is no file that can be read"),
        (["--json", "-K", ":"], "--json goes with neither"),
        (["-z", "rar"], "-z"),
        (["--acks", "2"], "--acks"),
        (["-p", "-1"], "-p"),
        (["-X", "acks=x"], "acks"),
    ],
)
def test_wrong_use_is_told_before_anything_is_sent(
    options: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["produce", "t", *options]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert complaint in line
