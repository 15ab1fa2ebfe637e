"""Looks at a broker from outside, again and again: memory, open files, gauges, what it says in its log."""

import json
import time
from dataclasses import dataclass
from pathlib import Path

from tests.integration.wire.watching import OUR_MISTAKES, metrics
from tests.servers.headrace import HeadraceProcess

KIB = 1024

CACHES = ("tail_cache_bytes", "catch_up_cache_bytes", "table_cache_bytes", "buffers_idle_bytes")
"""What is kept to be used again. Each has a limit of its own, so that it may grow during a soak."""

BACK_TO_ZERO = (
    "kafka_connections",
    "kafka_request_memory_bytes",
    "fetches_parked",
    "group_members",
)
"""Gauges that must read zero when all clients have left, and members' sessions are over."""

FOLLOWED = (*CACHES, *BACK_TO_ZERO, "buffers_leased_bytes", "fetch_sessions", "groups_coordinated", "topics_known")
STALLS = "loop_stalls_total"
STALL_EVENT = "the event loop was held up"
MAX_STALLS = 8
"""How many stalls the report names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One look. `resident_bytes` is RSS; gauges are those of `FOLLOWED`."""

    at_s: float
    resident_bytes: int
    anonymous_bytes: int
    open_files: int
    gauges: dict[str, float]
    stalls: int
    log_lines: int

    @property
    def working_bytes(self) -> int:
        """Return the memory that no cache has a gauge for: what must be flat."""
        return self.resident_bytes - int(sum(self.gauges[name] for name in CACHES))

    @property
    def lent_bytes(self) -> int:
        """Return the buffers that are lent to requests under way.

        The tail cache keeps what was written in the buffer in which it came, of up to twice its size.
        """
        return max(0, int(self.gauges["buffers_leased_bytes"] - 2 * self.gauges["tail_cache_bytes"]))


class Watcher:
    """Looks at one broker; times count from the first look on."""

    def __init__(self, broker: HeadraceProcess) -> None:
        self._broker = broker
        self._began = time.monotonic()
        self.samples: list[Sample] = []

    def look(self) -> Sample:
        """Look once, and keep what was seen. Raises `RuntimeError` if the broker has ended."""
        if self._broker.process.poll() is not None:
            raise RuntimeError("the broker ended by itself:\n" + "\n".join(self._broker.log[-30:]))
        status = _numbers(Path(f"/proc/{self._broker.process.pid}/status"))
        scraped = _scrape(metrics(self._broker))
        sample = Sample(
            at_s=time.monotonic() - self._began,
            resident_bytes=status["VmRSS"] * KIB,
            anonymous_bytes=status["RssAnon"] * KIB,
            open_files=len(list(Path(f"/proc/{self._broker.process.pid}/fd").iterdir())),
            gauges={name: scraped.get(f"headrace_{name}", 0.0) for name in FOLLOWED},
            stalls=int(scraped.get(f"headrace_{STALLS}", 0)),
            log_lines=len(self._broker.log),
        )
        self.samples.append(sample)
        return sample

    def stalls(self) -> list[str]:
        """Return the longest stalls of the loop, and what the log names for each."""
        entries = [
            json.loads(line) for line in list(self._broker.log) if STALL_EVENT in line and line.startswith("{")
        ]
        longest = sorted(entries, key=lambda entry: -entry["lag_ms"])[:MAX_STALLS]
        return [f"{entry['lag_ms']} ms: {entry['what']}" for entry in longest]

    def mistakes(self) -> list[str]:
        """Return the lines of the log that tell of mistakes of the broker's own."""
        return [line for line in list(self._broker.log) if any(mark in line for mark in OUR_MISTAKES)]


def _numbers(path: Path) -> dict[str, int]:
    lines = (line.split() for line in path.read_text(encoding="ascii").splitlines())
    return {parts[0].rstrip(":"): int(parts[1]) for parts in lines if len(parts) == 3 and parts[2] == "kB"}


def _scrape(text: str) -> dict[str, float]:
    """Return the sum over all series of each metric."""
    sums: dict[str, float] = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            name = name.partition("{")[0]
            sums[name] = sums.get(name, 0.0) + float(value)
    return sums
