"""The command line from the outside: what it prints, where, and with which exit code."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace import __version__
from headrace.cli import main as cli
from headrace.cli.main import run
from headrace.cli.options import OPTION_OF_KEY
from headrace.errors import Corrupt, Invalid, OutcomeUnknown, Retryable
from headrace.settings import HeadraceConfiguration, all_settings
from tests.servers.headrace import running_headrace

PROGRAM = "from headrace.cli.main import main; main()"


@pytest.fixture(autouse=True)
def clean_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Take our variables away, and let no command touch the logging of the test process."""
    for name in [name for name in os.environ if name.startswith("HEADRACE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr("logging.basicConfig", lambda **_: None)
    yield


def _headrace(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        env={**{k: v for k, v in os.environ.items() if not k.startswith("HEADRACE_")}, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_serve_says_in_one_line_that_it_is_ready_and_leaves_with_zero(tmp_path: Path) -> None:
    with running_headrace(tmp_path / "data") as broker:
        assert (broker.data_dir / "meta.db").exists() and (broker.data_dir / "objects").is_dir()
        assert broker.terminate() == 0
    lines = [line for line in broker.log if "is ready" in line]
    assert len(lines) == 1 and f"headrace {__version__}" in lines[0]


def test_serve_refuses_an_address_that_is_taken_and_says_what_to_do(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ended = _headrace("serve", "--data-dir", str(tmp_path), "--kafka", address, "--http", "127.0.0.1:0")
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert address in line and "--kafka" in line


def test_serve_takes_every_option_of_the_design_and_names_it_as_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[HeadraceConfiguration] = []
    monkeypatch.setattr("headrace.cli.serve.serve_until_told", served.append)
    config = tmp_path / "headrace.toml"
    config.write_text("message.max.bytes = 2048")
    given = {
        "--data-dir": "/srv/h",
        "--kafka": "127.0.0.1:1",
        "--http": "127.0.0.1:2",
        "--node-id": "7",
        "--zone": "zone-a",
        "--advertise": "broker.example:3",
        "--metadata": "postgresql://me:hunter2@db/h",
        "--objects": "s3://bucket/prefix",
        "--config": str(config),
        "--set": "num.partitions=5",
    }
    assert run(["serve", "--pipeline", *(word for pair in given.items() for word in pair)]) == 0
    origins = {origin.setting.key: origin for origin in served[0].origins}
    shown = {**given, "--pipeline": "true"}
    for key, option in OPTION_OF_KEY.items():
        if option == "--master":
            continue  # It is `pipeline run` that takes it.
        assert origins[key].source == option
        assert origins[key].shown == shown[option].replace("me:hunter2", "***")
    assert origins["message.max.bytes"].value == 2048 and str(config) in origins["message.max.bytes"].source
    assert origins["num.partitions"].value == 5 and "--set" in origins["num.partitions"].source


def test_a_line_in_a_pipe_never_wraps(capsys: pytest.CaptureFixture[str]) -> None:
    url = "s3://bucket/" + "long/" * 100
    assert run(["settings", "--objects", url]) == 0
    assert url in capsys.readouterr().out


def test_set_may_be_given_many_times(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["settings", "--set", "node.id=4", "--set", "broker.rack=b", "--output", "json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["node.id"] == {"value": 4, "unit": "", "source": "--set"}
    assert printed["broker.rack"]["value"] == "b"
    assert printed["auto.create.topics.enable"]["value"] is True
    assert printed["listeners"]["value"] == "127.0.0.1:9092"
    assert printed["advertised.listeners"]["value"] is None
    assert set(printed) == {setting.key for setting in all_settings()}


def test_settings_as_text_and_json_hide_passwords(capsys: pytest.CaptureFixture[str]) -> None:
    for output in ("text", "json"):
        assert run(["settings", "--metadata", "postgresql://me:hunter2@db/h", "--output", output]) == 0
        printed = capsys.readouterr().out
        assert "postgresql://***@db/h" in printed and "hunter2" not in printed


def test_values_that_look_like_markup_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["settings", "--set", "broker.rack=[bold]zone[/bold]"]) == 0
    assert "[bold]zone[/bold]" in capsys.readouterr().out


def test_version_as_text_and_json_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["version"]) == 0
    text = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert run(["version", "--output", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == text
    assert text["headrace"] == __version__
    assert text.keys() == {"headrace", "python", "decoder", "sqlite"}
    assert text["sqlite"].count(".") == 2


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "Missing command"),
        (["serv"], "No such command"),
        (["serve", "--nowhere"], "No such option"),
        (["serve", "--set", "num.partitons=1"], "did you mean num.partitions?"),
        (["serve", "--set", "num.partitions"], "--set takes key=value"),
        (["serve", "--kafka", "nowhere"], "listeners is 'nowhere' (--kafka); expected HOST:PORT"),
        (["serve", "--kafka", "0.0.0.0:9092"], "set advertised.listeners"),
        (["serve", "--node-id", "x\n\x1b[31my"], "node.id is"),
        (["serve", "--config", "/nowhere/at/all.toml"], "cannot read the settings file /nowhere/at/all.toml"),
        (["serve", "--node-id", "1", "--set", "node.id=2"], "node.id is given twice"),
        (["settings", "--output", "xml"], "--output"),
    ],
)
def test_wrong_use_is_one_line_on_stderr_and_code_two(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    [line] = printed.err.splitlines()
    assert line.startswith("headrace: ") and complaint in line and line.isprintable()


@pytest.mark.parametrize(
    ("error", "code"),
    [(Invalid("wrong"), 2), (Retryable("away\nfor now"), 1), (OutcomeUnknown("hm"), 1), (Corrupt("bad"), 1)],
)
def test_an_error_on_purpose_is_one_line_and_its_code_tells_wrong_from_failed(
    error: Exception, code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> str:
        raise error

    monkeypatch.setattr(cli, "decoder", fail)
    assert run(["version"]) == code
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_mistake_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> str:
        raise KeyError("ours")

    monkeypatch.setattr(cli, "decoder", fail)
    with pytest.raises(KeyError):
        run(["version"])


def test_an_interrupt_ends_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "decoder", interrupt)
    assert run(["version"]) == 130


def test_the_process_ends_with_the_exit_code_and_no_traceback() -> None:
    ended = _headrace("serve", HEADRACE_NUM_PARTITON="3")
    assert ended.returncode == 2 and ended.stdout == ""
    assert ended.stderr == (
        "headrace: no setting belongs to the variable HEADRACE_NUM_PARTITON; did you mean HEADRACE_NUM_PARTITIONS?\n"
    )


def test_a_crash_point_that_does_not_exist_is_wrong_use() -> None:
    ended = _headrace("serve", HEADRACE_CRASH_AT="writer.after-lunch")
    assert ended.returncode == 2 and ended.stderr.startswith("headrace: HEADRACE_CRASH_AT")


@pytest.mark.parametrize(
    "arguments", [["--help"], ["serve", "--help"], ["settings", "--help"], ["version", "--help"]]
)
def test_help_is_printed_and_is_no_error(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 0
    assert "Usage: headrace" in capsys.readouterr().out
