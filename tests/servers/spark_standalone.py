"""A real standalone Spark: one master and some workers, each with its own folder, on loopback and free ports.

Their classes come with PySpark. The Python that executors start is a virtual environment of its own, at another path
than the one that runs the tests: it has the same packages by way of a `.pth` file.
"""

import contextlib
import os
import signal
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyspark

from tests.servers.apache_kafka import free_ports
from tests.servers.kafka_jars import java

READY_LIMIT_SECONDS = 120.0
STOP_LIMIT_SECONDS = 60.0
POLL_SECONDS = 0.05
CORES = 2
"""Of each worker, so that two applications find room on every one of them."""

# It dies with the test process, even if that is killed: PR_SET_PDEATHSIG is 1, SIGKILL is 9.
_LAUNCH = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execvp(sys.argv[1], sys.argv[1:])"


@dataclass(frozen=True, slots=True, kw_only=True)
class StandaloneSpark:
    """A running cluster."""

    url: str
    directory: Path


@contextlib.contextmanager
def running_spark_cluster(
    directory: Path, *, workers: int = 2, environment: Mapping[str, str] | None = None
) -> Iterator[StandaloneSpark]:
    """Start a master and its workers, wait until all are registered, and kill them on the way out."""
    with contextlib.ExitStack() as processes:
        (port,) = free_ports(1)
        url = f"spark://127.0.0.1:{port}"
        options = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
        log = _start(processes, directory / "master", "master.Master", options, environment)
        _wait_for(log, "I have been elected leader")
        logs = []
        for number in range(workers):
            folder = directory / f"worker-{number}"
            options = ["--host", "127.0.0.1", "--cores", str(CORES), "--memory", "2g", "--webui-port", "0"]
            options += ["--work-dir", str(folder / "work"), url]
            logs.append(_start(processes, folder, "worker.Worker", options, environment))
        for log in logs:
            _wait_for(log, "Successfully registered with master")
        yield StandaloneSpark(url=url, directory=directory)


def make_python(directory: Path, *, first: Path | None = None) -> Path:
    """Make a virtual environment that has all our packages, and return its Python.

    What lies in `first` is found before them.
    """
    venv.create(directory, with_pip=False, symlinks=True)
    packages = directory / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    here = sysconfig.get_path("purelib")
    # `addsitedir` reads the .pth files of that folder as well: the one of an editable install is among them.
    lines = [f"import site; site.addsitedir({here!r})"]
    if first is not None:
        lines.append(f"import sys; sys.path.insert(0, {str(first)!r})")
    (packages / "same.pth").write_text("\n".join(lines) + "\n")
    return directory / "bin" / "python"


def _start(
    processes: contextlib.ExitStack,
    folder: Path,
    name: str,
    options: list[str],
    environment: Mapping[str, str] | None,
) -> Path:
    folder.mkdir(parents=True)
    jars = Path(pyspark.__file__).parent / "jars"
    log = folder / "log"
    command = [sys.executable, "-c", _LAUNCH, java(), "-Xmx512m", *_JAVA_MODULES]
    command += ["-cp", f"{jars}/*", f"org.apache.spark.deploy.{name}", *options]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=folder,
            # A group of its own: executors are children of the worker, and go with it.
            start_new_session=True,
            env={**_plain_environment(), **(environment or {}), "SPARK_LOCAL_DIRS": str(folder / "scratch")},
        )
    processes.callback(_end, process)
    return log


def _plain_environment() -> dict[str, str]:
    """Return an environment that knows nothing of the tests' own Python."""
    names = ("PATH", "HOME", "JAVA_HOME", "LANG")
    return {name: os.environ[name] for name in names if name in os.environ} | {
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        # Spark's start scripts would tell the workers; without them they look for a source tree.
        "SPARK_SCALA_VERSION": "2.13",
    }


def _wait_for(log: Path, words: str) -> None:
    deadline = time.monotonic() + READY_LIMIT_SECONDS
    while words not in log.read_text(encoding="utf-8", errors="replace"):
        if time.monotonic() > deadline:
            raise RuntimeError(f"{words!r} is not in {log}:\n{log.read_text(errors='replace')[-4000:]}")
        time.sleep(POLL_SECONDS)


def _end(process: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(STOP_LIMIT_SECONDS)


# What Spark's own scripts open up for it.
_JAVA_MODULES = tuple(
    f"--add-opens=java.base/{name}=ALL-UNNAMED"
    for name in (
        "java.lang",
        "java.lang.invoke",
        "java.lang.reflect",
        "java.io",
        "java.net",
        "java.nio",
        "java.util",
        "java.util.concurrent",
        "java.util.concurrent.atomic",
        "jdk.internal.ref",
        "sun.nio.ch",
        "sun.nio.cs",
        "sun.security.action",
        "sun.util.calendar",
    )
)
