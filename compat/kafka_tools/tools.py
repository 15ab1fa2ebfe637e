"""Call Apache Kafka's command line tools as a person does: one JVM per call, and their output is text to read."""

import contextlib
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

from compat.driver_kit import Task, check, check_equal, wait_until

RUN_LIMIT_SECONDS = 120

TOOLS = "org.apache.kafka.tools"
TOPICS = f"{TOOLS}.TopicCommand"
CONFIGS = "kafka.admin.ConfigCommand"
CONSOLE_PRODUCER = f"{TOOLS}.ConsoleProducer"
CONSOLE_CONSUMER = f"{TOOLS}.consumer.ConsoleConsumer"
VERIFIABLE_CONSUMER = f"{TOOLS}.VerifiableConsumer"

Event = dict[str, Any]


class Tools:
    """The tools, and the broker that they are to talk to."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self._java = [*os.environ["COMPAT_JAVA"].split(), "-cp", os.environ["COMPAT_CLASS_PATH"]]

    def call(self, name: str, *options: str, content: str = "", both: bool = True) -> str:
        """Call a tool that must succeed, and return what it said: on both streams, or on its standard output."""
        done = self.run(name, *options, bootstrap=True, content=content, both=both)
        check_equal(done.returncode, 0, f"exit code of {name} {' '.join(options)} ({done.stdout} {done.stderr})")
        return done.stdout

    def run(
        self, name: str, *options: str, bootstrap: bool = False, content: str = "", both: bool = True
    ) -> "subprocess.CompletedProcess[str]":
        """Call a tool that may fail. Some take the broker's address in another place, so it is given on demand."""
        where = ("--bootstrap-server", self.task.bootstrap) if bootstrap else ()
        done = subprocess.run(
            [*self._java, name, *where, *options],
            input=content,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if both else subprocess.PIPE,
            text=True,
            timeout=RUN_LIMIT_SECONDS,
            check=False,
        )
        done.stdout = "".join(line for line in done.stdout.splitlines(True) if not line.startswith("SLF4J"))
        return done

    def create(self, name: str, *options: str) -> str:
        """Create a topic of this run and return its name."""
        topic = self.task.topic(name)
        self.call(TOPICS, "--create", "--topic", topic, *options)
        return topic

    def produce(self, topic: str, content: str, *options: str) -> None:
        """Write one record per line."""
        self.call(CONSOLE_PRODUCER, "--topic", topic, *options, content=content)

    def consume(self, topic: str, count: int, *options: str) -> str:
        """Read without a group: the console consumer does so when a partition is named."""
        where = ("--partition", "0", "--offset", "earliest", "--max-messages", str(count), "--timeout-ms", "30000")
        return self.call(CONSOLE_CONSUMER, "--topic", topic, *where, *options, both=False)

    @contextlib.contextmanager
    def member(self, topic: str, group: str, *options: str) -> Iterator["VerifiableMember"]:
        """Run a VerifiableConsumer as a member of a group, and end it on the way out."""
        where = ("--bootstrap-server", self.task.bootstrap, "--topic", topic, "--group-id", group)
        command = [*self._java, VERIFIABLE_CONSUMER, *where, *options]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            try:
                yield VerifiableMember(process)
            finally:
                if process.poll() is None:
                    process.kill()


class VerifiableMember:
    """A running VerifiableConsumer. It tells what happens to it, one JSON object per line."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def events(self) -> list[Event]:
        """What it has told so far, in order."""
        return [json.loads(line) for line in list(self._lines) if line.startswith("{")]

    @property
    def owned(self) -> set[int]:
        """The partitions that it has, by what it was told of assignments and revocations."""
        owned: set[int] = set()
        for event in self.events:
            parts = {part["partition"] for part in event.get("partitions", ())}
            if event["name"] == "partitions_assigned":
                owned |= parts
            elif event["name"] == "partitions_revoked":
                owned -= parts
        return owned

    @property
    def committed(self) -> dict[int, int]:
        """The offsets that it has committed, by partition."""
        found = {}
        for event in self.events:
            if event["name"] == "offsets_committed":
                check(event["success"], f"a commit failed: {event}")
                found.update({part["partition"]: part["offset"] for part in event["offsets"]})
        return found

    @property
    def count(self) -> int:
        """How many records it has read."""
        return sum(event["count"] for event in self.events if event["name"] == "records_consumed")

    def wait_for_owned(self, count: int) -> None:
        """Wait until it has so many partitions."""
        wait_until(lambda: self._alive() and len(self.owned) == count, f"a member owns {count} partitions")

    def wait_for_committed(self, count: int) -> None:
        """Wait until the offsets that it has committed come to so many records."""
        wait_until(
            lambda: self._alive() and sum(self.committed.values()) == count,
            f"offsets of {count} records are committed",
        )

    def stop(self) -> None:
        """Ask it to end, as the shell does: it leaves its group first."""
        self._process.terminate()
        self._process.wait(RUN_LIMIT_SECONDS)
        self._reader.join(RUN_LIMIT_SECONDS)
        check_equal(self.events[-1]["name"], "shutdown_complete", "its last event")

    def _alive(self) -> bool:
        check(self._process.poll() is None, f"a member has ended: {self._lines[-20:]}")
        return True

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line)
