"""Brokers and where partitions lie, by the tools that people use for them: kafka-configs, kafka-reassign-partitions,
kafka-leader-election, kafka-features, kafka-metadata-quorum.

Nothing moves in Headrace, so plans are over as soon as they are made. The tools must say so, and never end with a
lost connection.
"""

import json
import re
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from compat.driver_kit import check, check_equal, wait_until
from compat.kafka_tools.tools import CONFIGS, TOOLS, TOPICS, Tools

REASSIGN = f"{TOOLS}.reassign.ReassignPartitionsCommand"
ELECTION = f"{TOOLS}.LeaderElectionCommand"
QUORUM = f"{TOOLS}.MetadataQuorumCommand"
FEATURES = f"{TOOLS}.FeatureCommand"

HARMLESS = "log.cleaner.delete.retention.ms"
"""A config that can be changed although other cases run at the same time."""

LOST = ("TimeoutException", "DisconnectException", "EOFException")


class BrokerCases:
    """The cases. Each has topics of its own, and leaves brokers as they were."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._task = tools.task

    def cases(self) -> dict[str, Callable[[], str | None]]:
        """Name what this driver can do with brokers."""
        return {
            "broker_configs": self.configs,
            "broker_configs_default": self.configs_for_all,
            "replica_assignment": self.replica_assignment,
            "leader_election": self.leader_election,
            "reassign_partitions": self.reassign_partitions,
            "features_update": self.features_update,
            "metadata_quorum": self.metadata_quorum,
        }

    def configs(self) -> None:
        which = ("--entity-type", "brokers", "--entity-name", self._node_id())
        self._tools.call(CONFIGS, *which, "--alter", "--add-config", f"{HARMLESS}=86400001")
        try:
            self._wait_for(f"DYNAMIC_BROKER_CONFIG:{HARMLESS}=86400001", *which)
        finally:
            self._tools.call(CONFIGS, *which, "--alter", "--delete-config", HARMLESS)
        self._wait_for(f"{HARMLESS}=86400000 ", *which, "--all")
        said = self._tools.call(CONFIGS, *which, "--describe", "--all")
        for name in ("broker.id", "listeners", "log.dirs", "num.partitions", "default.replication.factor"):
            check(f" {name}=" in said, f"{name} is missing in: {said}")
        for wrong in ("broker.id=77", f"{HARMLESS}=soon"):
            self._refused(CONFIGS, *which, "--alter", "--add-config", wrong, naming=wrong.split("=")[0])

    def configs_for_all(self) -> None:
        which = ("--entity-type", "brokers", "--entity-default")
        self._tools.call(CONFIGS, *which, "--alter", "--add-config", f"{HARMLESS}=86400002")
        try:
            one = ("--entity-type", "brokers", "--entity-name", self._node_id(), "--all")
            self._wait_for(f"DYNAMIC_DEFAULT_BROKER_CONFIG:{HARMLESS}=86400002", *one)
            self._wait_for(f"{HARMLESS}=86400002", *which)
        finally:
            self._tools.call(CONFIGS, *which, "--alter", "--delete-config", HARMLESS)
        self._refused(CONFIGS, *which, "--alter", "--add-config", "broker.id=77", naming="broker.id")

    def replica_assignment(self) -> None:
        node, topic = self._node_id(), self._task.topic("placed")
        self._tools.call(TOPICS, "--create", "--topic", topic, "--replica-assignment", f"{node},{node}")
        grown = ("--partitions", "3", "--replica-assignment", f"{node},{node},{node}")
        self._tools.call(TOPICS, "--alter", "--topic", topic, *grown)
        said = self._tools.call(TOPICS, "--describe", "--topic", topic)
        check("PartitionCount: 3" in said, f"--describe said: {said}")
        other = self._task.topic("placed-elsewhere")
        self._refused(TOPICS, "--create", "--topic", other, "--replica-assignment", "7777", naming="7777")

    def leader_election(self) -> None:
        topic = self._tools.create("elected", "--partitions", "2")
        kind = ("--election-type", "preferred")
        said = self._tools.call(ELECTION, *kind, "--topic", topic, "--partition", "1")
        check("already elected" in said or "Successfully completed" in said, f"it said: {said}")
        self._tools.call(ELECTION, *kind, "--all-topic-partitions")
        self._refused(ELECTION, *kind, "--topic", f"{topic}-not", "--partition", "0", naming="could not be elected")

    def reassign_partitions(self) -> None:
        topic, node = self._tools.create("reassigned", "--partitions", "2"), self._node_id()
        with tempfile.TemporaryDirectory() as made:
            topics = _written(Path(made) / "topics.json", {"version": 1, "topics": [{"topic": topic}]})
            said = self._tools.call(
                REASSIGN, "--generate", "--topics-to-move-json-file", topics, "--broker-list", node
            )
            proposed = json.loads(said.strip().splitlines()[-1])
            check_equal(len(proposed["partitions"]), 2, "partitions of the plan")
            plan = ("--reassignment-json-file", _written(Path(made) / "plan.json", proposed))
            said = self._tools.call(REASSIGN, "--execute", *plan, "--throttle", "1000000")
            check("Successfully started" in said, f"--execute said: {said}")
            said = self._tools.call(REASSIGN, "--verify", *plan)
            check_equal(said.count("is completed"), 2, f"partitions that are moved ({said})")
            said = self._tools.call(REASSIGN, "--list")
            check(topic not in said, f"--list said: {said}")
            self._tools.call(REASSIGN, "--cancel", *plan)

    def features_update(self) -> None:
        said = self._features("upgrade", "--feature", "group.version=1")
        check("group.version was upgraded to 1" in said, f"it said: {said}")
        said = self._features("upgrade", "--feature", "no.such=1")
        check("Could not upgrade no.such to 1" in said, f"it said: {said}")

    def metadata_quorum(self) -> str:
        """Apache Kafka has a quorum, Headrace says that it has none; either is an answer."""
        where = ("--bootstrap-server", self._task.bootstrap)
        said = self._tools.run(QUORUM, *where, "describe", "--status").stdout
        check("LeaderId:" in said or "no Raft quorum" in said, f"it said: {said}")
        return said.strip().splitlines()[0]

    def _features(self, *options: str) -> str:
        return self._tools.run(FEATURES, "--bootstrap-server", self._task.bootstrap, *options).stdout

    def _node_id(self) -> str:
        said = self._tools.call(f"{TOOLS}.BrokerApiVersionsCommand")
        found = re.search(r"\(id: (\d+) rack", said)
        check(found is not None, f"no broker is named in: {said}")
        return found[1] if found else ""

    def _wait_for(self, wanted: str, *which: str) -> None:
        """Wait until a description holds something: Apache Kafka applies a change a moment after its answer."""
        wait_until(lambda: wanted in self._tools.call(CONFIGS, *which, "--describe"), f"{wanted} is described")

    def _refused(self, name: str, *options: str, naming: str) -> None:
        """Check that a tool is refused, with a sentence that names why and not with a lost connection."""
        done = self._tools.run(name, *options, bootstrap=True)
        check(done.returncode != 0 and naming in done.stdout, f"{' '.join(options)} said: {done.stdout}")
        check(not any(word in done.stdout for word in LOST), f"{' '.join(options)} said: {done.stdout}")


def _written(path: Path, content: Mapping[str, object]) -> str:
    path.write_text(json.dumps(content), encoding="utf-8")
    return str(path)
