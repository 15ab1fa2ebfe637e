"""A side's process, which keeps its Spark session warm and does one run per line that it is told.

Each side has a process of its own, so that its JVM and its Python workers descend from it and their CPU time can be
told from that of all others. Lines of JSON go in; answers come out behind a mark, because Spark writes there, too.
"""

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parents[2]
MARK = "@answer "
STOP_LIMIT_SECONDS = 60.0
FAREWELL_CHARACTERS = 4000

Message = dict[str, Any]


class SideFailed(Exception):
    """A side's process has ended before it answered; the message has its last words."""


class SideProcess:
    """The process as the benchmark sees it."""

    def __init__(self, process: "subprocess.Popen[str]", errors: IO[str]) -> None:
        self._process = process
        self._errors = errors

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, **message: object) -> Message:
        """Send a message and return the answer. Raises `SideFailed`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith(MARK):
                answer: Message = json.loads(line.removeprefix(MARK))
                return answer
        self._errors.seek(0)
        raise SideFailed(f"{self._process.args!r}:\n{self._errors.read()[-FAREWELL_CHARACTERS:]}")


@contextlib.contextmanager
def running_side(module: str, settings: Mapping[str, str]) -> Iterator[SideProcess]:
    """Start the module's process, wait until its session is there, and end it on the way out."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=ROOT,
        )
        side = SideProcess(process, errors)
        try:
            side.ask(**settings)
            yield side
        finally:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=STOP_LIMIT_SECONDS)  # closes its input, at which it ends
            if process.poll() is None:
                process.kill()
                process.communicate()


def answer_lines(open_side: Callable[[Message], AbstractContextManager[Callable[[Message], Message]]]) -> None:
    """Be such a process: open what the first line asks for, then answer line by line until the input ends."""
    with open_side(json.loads(sys.stdin.readline())) as perform:
        say({})
        for line in sys.stdin:
            say(perform(json.loads(line)))


def say(answer: Message) -> None:
    """Answer the benchmark."""
    print(MARK + json.dumps(answer), flush=True)
