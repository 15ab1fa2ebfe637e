"""`headrace serve` as a process, as users run it: on free ports, ready when it says so, stopped in the end."""

import contextlib
import os
import queue
import re
import signal
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.servers.pausing import stop_process

READY_LIMIT_SECONDS = 120.0
STOP_LIMIT_SECONDS = 120.0

KEPT_FOR_EVER = {"log.retention.ms": "-1"}
"""Records of tests carry times of their own, often long ago: by default retention would take them at once."""

# The broker dies with the test process, even if that is killed: PR_SET_PDEATHSIG is 1, SIGKILL is 9.
_LAUNCH = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execv(sys.argv[1], sys.argv[1:])"
_READY = re.compile(r"ready: Kafka on (\S+):(\d+), HTTP on (\S+):(\d+)")


@dataclass(slots=True, kw_only=True)
class HeadraceProcess:
    """A running broker. `log` grows while it runs."""

    process: "subprocess.Popen[str]"
    kafka_port: int
    http_port: int
    data_dir: Path
    log: list[str]

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.kafka_port}"

    @property
    def http(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    def terminate(self) -> int:
        """Send SIGTERM, wait for the end, and return the exit code."""
        self.process.terminate()
        return self.process.wait(STOP_LIMIT_SECONDS)

    def kill(self) -> None:
        """Send SIGKILL and wait for the end."""
        self.process.kill()
        self.process.wait(STOP_LIMIT_SECONDS)

    def pause(self, *, in_transaction: bool = False) -> None:
        """Stop the process between two transactions of the embedded metadata store, or inside one."""
        stop_process(self.process, self.data_dir / "meta.db", in_transaction=in_transaction)

    def resume(self) -> None:
        """Let a paused process go on."""
        self.process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def running_headrace(
    data_dir: Path,
    *,
    kafka_port: int = 0,
    node_id: int = 1,
    settings: Mapping[str, str] | None = None,
    options: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Iterator[HeadraceProcess]:
    """Start a broker on `data_dir`, wait until it is ready, and end it on the way out if it still runs."""
    broker = start_headrace(
        data_dir, kafka_port=kafka_port, node_id=node_id, settings=settings, options=options, environment=environment
    )
    try:
        yield broker
    finally:
        if broker.process.poll() is None:
            broker.process.send_signal(signal.SIGCONT)
            broker.kill()


def start_headrace(
    data_dir: Path,
    *,
    kafka_port: int = 0,
    node_id: int = 1,
    settings: Mapping[str, str] | None = None,
    options: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> HeadraceProcess:
    """Start a broker and return when it is ready. Port 0 takes a free one. The caller ends it.

    Unless the settings say otherwise, retention takes nothing.
    """
    command = [
        sys.executable,
        "-c",
        _LAUNCH,
        str(Path(sysconfig.get_path("scripts")) / "headrace"),
        "serve",
        f"--data-dir={data_dir}",
        f"--kafka=127.0.0.1:{kafka_port}",
        "--http=127.0.0.1:0",
        f"--node-id={node_id}",
        *(f"--set={key}={value}" for key, value in {**KEPT_FOR_EVER, **(settings or {})}.items()),
        *options,
    ]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **(environment or {})},
    )
    log: list[str] = []
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    assert process.stdout is not None
    threading.Thread(target=_collect, args=(process.stdout, log, lines), daemon=True).start()
    found = _wait_for_ready(process, lines, log)
    return HeadraceProcess(
        process=process, kafka_port=int(found[2]), http_port=int(found[4]), data_dir=data_dir, log=log
    )


def _collect(stream: IO[str], log: list[str], lines: "queue.SimpleQueue[str | None]") -> None:
    for line in stream:
        log.append(line.rstrip("\n"))
        lines.put(line)
    lines.put(None)
    stream.close()


def _wait_for_ready(
    process: "subprocess.Popen[str]", lines: "queue.SimpleQueue[str | None]", log: list[str]
) -> "re.Match[str]":
    while True:
        try:
            line = lines.get(timeout=READY_LIMIT_SECONDS)
        except queue.Empty:
            line = None
        if line is None:
            process.kill()
            process.wait(STOP_LIMIT_SECONDS)
            raise RuntimeError("headrace serve did not become ready:\n" + "\n".join(log[-50:]))
        found = _READY.search(line)
        if found:
            return found
