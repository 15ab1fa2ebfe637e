"""What every driver in Python shares: the records that all drivers write, and the lines that they report.

A driver is given its task in the environment (`COMPAT_BOOTSTRAP`, `COMPAT_PREFIX`, `COMPAT_EPOCH_MS`, `COMPAT_CASES`)
and prints one JSON line per case, as README.md says. The records are the same in every language.

Must stay true: only the standard library is imported here. Old clients run this file in environments of their own.
"""

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass

RECORDS = 60
LARGE_BYTES = 1_000_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
# A condition that a broker reaches soon is waited for this long before the case fails.
WAIT_LIMIT_SECONDS = 60.0

Headers = list[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record as a client sees it. `None` is Kafka's null, which differs from empty bytes."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What the harness asks of a driver."""

    bootstrap: str
    prefix: str
    epoch_ms: int
    cases: tuple[str, ...]

    def topic(self, name: str) -> str:
        """Name a topic that belongs to this run of this client."""
        return f"{self.prefix}-{name}"


def task_from_environment() -> Task:
    """Read what the harness asks for."""
    return Task(
        bootstrap=os.environ["COMPAT_BOOTSTRAP"],
        prefix=os.environ["COMPAT_PREFIX"],
        epoch_ms=int(os.environ["COMPAT_EPOCH_MS"]),
        cases=tuple(name for name in os.environ["COMPAT_CASES"].split(",") if name),
    )


def record(number: int, epoch_ms: int) -> Record:
    """Return record `number` of the common set: nulls, empty bytes and repeated headers all occur."""
    key = (None, b"")[number % 5] if number % 5 < 2 else f"key-{number}".encode()
    value = (None, b"")[number % 7] if number % 7 < 2 else pattern(number, number * 37)
    headers: tuple[Headers, ...] = (
        [],
        [("trace", b"a"), ("trace", b"b")],
        [("empty", b""), ("null", None), ("bytes", b"\x00\xff\x80")],
    )
    return Record(key=key, value=value, headers=headers[number % 3], timestamp_ms=epoch_ms + number * 1000)


def pattern(seed: int, size_bytes: int) -> bytes:
    """Return bytes that compress well."""
    return bytes((seed * 31 + at * 7) & 0xFF for at in range(size_bytes))


def noise(seed: int, size_bytes: int) -> bytes:
    """Return bytes that do not compress."""
    state, out = seed & 0x7FFFFFFF, bytearray(size_bytes)
    for at in range(size_bytes):
        state = (state * 1103515245 + 12345) & 0x7FFFFFFF
        out[at] = (state >> 16) & 0xFF
    return bytes(out)


def check(condition: bool, message: str) -> None:
    """Fail the case unless `condition` holds."""
    if not condition:
        raise AssertionError(message)


def check_equal(got: object, wanted: object, what: str) -> None:
    """Fail the case unless both are the same."""
    if got != wanted:
        raise AssertionError(f"{what}: got {got!r:.600}, wanted {wanted!r:.600}")


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Ask again until `condition` holds."""
    deadline = time.monotonic() + WAIT_LIMIT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"still not so after {WAIT_LIMIT_SECONDS:.0f} s: {what}")
        time.sleep(0.05)


def run_cases(task: Task, cases: Mapping[str, Callable[[], str | None]]) -> None:
    """Run what the task names, in its order, and report each case. What a case returns is its note."""
    for name in task.cases:
        started = time.monotonic()
        try:
            passed, note = True, cases[name]() or ""
        except Exception as error:  # whatever a foreign library raises is this case's outcome
            traceback.print_exc()
            passed, note = False, f"{type(error).__name__}: {error}"
        seconds = round(time.monotonic() - started, 3)
        print(json.dumps({"case": name, "passed": passed, "seconds": seconds, "note": note}), flush=True)
        sys.stderr.flush()
