"""Drive a broker with Apache Kafka's own command line tools, as a person types them: each call is one JVM.

Their output is read as text, because that is what people read; exit codes are not enough, some tools end with 0 after
an error.
"""

import json
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

from compat.driver_kit import Task, check, check_equal, run_cases, task_from_environment
from compat.kafka_tools.brokers import BrokerCases
from compat.kafka_tools.groups import GroupCases
from compat.kafka_tools.tools import CONFIGS, TOOLS, TOPICS, Tools


class Driver:
    """The cases. Each has topics of its own."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._tools = Tools(task)

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
            **BrokerCases(self._tools).cases(),
            **GroupCases(self._tools).cases(),
            "transactions": self.transactions,
        }

    def topics(self) -> None:
        topic = self._task.topic("topics")
        said = self._tools.call(
            TOPICS, "--create", "--topic", topic, "--partitions", "3", "--config", "retention.ms=3600000"
        )
        check(f"Created topic {topic}." in said, f"--create said: {said}")
        check(topic in self._tools.call(TOPICS, "--list").split(), "the topic is not listed")
        self._tools.call(TOPICS, "--alter", "--topic", topic, "--partitions", "5")
        said = self._tools.call(TOPICS, "--describe", "--topic", topic)
        check("PartitionCount: 5" in said and "retention.ms=3600000" in said, f"--describe said: {said}")
        check_equal(len(re.findall(r"Leader: \d+", said)), 5, "partitions with a leader")
        refused = self._tools.run(TOPICS, "--create", "--topic", topic, bootstrap=True)
        check(
            refused.returncode != 0 and "already exists" in refused.stdout, f"--create again said: {refused.stdout}"
        )
        self._tools.call(TOPICS, "--delete", "--topic", topic)
        check(topic not in self._tools.call(TOPICS, "--list").split(), "the deleted topic is listed")

    def configs(self) -> None:
        topic = self._tools.create("configs")
        which = ("--entity-type", "topics", "--entity-name", topic)
        self._tools.call(CONFIGS, *which, "--alter", "--add-config", "retention.ms=7200000,max.message.bytes=2000000")
        said = self._tools.call(CONFIGS, *which, "--describe")
        check("retention.ms=7200000" in said and "max.message.bytes=2000000" in said, f"--describe said: {said}")
        self._tools.call(CONFIGS, *which, "--alter", "--delete-config", "max.message.bytes")
        said = self._tools.call(CONFIGS, *which, "--describe", "--all")
        check(bool(re.search(r"max\.message\.bytes=1048588 ", said)), f"--describe --all said: {said}")
        check("synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=7200000" in said, f"synonyms are missing: {said}")
        refused = self._tools.run(CONFIGS, *which, "--alter", "--add-config", "no.such.config=1", bootstrap=True)
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
        self._tools.produce(topic, content, *(word for option in options for word in ("--reader-property", option)))
        shown = ["print.headers=true", "print.key=true", "print.offset=true", "null.literal=NIL", "key.separator=|"]
        said = self._tools.consume(topic, 3, *(word for option in shown for word in ("--formatter-property", option)))
        check_equal(
            said.splitlines(),
            ["Offset:0|h:1,h:2|key|value", "Offset:1|NO_HEADERS|NIL|only value", "Offset:2|h:3|gone|NIL"],
            "what the console consumer shows",
        )

    def console_codecs(self) -> None:
        for codec in ("gzip", "snappy", "lz4", "zstd"):
            topic = self._task.topic(f"console-{codec}")
            self._tools.produce(topic, "one\ntwo\n", "--compression-codec", codec)
            check_equal(self._tools.consume(topic, 2), "one\ntwo\n", f"what was written with {codec}")

    def verifiable_producer(self) -> None:
        topic = self._tools.create("verifiable", "--partitions", "3")
        said = self._tools.call(
            f"{TOOLS}.VerifiableProducer", "--topic", topic, "--max-messages", "1000", "--acks", "-1"
        )
        events = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
        sent = [event for event in events if event["name"] == "producer_send_success"]
        check_equal(len({(event["partition"], event["offset"]) for event in sent}), 1000, "offsets")
        check_equal(sorted(int(event["value"]) for event in sent), list(range(1000)), "acknowledged values")
        check_equal(self._offsets(topic), 1000, "records in the topic")

    def producer_performance(self) -> str:
        topic = self._tools.create("performance", "--partitions", "6")
        options = ("--num-records", "50000", "--record-size", "1024", "--throughput", "-1")
        said = self._tools.call(f"{TOOLS}.ProducerPerformance", "--topic", topic, *options)
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
        topic = self._tools.create(name)
        options = ("--topic", topic, "--num-records", "500", "--producer-acks", "all", "--record-size", "100")
        done = self._tools.run(f"{TOOLS}.EndToEndLatency", *options, bootstrap=True)
        found = re.search(r"Percentiles: .*", done.stdout)
        check(found is not None, f"it said: {done.stdout}")
        return found[0] if found else "", done.returncode

    def broker_api_versions(self) -> str:
        said = self._tools.call(f"{TOOLS}.BrokerApiVersionsCommand")
        for name in ("Produce(0): ", "Fetch(1): ", "InitProducerId(22): ", "DescribeTopicPartitions(75): "):
            check(name in said, f"{name} is missing in: {said}")
        check("ERROR" not in said, f"it said: {said}")
        unsupported = re.findall(r"(\w+)\(\d+\): UNSUPPORTED", said)
        return f"{len(re.findall(r'usable: ', said))} APIs usable, {len(unsupported)} unsupported"

    def get_offsets(self) -> None:
        topic = self._task.topic("get-offsets")
        self._tools.produce(topic, "a\nb\nc\n")
        for time, offset in (("-1", 3), ("-2", 0), ("-3", 2), ("1", 0)):
            said = self._tools.call(f"{TOOLS}.GetOffsetShell", "--topic", topic, "--time", time)
            at = int(said.strip().rsplit(":", 1)[1])
            # All three may have the same millisecond: the largest timestamp is then found at any of them.
            check(at == offset or (time == "-3" and at < 3), f"--time {time} said: {said}")

    def delete_records(self) -> None:
        topic = self._task.topic("delete-records")
        self._tools.produce(topic, "a\nb\nc\n")
        with tempfile.TemporaryDirectory() as made:
            file = Path(made) / "offsets.json"
            wanted = {"partitions": [{"topic": topic, "partition": 0, "offset": 2}], "version": 1}
            file.write_text(json.dumps(wanted), encoding="utf-8")
            said = self._tools.call(f"{TOOLS}.DeleteRecordsCommand", "--offset-json-file", str(file))
        check("low_watermark: 2" in said, f"it said: {said}")
        check_equal(self._tools.consume(topic, 1), "c\n", "what is left")

    def log_dirs(self) -> None:
        topic = self._task.topic("log-dirs")
        self._tools.produce(topic, "a\nb\nc\n")
        said = self._tools.call(f"{TOOLS}.LogDirsCommand", "--describe", "--topic-list", topic)
        found = json.loads(said.strip().splitlines()[-1])
        parts = [part for broker in found["brokers"] for one in broker["logDirs"] for part in one["partitions"]]
        check_equal([part["partition"] for part in parts], [f"{topic}-0"], "partitions")
        check(parts[0]["size"] > 0, "the partition has no size")

    def cluster(self) -> None:
        said = self._tools.run(
            f"{TOOLS}.ClusterTool", "cluster-id", "--bootstrap-server", self._task.bootstrap
        ).stdout
        check("Cluster ID: " in said, f"cluster-id said: {said}")
        said = self._tools.run(
            f"{TOOLS}.ClusterTool", "list-endpoints", "--bootstrap-server", self._task.bootstrap
        ).stdout
        check(self._task.bootstrap.rsplit(":", 1)[1] in said, f"list-endpoints said: {said}")

    def features(self) -> None:
        said = self._tools.run(f"{TOOLS}.FeatureCommand", "--bootstrap-server", self._task.bootstrap, "describe")
        check_equal(said.returncode, 0, f"exit code of describe ({said.stdout})")

    def transactions(self) -> None:
        topic = self._tools.create("transactions")
        options = ("--num-records", "1000", "--record-size", "100", "--throughput", "-1", "--transactional-id", topic)
        said = self._tools.call(f"{TOOLS}.ProducerPerformance", "--topic", topic, *options)
        check("1000 records sent" in said, f"it said: {said}")
        said = self._tools.call(f"{TOOLS}.TransactionsCommand", "list")
        check(topic in said, f"the transaction is not listed: {said}")

    def _offsets(self, topic: str) -> int:
        said = self._tools.call(f"{TOOLS}.GetOffsetShell", "--topic", topic)
        return sum(int(line.rsplit(":", 1)[1]) for line in said.split())


def main() -> None:
    """Run the cases that the harness asks for."""
    task = task_from_environment()
    run_cases(task, Driver(task).cases())


if __name__ == "__main__":
    main()
