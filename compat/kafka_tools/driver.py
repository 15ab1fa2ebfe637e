"""Drive a broker with Apache Kafka's own command line tools, as a person types them: each call is one JVM.

Their output is read as text, because that is what people read; exit codes are not enough, some tools end with 0 after
an error.
"""

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from compat.driver_kit import Task, check, check_equal, run_cases, task_from_environment

RUN_LIMIT_SECONDS = 120

TOOLS = "org.apache.kafka.tools"
TOPICS = f"{TOOLS}.TopicCommand"
CONFIGS = "kafka.admin.ConfigCommand"
CONSOLE_PRODUCER = f"{TOOLS}.ConsoleProducer"
CONSOLE_CONSUMER = f"{TOOLS}.consumer.ConsoleConsumer"


class Driver:
    """The cases. Each has topics of its own."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._java = [*os.environ["COMPAT_JAVA"].split(), "-cp", os.environ["COMPAT_CLASS_PATH"]]

    def cases(self) -> dict[str, Callable[[], str | None]]:
        """Name what this driver can do."""
        return {
            "topics": self.topics,
            "configs": self.configs,
            "console": self.console,
            "console_codecs": self.console_codecs,
            "verifiable_producer": self.verifiable_producer,
            "producer_performance": self.producer_performance,
            "end_to_end_latency": self.end_to_end_latency,
            "end_to_end_latency_commit": self.end_to_end_latency_commit,
            "broker_api_versions": self.broker_api_versions,
            "get_offsets": self.get_offsets,
            "delete_records": self.delete_records,
            "log_dirs": self.log_dirs,
            "cluster": self.cluster,
            "features": self.features,
            "consumer_performance": self.consumer_performance,
            "verifiable_consumer": self.verifiable_consumer,
            "console_group": self.console_group,
            "consumer_groups": self.consumer_groups,
            "transactions": self.transactions,
        }

    def topics(self) -> None:
        topic = self._task.topic("topics")
        said = self._tool(
            TOPICS, "--create", "--topic", topic, "--partitions", "3", "--config", "retention.ms=3600000"
        )
        check(f"Created topic {topic}." in said, f"--create said: {said}")
        check(topic in self._tool(TOPICS, "--list").split(), "the topic is not listed")
        self._tool(TOPICS, "--alter", "--topic", topic, "--partitions", "5")
        said = self._tool(TOPICS, "--describe", "--topic", topic)
        check("PartitionCount: 5" in said and "retention.ms=3600000" in said, f"--describe said: {said}")
        check_equal(len(re.findall(r"Leader: \d+", said)), 5, "partitions with a leader")
        refused = self._run(TOPICS, "--create", "--topic", topic, bootstrap=True)
        check(
            refused.returncode != 0 and "already exists" in refused.stdout, f"--create again said: {refused.stdout}"
        )
        self._tool(TOPICS, "--delete", "--topic", topic)
        check(topic not in self._tool(TOPICS, "--list").split(), "the deleted topic is listed")

    def configs(self) -> None:
        topic = self._create("configs")
        which = ("--entity-type", "topics", "--entity-name", topic)
        self._tool(CONFIGS, *which, "--alter", "--add-config", "retention.ms=7200000,max.message.bytes=2000000")
        said = self._tool(CONFIGS, *which, "--describe")
        check("retention.ms=7200000" in said and "max.message.bytes=2000000" in said, f"--describe said: {said}")
        self._tool(CONFIGS, *which, "--alter", "--delete-config", "max.message.bytes")
        said = self._tool(CONFIGS, *which, "--describe", "--all")
        check(bool(re.search(r"max\.message\.bytes=1048588 ", said)), f"--describe --all said: {said}")
        check("synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=7200000" in said, f"synonyms are missing: {said}")
        refused = self._run(CONFIGS, *which, "--alter", "--add-config", "no.such.config=1", bootstrap=True)
        check(refused.returncode != 0 and "no.such.config" in refused.stdout, f"a wrong name: {refused.stdout}")

    def console(self) -> None:
        topic = self._task.topic("console")
        options = [
            "parse.headers=true",
            "parse.key=true",
            "null.marker=NIL",
            "key.separator=|",
            "headers.delimiter=;",
        ]
        content = "h:1,h:2;key|value\nNIL;NIL|only value\nh:3;gone|NIL\n"
        self._produce(topic, content, *(word for option in options for word in ("--reader-property", option)))
        shown = ["print.headers=true", "print.key=true", "print.offset=true", "null.literal=NIL", "key.separator=|"]
        said = self._consume(topic, 3, *(word for option in shown for word in ("--formatter-property", option)))
        check_equal(
            said.splitlines(),
            ["Offset:0|h:1,h:2|key|value", "Offset:1|NO_HEADERS|NIL|only value", "Offset:2|h:3|gone|NIL"],
            "what the console consumer shows",
        )

    def console_codecs(self) -> None:
        for codec in ("gzip", "snappy", "lz4", "zstd"):
            topic = self._task.topic(f"console-{codec}")
            self._produce(topic, "one\ntwo\n", "--compression-codec", codec)
            check_equal(self._consume(topic, 2), "one\ntwo\n", f"what was written with {codec}")

    def verifiable_producer(self) -> None:
        topic = self._create("verifiable", "--partitions", "3")
        said = self._tool(f"{TOOLS}.VerifiableProducer", "--topic", topic, "--max-messages", "1000", "--acks", "-1")
        events = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
        sent = [event for event in events if event["name"] == "producer_send_success"]
        check_equal(len({(event["partition"], event["offset"]) for event in sent}), 1000, "offsets")
        check_equal(sorted(int(event["value"]) for event in sent), list(range(1000)), "acknowledged values")
        check_equal(self._offsets(topic), 1000, "records in the topic")

    def producer_performance(self) -> str:
        topic = self._create("performance", "--partitions", "6")
        options = ("--num-records", "50000", "--record-size", "1024", "--throughput", "-1")
        said = self._tool(f"{TOOLS}.ProducerPerformance", "--topic", topic, *options)
        last = said.strip().splitlines()[-1]
        check(last.startswith("50000 records sent"), f"it said: {said}")
        check_equal(self._offsets(topic), 50_000, "records in the topic")
        return last

    def end_to_end_latency(self) -> str:
        """Look at what it measured only: in the end it commits offsets for a group, and complains where it cannot."""
        return self._latency("latency")[0]

    def end_to_end_latency_commit(self) -> None:
        check_equal(self._latency("latency-commit")[1], 0, "exit code")

    def _latency(self, name: str) -> tuple[str, int]:
        topic = self._create(name)
        options = ("--topic", topic, "--num-records", "500", "--producer-acks", "all", "--record-size", "100")
        done = self._run(f"{TOOLS}.EndToEndLatency", *options, bootstrap=True)
        found = re.search(r"Percentiles: .*", done.stdout)
        check(found is not None, f"it said: {done.stdout}")
        return found[0] if found else "", done.returncode

    def broker_api_versions(self) -> str:
        said = self._tool(f"{TOOLS}.BrokerApiVersionsCommand")
        for name in ("Produce(0): ", "Fetch(1): ", "InitProducerId(22): ", "DescribeTopicPartitions(75): "):
            check(name in said, f"{name} is missing in: {said}")
        check("ERROR" not in said, f"it said: {said}")
        unsupported = re.findall(r"(\w+)\(\d+\): UNSUPPORTED", said)
        return f"{len(re.findall(r'usable: ', said))} APIs usable, {len(unsupported)} unsupported"

    def get_offsets(self) -> None:
        topic = self._task.topic("get-offsets")
        self._produce(topic, "a\nb\nc\n")
        for time, offset in (("-1", 3), ("-2", 0), ("-3", 2), ("1", 0)):
            said = self._tool(f"{TOOLS}.GetOffsetShell", "--topic", topic, "--time", time)
            at = int(said.strip().rsplit(":", 1)[1])
            # All three may have the same millisecond: the largest timestamp is then found at any of them.
            check(at == offset or (time == "-3" and at < 3), f"--time {time} said: {said}")

    def delete_records(self) -> None:
        topic = self._task.topic("delete-records")
        self._produce(topic, "a\nb\nc\n")
        with tempfile.TemporaryDirectory() as made:
            file = Path(made) / "offsets.json"
            wanted = {"partitions": [{"topic": topic, "partition": 0, "offset": 2}], "version": 1}
            file.write_text(json.dumps(wanted), encoding="utf-8")
            said = self._tool(f"{TOOLS}.DeleteRecordsCommand", "--offset-json-file", str(file))
        check("low_watermark: 2" in said, f"it said: {said}")
        check_equal(self._consume(topic, 1), "c\n", "what is left")

    def log_dirs(self) -> None:
        topic = self._task.topic("log-dirs")
        self._produce(topic, "a\nb\nc\n")
        said = self._tool(f"{TOOLS}.LogDirsCommand", "--describe", "--topic-list", topic)
        found = json.loads(said.strip().splitlines()[-1])
        parts = [part for broker in found["brokers"] for one in broker["logDirs"] for part in one["partitions"]]
        check_equal([part["partition"] for part in parts], [f"{topic}-0"], "partitions")
        check(parts[0]["size"] > 0, "the partition has no size")

    def cluster(self) -> None:
        said = self._run(f"{TOOLS}.ClusterTool", "cluster-id", "--bootstrap-server", self._task.bootstrap).stdout
        check("Cluster ID: " in said, f"cluster-id said: {said}")
        said = self._run(f"{TOOLS}.ClusterTool", "list-endpoints", "--bootstrap-server", self._task.bootstrap).stdout
        check(self._task.bootstrap.rsplit(":", 1)[1] in said, f"list-endpoints said: {said}")

    def features(self) -> None:
        said = self._run(f"{TOOLS}.FeatureCommand", "--bootstrap-server", self._task.bootstrap, "describe")
        check_equal(said.returncode, 0, f"exit code of describe ({said.stdout})")

    def consumer_performance(self) -> None:
        topic = self._task.topic("consumer-performance")
        self._produce(topic, "".join(f"{number}\n" for number in range(100)))
        options = ("--num-records", "100", "--timeout", "10000", "--hide-header")
        said = self._tool(f"{TOOLS}.ConsumerPerformance", "--topic", topic, *options)
        check_equal(said.strip().splitlines()[-1].split(", ")[4], "100", "records read")

    def verifiable_consumer(self) -> None:
        topic = self._task.topic("verifiable-consumer")
        self._produce(topic, "a\nb\nc\n")
        options = ("--group-id", topic, "--max-messages", "3", "--reset-policy", "earliest")
        said = self._tool(f"{TOOLS}.VerifiableConsumer", "--topic", topic, *options)
        check('"name":"offsets_committed"' in said, f"it said: {said}")

    def console_group(self) -> None:
        topic = self._task.topic("console-group")
        self._produce(topic, "a\nb\nc\n")
        options = ("--from-beginning", "--max-messages", "3", "--timeout-ms", "20000", "--group", topic)
        check_equal(
            self._tool(CONSOLE_CONSUMER, "--topic", topic, *options, both=False), "a\nb\nc\n", "what was read"
        )

    def consumer_groups(self) -> None:
        self.console_group()
        group = self._task.topic("console-group")
        said = self._tool(f"{TOOLS}.consumer.group.ConsumerGroupCommand", "--describe", "--group", group)
        check(group in said, f"it said: {said}")

    def transactions(self) -> None:
        topic = self._create("transactions")
        options = ("--num-records", "1000", "--record-size", "100", "--throughput", "-1", "--transactional-id", topic)
        said = self._tool(f"{TOOLS}.ProducerPerformance", "--topic", topic, *options)
        check("1000 records sent" in said, f"it said: {said}")
        said = self._tool(f"{TOOLS}.TransactionsCommand", "list")
        check(topic in said, f"the transaction is not listed: {said}")

    def _create(self, name: str, *options: str) -> str:
        topic = self._task.topic(name)
        self._tool(TOPICS, "--create", "--topic", topic, *options)
        return topic

    def _offsets(self, topic: str) -> int:
        said = self._tool(f"{TOOLS}.GetOffsetShell", "--topic", topic)
        return sum(int(line.rsplit(":", 1)[1]) for line in said.split())

    def _produce(self, topic: str, content: str, *options: str) -> None:
        self._tool(CONSOLE_PRODUCER, "--topic", topic, *options, content=content)

    def _consume(self, topic: str, count: int, *options: str) -> str:
        """Read without a group: the console consumer does so when a partition is named."""
        where = ("--partition", "0", "--offset", "earliest", "--max-messages", str(count), "--timeout-ms", "30000")
        return self._tool(CONSOLE_CONSUMER, "--topic", topic, *where, *options, both=False)

    def _tool(self, name: str, *options: str, content: str = "", both: bool = True) -> str:
        done = self._run(name, *options, bootstrap=True, content=content, both=both)
        check_equal(done.returncode, 0, f"exit code of {name} {' '.join(options)} ({done.stdout} {done.stderr})")
        return done.stdout

    def _run(
        self, name: str, *options: str, bootstrap: bool = False, content: str = "", both: bool = True
    ) -> "subprocess.CompletedProcess[str]":
        where = ("--bootstrap-server", self._task.bootstrap) if bootstrap else ()
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


def main() -> None:
    """Run the cases that the harness asks for."""
    task = task_from_environment()
    run_cases(task, Driver(task).cases())


if __name__ == "__main__":
    main()
