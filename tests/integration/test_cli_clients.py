"""The command line against a real broker, all of it through processes, as people and scripts use it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.servers.headrace import running_headrace

HEADRACE = str(Path(sysconfig.get_path("scripts")) / "headrace")
LIMIT_SECONDS = 120
BROKER_TIMEOUT = "--timeout=60"
"""On a busy machine an answer may take longer than a person would wait."""

# A shell that runs tests in the background tells its children to ignore interrupts.
LAUNCH = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
# Retention counts from a record's own timestamp: tests write records of today.
NOW_MS = int(time.time() * 1000)


class Cluster:
    """A cluster, and how to run commands against it."""

    def __init__(self, bootstrap: str) -> None:
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")},
            "HEADRACE_BOOTSTRAP": bootstrap,
        }

    def run(self, *words: str, given: bytes = b"", code: int = 0) -> "subprocess.CompletedProcess[bytes]":
        """Run a command, which must end with this code."""
        ended = subprocess.run(
            [HEADRACE, *words, BROKER_TIMEOUT],
            input=given,
            capture_output=True,
            env=self.environment,
            check=False,
            timeout=LIMIT_SECONDS,
        )
        assert ended.returncode == code, (words, ended.returncode, ended.stdout, ended.stderr)
        return ended

    def ask(self, *words: str) -> Any:
        """Run a command and return what it prints as JSON."""
        return json.loads(self.run(*words, "--output=json").stdout)

    def read(self, topic: str, *options: str) -> list[bytes]:
        """Return the lines that `consume` prints up to the end of the topic."""
        return self.run("consume", topic, "-e", *options).stdout.splitlines()

    @contextlib.contextmanager
    def following(self, topic: str, *options: str) -> Iterator["subprocess.Popen[bytes]"]:
        command: Sequence[str] = [sys.executable, "-c", LAUNCH, HEADRACE, "consume", topic, *options, BROKER_TIMEOUT]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self.environment
        ) as process:
            try:
                yield process
            finally:
                process.kill()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    # With the default retention: topics show only what was set for them.
    with running_headrace(tmp_path_factory.mktemp("data"), settings={"log.retention.ms": "-2"}) as broker:
        yield Cluster(broker.bootstrap)


def test_a_topic_is_created_listed_described_altered_and_deleted(cluster: Cluster) -> None:
    created = cluster.ask("topic", "create", "life", "--partitions=3", "--config=retention.ms=100000")
    assert created == {"topic": "life", "outcome": "created"}
    assert b"--if-not-exists" in cluster.run("topic", "create", "life", code=1).stderr
    assert cluster.ask("topic", "create", "life", "--if-not-exists")["outcome"] == "exists"
    assert cluster.ask("topic", "create", "unborn", "--validate-only")["outcome"] == "valid"

    listed = {topic["topic"]: topic for topic in cluster.ask("topic", "list")}
    assert listed["life"]["partitions"] == 3 and not listed["life"]["internal"]
    assert "unborn" not in listed

    cluster.run("produce", "life", "-p", "1", given=b"a\nb\n")
    [described] = cluster.ask("topic", "describe", "life")
    assert described["topic_id"] == listed["life"]["topic_id"]
    places = [(row["partition"], row["earliest_offset"], row["latest_offset"]) for row in described["partitions"]]
    assert places == [(0, 0, 0), (1, 0, 2), (2, 0, 0)]
    assert all(row["leader"] is not None and row["leader_address"] for row in described["partitions"])
    assert described["configs"]["retention.ms"] == {"value": "100000", "source": "dynamic topic"}

    cluster.run("topic", "alter", "life", "--partitions=5", "--set=cleanup.policy=compact", "--unset=retention.ms")
    [altered] = cluster.ask("topic", "describe", "life")
    assert len(altered["partitions"]) == 5 and altered["partitions"][1]["latest_offset"] == 2
    assert altered["configs"]["cleanup.policy"]["value"] == "compact"
    assert "retention.ms" not in altered["configs"]

    assert cluster.run("topic", "delete", "life", "--yes").stdout == b"deleted topic life\n"
    assert "life" not in {topic["topic"] for topic in cluster.ask("topic", "list")}
    assert b"there is no topic life" in cluster.run("consume", "life", "-e", code=1).stderr


def test_what_the_cluster_refuses_is_told_in_its_words_and_changes_nothing(cluster: Cluster) -> None:
    cluster.run("topic", "create", "refused", "--partitions=2")
    for words in (
        ("topic", "create", "a b"),
        ("topic", "create", "x", "--config=no.such.config=1"),
        ("topic", "create", "x", "--config=retention.ms=soon"),
        ("topic", "alter", "refused", "--set=retention.ms=soon"),
        ("topic", "alter", "refused", "--partitions=1", "--set=retention.ms=7"),
        ("topic", "describe", "no-such-topic"),
        ("topic", "delete", "no-such-topic", "--yes"),
    ):
        ended = cluster.run(*words, code=1)
        assert ended.stderr.startswith(b"headrace: cannot ") and ended.stderr.count(b"\n") == 1
    assert "x" not in {topic["topic"] for topic in cluster.ask("topic", "list")}
    [described] = cluster.ask("topic", "describe", "refused")
    assert len(described["partitions"]) == 2 and "retention.ms" not in described["configs"]


def test_bytes_keys_headers_and_nulls_come_back_as_they_went_in(cluster: Cluster) -> None:
    cluster.run("topic", "create", "bytes", "--partitions=1")
    given = b"k1:v1;k2:\x00\xff\n\xfe;k3:;no key"
    ended = cluster.run("produce", "bytes", "-K:", "-D;", "-Z", "-Ha=1", "-Ha=2", "-zzstd", given=given)
    assert ended.stderr == b"headrace: 4 messages acknowledged in bytes\n"
    assert cluster.run("consume", "bytes", "-e", "-K:", "-D;").stdout == b"k1:v1;k2:\x00\xff\n\xfe;k3:;:no key;"
    assert cluster.read("bytes", "-f", r"%t [%p] %o: %k (%K) %S %h\n") == [
        b"bytes [0] 0: k1 (2) 2 a=1,a=2",
        b"bytes [0] 1: k2 (2) 4 a=1,a=2",
        b"bytes [0] 2: k3 (2) -1 a=1,a=2",
        b"bytes [0] 3:  (-1) 6 a=1,a=2",
    ]
    row = json.loads(cluster.read("bytes", "--json")[1])
    assert (row["key"], row["value"], row["value_encoding"]) == ("k2", "AP8K/g==", "base64")


def test_json_copies_a_topic(cluster: Cluster) -> None:
    for topic in ("original", "copy"):
        cluster.run("topic", "create", topic, "--partitions=2")
    rows = [
        {"value": "v" * 100, "key": None, "partition": 0, "timestamp": NOW_MS},
        {"value": None, "key": "ä", "partition": 1, "headers": [{"key": "h", "value": None}]},
        {"value": "", "key": "", "partition": 1, "headers": {"a": "b"}},
    ]
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    cluster.run("produce", "original", "--json", "-zsnappy", given=lines)
    printed = cluster.run("consume", "original", "-e", "--json").stdout
    cluster.run("produce", "copy", "--json", "-zsnappy", given=printed)
    copied = [_without_topic(line) for line in cluster.read("copy", "--json")]
    assert sorted(copied) == sorted(_without_topic(line) for line in printed.splitlines())
    assert len(copied) == len(rows)
    assert cluster.read("copy", "-p0", "-f%T") == [b"%d" % NOW_MS]


def _without_topic(line: bytes) -> str:
    return json.dumps({**json.loads(line), "topic": ""})


def test_a_reading_starts_where_it_is_told(cluster: Cluster) -> None:
    cluster.run("topic", "create", "starts", "--partitions=1")
    rows = [{"value": str(number), "timestamp": NOW_MS + number} for number in range(10)]
    cluster.run("produce", "starts", "--json", given="".join(json.dumps(row) + "\n" for row in rows).encode())
    for where, expected in {
        "beginning": range(10),
        "end": range(0),
        "7": range(7, 10),
        "-2": range(8, 10),
        "-20": range(10),
        f"@{NOW_MS + 4}": range(4, 10),
        f"@{NOW_MS + 1000}": range(0),
    }.items():
        assert cluster.read("starts", "-o", where) == [b"%d" % number for number in expected], where
    assert cluster.run("consume", "starts", "-c3", "-o2").stdout == b"2\n3\n4\n"
    assert b"holds offsets 0 to 10 (exclusive), not 11" in cluster.run("consume", "starts", "-o11", code=1).stderr


def test_many_messages_over_many_partitions_arrive_once_each(cluster: Cluster) -> None:
    cluster.run("topic", "create", "many", "--partitions=10")
    lines = b"".join(b"%d:%d\n" % (number % 1000, number) for number in range(100_000))
    summary = cluster.run("produce", "many", "-K:", "--output=json", given=lines)
    assert json.loads(summary.stdout) == {"topic": "many", "acknowledged": 100_000, "failed": 0, "failures": []}
    read = cluster.read("many")
    assert len(read) == 100_000 and set(map(int, read)) == set(range(100_000))


def test_a_failed_message_is_named_and_spares_its_neighbours(cluster: Cluster) -> None:
    cluster.run("topic", "create", "failed", "--partitions=1", "--config=max.message.bytes=1000")
    given = b"small\n" + os.urandom(2000).hex().encode() + b"\nsmall\n"
    ended = cluster.run("produce", "failed", "-Xbatch.num.messages=1", given=given, code=1)
    assert ended.stderr.startswith(b"headrace: message 2 failed: too large")
    assert ended.stderr.endswith(b"headrace: 2 messages acknowledged in failed, 1 failed\n")
    assert cluster.read("failed") == [b"small", b"small"]


def test_following_prints_what_comes_later_and_ends_on_an_interrupt(cluster: Cluster) -> None:
    cluster.run("topic", "create", "follow", "--partitions=2")
    cluster.run("produce", "follow", given=b"early\n")
    with cluster.following("follow") as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == b"early\n"
        cluster.run("produce", "follow", given=b"late\n")
        assert process.stdout.readline() == b"late\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_SECONDS) == 130
        assert process.stderr.read() == b""


def test_a_reader_that_has_seen_enough_ends_it_without_a_word(cluster: Cluster) -> None:
    cluster.run("topic", "create", "pipe", "--partitions=1")
    cluster.run("produce", "pipe", given=b"x\n")
    with cluster.following("pipe") as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.read(1) == b"x"
        process.stdout.close()
        assert process.wait(LIMIT_SECONDS) == 0
        assert process.stderr.read() == b""


def test_a_topic_appears_with_its_first_message_where_the_cluster_allows_it(cluster: Cluster) -> None:
    cluster.run("produce", "by-itself", given=b"x\n")
    assert cluster.read("by-itself") == [b"x"]
