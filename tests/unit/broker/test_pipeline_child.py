"""A child process that is kept running: real processes, a clock that a test moves."""

import asyncio
import io
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.broker.pipeline_child import START_ANEW, PipelineChild, child_environment
from headrace.errors import Invalid, Unsupported
from headrace.runtime.logs import open_log
from headrace.settings import load_settings
from headrace.testing.clock import ManualClock

LIMIT_SECONDS = 60.0


class Harness:
    """A child whose program is a few lines of Python; every start of it leaves its process id in `started`."""

    def __init__(self, directory: Path, program: str, *, require: Callable[[], object] = lambda: None) -> None:
        self.started = directory / "started"
        self.started.touch()
        self.lines = io.StringIO()
        self.clock = ManualClock()
        begin = (
            "import os, signal, sys, time\n"
            f"with open({str(self.started)!r}, 'a') as out: print(os.getpid(), file=out)\n"
        )
        self.child = PipelineChild(
            command=[sys.executable, "-c", begin + program],
            environment=dict(os.environ),
            require=require,
            max_pause_s=4.0,
            clock=self.clock,
            log=open_log(self.lines, clock=self.clock, format="json"),
        )

    @property
    def processes(self) -> list[int]:
        return [int(line) for line in self.started.read_text().split()]

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT_SECONDS):
            while not is_so():
                await asyncio.sleep(0.01)


async def test_a_child_runs_until_the_broker_stops_and_then_ends_in_good_order(tmp_path: Path) -> None:
    harness = Harness(tmp_path, "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n" + "time.sleep(600)")
    await harness.child.start()
    await harness.until(lambda: len(harness.processes) == 1)
    await harness.child.drain()
    await harness.child.wait()
    assert not is_alive(harness.processes[0])
    assert "killed" not in harness.lines.getvalue()


async def test_a_child_that_ends_badly_is_started_again_after_growing_pauses(tmp_path: Path) -> None:
    harness = Harness(tmp_path, "sys.exit(3)")
    await harness.child.start()
    for number, pause_s in enumerate([1.0, 2.0, 4.0, 4.0], start=1):
        await harness.until(lambda: harness.clock.sleepers == 1)
        assert len(harness.processes) == number
        await harness.clock.advance(pause_s - 0.01)
        assert harness.clock.sleepers == 1
        await harness.clock.advance(0.01)
    await harness.until(lambda: len(harness.processes) == 5)
    await harness.child.stop()
    assert '"code": 3' in harness.lines.getvalue()


async def test_a_child_that_asks_for_it_is_started_anew_at_once(tmp_path: Path) -> None:
    harness = Harness(tmp_path, f"sys.exit({START_ANEW})")
    await harness.child.start()
    await harness.until(lambda: len(harness.processes) >= 3)
    await harness.child.stop()
    assert "has ended and is started again" not in harness.lines.getvalue()


async def test_a_child_that_does_not_end_is_killed_with_what_it_has_started(tmp_path: Path) -> None:
    other = tmp_path / "other"
    program = (
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "import subprocess\n"
        "started = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(other)!r} + '.new', 'w').write(str(started.pid))\n"
        f"os.rename({str(other)!r} + '.new', {str(other)!r})\n"
        "time.sleep(600)"
    )
    harness = Harness(tmp_path, program)
    await harness.child.start()
    await harness.until(other.exists)
    await harness.child.stop()
    await harness.until(lambda: not is_alive(harness.processes[0]) and not is_alive(int(other.read_text())))
    assert "killed" in harness.lines.getvalue()


async def test_a_child_learns_of_its_brokers_death_from_its_pipe(tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    # The broker's side of the pipe closes, as it does when the broker is killed.
    harness = Harness(tmp_path, f"sys.stdin.read()\nopen({str(ended)!r}, 'w').close()")
    code = (
        "import asyncio, os, sys\n"
        "from headrace.broker.pipeline_child import PipelineChild\n"
        "from headrace.runtime.clock import SystemClock\n"
        "from headrace.runtime.logs import open_log\n"
        "async def main():\n"
        "    clock = SystemClock()\n"
        "    child = PipelineChild(command=sys.argv[1:], environment=dict(os.environ), require=lambda: None,\n"
        "        max_pause_s=1.0, clock=clock, log=open_log(sys.stderr, clock=clock))\n"
        "    await child.start()\n"
        "    await child.wait()\n"
        "asyncio.run(main())\n"
    )
    broker = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, *harness.child._command, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        await harness.until(lambda: len(harness.processes) == 1)
    finally:
        broker.kill()
        await broker.wait()
    await harness.until(ended.exists)


async def test_without_what_it_needs_the_child_is_left_out_and_told_once(tmp_path: Path) -> None:
    def require() -> None:
        raise Unsupported("Spark needs Java: install it")

    harness = Harness(tmp_path, "", require=require)
    await harness.child.start()
    await harness.until(lambda: "Spark needs Java: install it" in harness.lines.getvalue())
    assert harness.child._task is not None
    assert not harness.child._task.done()
    await harness.child.drain()
    await harness.child.stop()
    assert harness.processes == []
    assert len(harness.lines.getvalue().splitlines()) == 1


def test_a_child_gets_the_settings_of_its_broker_wherever_they_came_from(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('metadata.url = "postgresql://me:secret@db/h"\n"catalog.properties" = ["token=t", "a=b c"]\n')
    told = load_settings(
        file=file,
        environment={"HEADRACE_NUM_PARTITIONS": "7", "HEADRACE_NODE_ID": "3"},
        pairs=["num.partitions=8", "auto.create.topics.enable=false", "catalog.warehouse="],
        options={"data.dir": ("--data-dir", str(tmp_path))},
    )
    environment = child_environment(told, {"PATH": "/bin", "HEADRACE_NUM_PARTITIONS": "7"})
    assert environment["PATH"] == "/bin"
    again = load_settings(environment={n: v for n, v in environment.items() if n.startswith("HEADRACE_")})
    assert again.tree == told.tree


def test_a_value_that_a_variable_cannot_hold_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('"catalog.properties" = ["token=a;b"]\n')
    with pytest.raises(Invalid, match=r"catalog\.properties has a value with a semicolon"):
        child_environment(load_settings(file=file), {})


def is_alive(process_id: int) -> bool:
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_a_child_that_the_system_cannot_start_is_tried_again_and_the_broker_goes_on(tmp_path: Path) -> None:
    clock, lines = ManualClock(), io.StringIO()
    child = PipelineChild(
        command=[str(tmp_path / "not there")],
        environment={},
        require=lambda: None,
        max_pause_s=4.0,
        clock=clock,
        log=open_log(lines, clock=clock, format="json"),
    )
    await child.start()
    for pause_s in (1.0, 2.0):
        async with asyncio.timeout(LIMIT_SECONDS):
            while clock.sleepers == 0:
                await asyncio.sleep(0.01)
        await clock.advance(pause_s)
    await child.stop()
    await child.wait()
    assert lines.getvalue().count("could not be started") >= 2


async def test_a_disk_that_takes_no_scratch_folder_does_not_end_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = Harness(tmp_path, "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n" + "time.sleep(600)")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    await harness.child.start()
    for pause_s in (1.0, 2.0):
        await harness.until(lambda: harness.clock.sleepers == 1)
        await harness.clock.advance(pause_s)
    assert harness.processes == [] and harness.lines.getvalue().count("could not be started") >= 2
    await harness.until(lambda: harness.clock.sleepers == 1)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    await harness.clock.advance(4.0)
    await harness.until(lambda: len(harness.processes) == 1)
    await harness.child.stop()
    await harness.child.wait()
