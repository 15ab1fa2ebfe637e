"""Drive a broker with kcat, Debian's package of it: what people type to look into a topic.

kcat has no admin calls, so its topics come from auto-creation. Its librdkafka (2.0) is older than any wheel that is
tested beside it.
"""

import functools
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from compat.driver_kit import (
    CODECS,
    LARGE_BYTES,
    Task,
    check,
    check_equal,
    noise,
    pattern,
    run_cases,
    task_from_environment,
    wait_until,
)
from compat.kcat.balanced import balanced_consumer

RUN_LIMIT_SECONDS = 60
# Offset, timestamp, key length, value length (-1 is null), then the bytes and the headers.
_FORMAT = "%o %T %K %S\\n%k%s%h\\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One record as kcat prints it."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: str


class Driver:
    """The cases. Each has topics of its own."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._environment = {**os.environ, "LD_LIBRARY_PATH": os.environ["COMPAT_KCAT_LIBRARIES"]}

    def cases(self) -> dict[str, Callable[[], str | None]]:
        """Name what this driver can do."""
        codecs = {f"produce_{codec}": functools.partial(self.produce, codec) for codec in CODECS}
        return {
            **codecs,
            "metadata": self.metadata,
            "nulls_and_headers": self.nulls_and_headers,
            "idempotent": self.idempotent,
            "large_records": self.large_records,
            "offsets": self.offsets,
            "json_output": self.json_output,
            "long_poll": self.long_poll,
            "group": self.group,
            "group_share_roundrobin": functools.partial(self.group_share, "roundrobin"),
            "group_share_cooperative": functools.partial(self.group_share, "cooperative-sticky"),
            "transactions": self.transactions,
        }

    def metadata(self) -> str:
        topic = self._task.topic("metadata")
        self._produce(topic, b"one\n")
        found = json.loads(self._kcat("-L", "-J", "-t", topic))
        check(len(found["brokers"]) >= 1, "no broker is listed")
        (listed,) = found["topics"]
        check_equal(listed["topic"], topic, "topic")
        check_equal([part["partition"] for part in listed["partitions"]], [0], "partitions")
        check_equal(self._kcat("-C", "-t", topic, "-e", "-q"), b"one\n", "what was written")
        missing = json.loads(self._kcat("-L", "-J"))
        check(topic in {one["topic"] for one in missing["topics"]}, "the topic is not among all topics")
        return self._kcat("-V").decode().splitlines()[3]

    def produce(self, codec: str) -> None:
        topic = self._task.topic(f"produce-{codec}")
        values = [pattern(number, 200).replace(b"\n", b".") for number in range(50)]
        self._produce(topic, b"\n".join(values) + b"\n", "-z", codec)
        got = self._consume(topic)
        check_equal([one.value for one in got], values, "values")
        check_equal([one.offset for one in got], list(range(50)), "offsets")

    def nulls_and_headers(self) -> None:
        topic = self._task.topic("nulls")
        options = ("-Z", "-K", ":", "-H", "trace=a", "-H", "trace=b", "-H", "empty=", "-H", "null")
        self._produce(topic, b"key:value\n:only value\nonly key:\n:\n", *options)
        got = self._consume(topic)
        check_equal(
            [(one.key, one.value) for one in got],
            [(b"key", b"value"), (None, b"only value"), (b"only key", None), (None, None)],
            "keys and values",
        )
        check_equal({one.headers for one in got}, {"trace=a,trace=b,empty=,null=NULL"}, "headers")

    def idempotent(self) -> None:
        topic = self._task.topic("idempotent")
        values = [f"value {number}".encode() for number in range(1000)]
        self._produce(topic, b"\n".join(values) + b"\n", "-X", "enable.idempotence=true")
        check_equal([one.value for one in self._consume(topic)], values, "values")

    def large_records(self) -> None:
        topic = self._task.topic("large")
        wanted = [noise(seed, LARGE_BYTES) for seed in range(2)]
        with tempfile.TemporaryDirectory() as made:
            files = [Path(made) / str(number) for number in range(len(wanted))]
            for file, content in zip(files, wanted, strict=True):
                file.write_bytes(content)
            # A file that is named is one record.
            self._kcat("-P", "-t", topic, "-p", "0", "-X", "message.max.bytes=2000000", *map(str, files))
        check_equal([one.value for one in self._consume(topic)] == wanted, True, "large values are the same")

    def offsets(self) -> None:
        topic = self._task.topic("offsets")
        for number in range(5):
            self._produce(topic, f"{number}\n".encode())
        got = self._consume(topic)
        check_equal([one.value for one in got], [b"0", b"1", b"2", b"3", b"4"], "all")
        check_equal([one.value for one in self._consume(topic, "-2")], [b"3", b"4"], "the last two")
        check_equal([one.value for one in self._consume(topic, "3")], [b"3", b"4"], "from offset 3")
        third_ms = got[3].timestamp_ms
        by_time = next(one.offset for one in got if one.timestamp_ms >= third_ms)
        found = self._consume(topic, f"s@{third_ms}")
        check_equal([one.offset for one in found], list(range(by_time, 5)), "from a time")
        said = self._kcat("-Q", "-t", f"{topic}:0:{third_ms}").decode()
        check_equal(said.strip(), f"{topic} [0] offset {by_time}", "offset by time")

    def json_output(self) -> None:
        topic = self._task.topic("json")
        self._produce(topic, b"k:v\n", "-K", ":", "-H", "h=1")
        (line,) = self._kcat("-C", "-t", topic, "-e", "-q", "-J").splitlines()
        found = json.loads(line)
        check_equal((found["key"], found["payload"], found["headers"]), ("k", "v", ["h", "1"]), "record as JSON")

    def long_poll(self) -> None:
        topic = self._task.topic("long-poll")
        self._produce(topic, b"first\n")
        command = [os.environ["COMPAT_KCAT"], "-b", self._task.bootstrap, "-C", "-t", topic, "-q", "-c", "3", "-u"]
        reader = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self._environment)
        try:
            assert reader.stdout is not None
            check_equal(reader.stdout.readline(), b"first\n", "what was there")
            self._produce(topic, b"second\n")
            check_equal(reader.stdout.readline(), b"second\n", "what came while the reader waited")
            self._produce(topic, b"third\n")
            check_equal(reader.communicate(timeout=RUN_LIMIT_SECONDS)[0], b"third\n", "what came last")
            check_equal(reader.returncode, 0, "exit code after three records")
        finally:
            reader.kill()
            reader.wait()

    def group(self) -> None:
        """Read in a group; kcat commits when it ends, so the next one begins behind what was read."""
        topic = self._task.topic("group")
        for content in (b"one\ntwo\n", b"three\n"):
            self._produce(topic, content)
            options = ("-X", "auto.offset.reset=earliest", "-c", str(content.count(b"\n")), "-q")
            check_equal(self._kcat(*options, "-G", topic, topic), content, "records read in a group")

    def group_share(self, assignor: str) -> None:
        """Two share four topics, then one of them leaves, and nothing is read twice."""
        topics = [self._task.topic(f"share-{assignor}-{number}") for number in range(4)]
        group = self._task.topic(f"share-{assignor}")
        for topic in topics:
            self._produce(topic, b"first\n")
        settings = ("auto.offset.reset=earliest", f"partition.assignment.strategy={assignor}")
        options = [word for one in (*settings, "heartbeat.interval.ms=300") for word in ("-X", one)]
        shown = ("-u", "-f", "%t %o\\n", "-G", group, *topics)
        command = (os.environ["COMPAT_KCAT"], "-b", self._task.bootstrap, *options, *shown)
        with (
            balanced_consumer(command, self._environment) as one,
            balanced_consumer(command, self._environment) as other,
        ):
            one.wait_for_owned(2)
            other.wait_for_owned(2)
            check(not one.owned & other.owned, f"both own {one.owned & other.owned}")
            wait_until(lambda: len(one.records + other.records) == 4, "both have read what was there")
            other.stop()
            one.wait_for_owned(4)
            for topic in topics:
                self._produce(topic, b"second\n")
            wait_until(lambda: len(one.records + other.records) >= 8, "the one that is left reads the rest")
            one.stop()
        wanted = sorted(f"{topic} {offset}" for topic in topics for offset in (0, 1))
        check_equal(sorted(one.records + other.records), wanted, "what both have read")

    def transactions(self) -> None:
        topic = self._task.topic("transactions")
        self._produce(topic, b"one\n", "-X", f"transactional.id={topic}")
        check_equal([one.value for one in self._consume(topic)], [b"one"], "a committed record")

    def _produce(self, topic: str, content: bytes, *options: str) -> None:
        self._kcat("-P", "-t", topic, "-p", "0", *options, content=content)

    def _consume(self, topic: str, start: str = "beginning") -> list[Seen]:
        out = self._kcat("-C", "-t", topic, "-p", "0", "-o", start, "-e", "-q", "-f", _FORMAT)
        found = []
        while out:
            head, _, rest = out.partition(b"\n")
            offset, timestamp_ms, key_bytes, value_bytes = map(int, head.split())
            key, rest = _take(rest, key_bytes)
            value, rest = _take(rest, value_bytes)
            headers, _, out = rest.partition(b"\n")
            found.append(
                Seen(offset=offset, timestamp_ms=timestamp_ms, key=key, value=value, headers=headers.decode())
            )
        return found

    def _kcat(self, *options: str, content: bytes | None = None) -> bytes:
        command: Sequence[str] = (os.environ["COMPAT_KCAT"], "-b", self._task.bootstrap, *options)
        done = subprocess.run(
            command, input=content, capture_output=True, env=self._environment, timeout=RUN_LIMIT_SECONDS, check=False
        )
        check_equal(done.returncode, 0, f"exit code of {' '.join(command)} ({done.stderr.decode(errors='replace')})")
        return done.stdout


def _take(content: bytes, size_bytes: int) -> tuple[bytes | None, bytes]:
    if size_bytes < 0:
        # kcat prints a null key or value as the word NULL only where it was told a word for it, else nothing.
        return None, content
    return content[:size_bytes], content[size_bytes:]


def main() -> None:
    """Run the cases that the harness asks for."""
    task = task_from_environment()
    run_cases(task, Driver(task).cases())


if __name__ == "__main__":
    main()
