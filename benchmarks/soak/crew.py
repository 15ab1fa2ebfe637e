"""The processes of a soak, brokers and a pipeline, and the one who kills them.

A killed broker comes back at once on its port, a killed pipeline as a new process, as a supervisor would do it.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import IO

from benchmarks.soak.plan import SoakPlan
from tests.servers.headrace import HeadraceProcess, start_headrace

HEADRACE = str(Path(sysconfig.get_path("scripts")) / "headrace")
END_LIMIT_SECONDS = 60.0


class Crew:
    """Everything of ours that runs. The clients of a soak run beside it and are never killed."""

    def __init__(self, data_dir: Path, plan: SoakPlan, log: IO[str]) -> None:
        self._data_dir = data_dir
        self._plan = plan
        self._log = log
        self._rng = Random(plan.seed)
        self._ports = _free_ports(plan.brokers)
        self._brokers: list[HeadraceProcess | None] = [None] * plan.brokers
        self._pipeline: subprocess.Popen[bytes] | None = None
        self._ahead: list[int] = []
        self.kills: dict[str, int] = {"broker": 0, "pipeline": 0}

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self._ports)

    def start(self) -> None:
        """Start all of them."""
        for number in range(self._plan.brokers):
            self._start_broker(number)
        if self._plan.has_pipeline:
            self._start_pipeline()

    def kill_one(self) -> None:
        """Kill one of them with no warning, and start it anew; nobody's turn comes twice before everybody's has."""
        if not self._ahead:
            self._ahead = list(range(self._plan.brokers + self._plan.has_pipeline))
            self._rng.shuffle(self._ahead)
        number = self._ahead.pop()
        if number == self._plan.brokers:
            self._end_pipeline()
            self.kills["pipeline"] += 1
            self._start_pipeline()
            return
        broker = self._brokers[number]
        assert broker is not None, "it was started"
        broker.kill()
        self.kills["broker"] += 1
        self._start_broker(number)

    def next_kill_after(self) -> float:
        """Return how many seconds pass until the next kill."""
        return self._rng.uniform(*self._plan.kill_every_seconds)

    def require_alive(self) -> None:
        """Raise `RuntimeError` if one of them has ended by itself."""
        for number, broker in enumerate(self._brokers, start=1):
            if broker is not None and broker.process.poll() is not None:
                raise RuntimeError(f"broker {number} ended by itself:\n" + "\n".join(broker.log[-30:]))
        if self._pipeline is not None and self._pipeline.poll() is not None:
            raise RuntimeError(f"the pipeline ended by itself with {self._pipeline.returncode}")

    def stop(self) -> None:
        """End all of them, whatever state they are in."""
        self._end_pipeline()
        for number, broker in enumerate(self._brokers):
            if broker is not None and broker.process.poll() is None:
                broker.kill()
            self._brokers[number] = None

    def _start_broker(self, number: int) -> None:
        self._brokers[number] = start_headrace(
            self._data_dir, kafka_port=self._ports[number], node_id=number + 1, settings=self._plan.settings
        )

    def _start_pipeline(self) -> None:
        command = [
            *(HEADRACE, "pipeline", "run", "--loop", f"--data-dir={self._data_dir}"),
            *(f"--set={key}={value}" for key, value in self._plan.settings.items()),
        ]
        # A session of its own, so that a kill takes Spark's Java process along, as a container's end would.
        self._pipeline = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, start_new_session=True
        )

    def _end_pipeline(self) -> None:
        if self._pipeline is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._pipeline.pid, signal.SIGKILL)
            self._pipeline.wait(END_LIMIT_SECONDS)
            self._pipeline = None


@contextlib.contextmanager
def running_crew(data_dir: Path, plan: SoakPlan) -> Iterator[Crew]:
    """Start the processes of a soak and end them in the end."""
    data_dir.mkdir(parents=True, exist_ok=True)
    with (data_dir.parent / "pipeline.log").open("w", encoding="utf-8") as log:
        crew = Crew(data_dir, plan, log)
        try:
            crew.start()
            yield crew
        finally:
            crew.stop()


def kill_until(crew: Crew, deadline: float) -> None:
    """Kill one process after the other until a moment of the monotonic clock."""
    while True:
        wait = crew.next_kill_after()
        if time.monotonic() + wait >= deadline:
            break
        time.sleep(wait)
        crew.kill_one()
    time.sleep(max(0.0, deadline - time.monotonic()))


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as open_sockets:
        sockets = [open_sockets.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
