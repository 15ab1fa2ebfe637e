"""What can be seen of a broker from outside: its memory, its metrics, its log."""

import contextlib
import json
import resource
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.servers.headrace import HeadraceProcess

MIB = 1024 * 1024
LIMIT_SECONDS = 120.0
PAUSE_SECONDS = 0.05

OUR_MISTAKES = ("a handler failed", "mistake of ours", "Traceback", "Exception in callback", "never retrieved")


@contextlib.contextmanager
def many_files(count: int) -> Iterator[None]:
    """Let this process, and the brokers it starts meanwhile, open so many files; skip the test where it may not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        pytest.skip(f"this system lets a process open {hard} files, the test needs {count}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def memory_bytes(broker: HeadraceProcess) -> int:
    """Return the memory that the broker's process occupies now."""
    return _status(broker, "VmRSS")


def peak_memory_bytes(broker: HeadraceProcess) -> int:
    """Return the most that it occupied since the start, or since `forget_peak`."""
    return _status(broker, "VmHWM")


def forget_peak(broker: HeadraceProcess) -> int:
    """Measure the peak from here on; return the memory of now."""
    (_proc(broker) / "clear_refs").write_text("5", encoding="ascii")
    return memory_bytes(broker)


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Return when the condition holds; fail after a time that nothing needs."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"after {LIMIT_SECONDS:.0f} s still not: {what}"
        time.sleep(PAUSE_SECONDS)


def metric(broker: HeadraceProcess, name: str, **labels: str) -> float:
    """Return the sum of a metric's series that bear these labels."""
    scraped = metrics(broker).splitlines()
    assert any(line.startswith(f"# TYPE headrace_{name} ") for line in scraped), f"there is no metric {name}"
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    lines = [line for line in scraped if line.startswith((f"headrace_{name} ", f"headrace_{name}{{"))]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if all(label in line for label in wanted))


def metrics(broker: HeadraceProcess) -> str:
    """Return what a scrape gets."""
    with urllib.request.urlopen(f"{broker.http}/metrics", timeout=LIMIT_SECONDS) as answer:
        return str(answer.read().decode())


def closings(broker: HeadraceProcess, peer: str) -> list[dict[str, Any]]:
    """Return the log's entries about a connection that was closed for what its client did."""
    entries = [json.loads(line) for line in list(broker.log) if f'"{peer}"' in line]
    return [entry for entry in entries if entry["event"] == "a connection was closed" and entry["peer"] == peer]


def closing(broker: HeadraceProcess, peer: str) -> dict[str, Any]:
    """Wait for the one entry about this connection and return it."""
    wait_until(lambda: bool(closings(broker, peer)), f"the log tells why {peer} was closed")
    (entry,) = closings(broker, peer)
    return entry


def mistakes(broker: HeadraceProcess) -> list[str]:
    """Return the log's lines that speak of a bug in the broker."""
    return [line for line in list(broker.log) if any(phrase in line for phrase in OUR_MISTAKES)]


def _status(broker: HeadraceProcess, field: str) -> int:
    for line in (_proc(broker) / "status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"the broker's process is gone or has no {field}")


def _proc(broker: HeadraceProcess) -> Path:
    return Path(f"/proc/{broker.process.pid}")
