"""Groups, by the tools that people use for them: kafka-consumer-groups, kafka-groups, kafka-configs, the consumers.

A tool of the `--group` kind ends with exit code 0 whatever the broker says, so every answer is read.
"""

import re
import tempfile
from collections.abc import Callable
from pathlib import Path

from compat.driver_kit import check, check_equal, wait_until
from compat.kafka_tools.tools import CONFIGS, CONSOLE_CONSUMER, TOOLS, Tools

CONSUMER_GROUPS = f"{TOOLS}.consumer.group.ConsumerGroupCommand"
GROUPS = f"{TOOLS}.GroupsCommand"
RECORDS = 30

Table = list[dict[str, str]]


class GroupCases:
    """The cases. Each has topics and groups of its own."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._task = tools.task

    def cases(self) -> dict[str, Callable[[], str | None]]:
        """Name what this driver can do with groups."""
        return {
            "consumer_performance": self.consumer_performance,
            "console_group": lambda: self.console_group("classic"),
            "console_group_consumer": lambda: self.console_group("consumer"),
            "verifiable_consumer": lambda: self.verifiable_consumer("classic"),
            "verifiable_consumer_consumer": lambda: self.verifiable_consumer("consumer"),
            "consumer_groups_describe": self.describe,
            "consumer_groups_reset": self.reset,
            "consumer_groups_delete": self.delete,
            "groups": self.groups,
            "group_configs": self.group_configs,
        }

    def consumer_performance(self) -> None:
        topic = self._filled("consumer-performance", 1, 100)
        for protocol in ("classic", "consumer"):
            options = (
                "--num-records",
                "100",
                "--timeout",
                "20000",
                "--hide-header",
                "--group",
                f"{topic}-{protocol}",
            )
            which = ("--command-property", f"group.protocol={protocol}")
            said = self._tools.call(f"{TOOLS}.ConsumerPerformance", "--topic", topic, *options, *which)
            check_equal(said.strip().splitlines()[-1].split(", ")[4], "100", f"records read ({protocol}): {said}")

    def console_group(self, protocol: str) -> None:
        """Read in a group; what comes later is read by the next consumer, and nothing twice."""
        topic = self._task.topic(f"console-group-{protocol}")
        for content in ("a\nb\nc\n", "d\ne\n"):
            self._tools.produce(topic, content)
            options = ("--from-beginning", "--max-messages", str(content.count("\n")), "--timeout-ms", "30000")
            which = ("--group", topic, "--command-property", f"group.protocol={protocol}")
            said = self._tools.call(CONSOLE_CONSUMER, "--topic", topic, *options, *which, both=False)
            check_equal(said, content, "what was read")

    def verifiable_consumer(self, protocol: str) -> None:
        """Two members share, one leaves, and the other goes on alone, behind what was committed."""
        topic = self._filled(f"verifiable-{protocol}", 4, RECORDS)
        options = ("--group-protocol", protocol)
        with (
            self._tools.member(topic, topic, *options) as first,
            self._tools.member(topic, topic, *options) as second,
        ):
            first.wait_for_owned(2)
            second.wait_for_owned(2)
            check_equal(first.owned | second.owned, {0, 1, 2, 3}, "partitions of both")
            wait_until(lambda: first.count + second.count == RECORDS, "both have read everything")
            second.stop()
            first.wait_for_owned(4)
            self._tools.produce(topic, _lines(RECORDS))
            wait_until(lambda: first.count + second.count == 2 * RECORDS, "the rest is read, and nothing twice")
            wait_until(lambda: self._lag(topic) == 0, "all of it is committed")
            first.stop()
        said = self._tools.call(
            f"{TOOLS}.VerifiableConsumer",
            "--topic",
            topic,
            "--group-id",
            f"{topic}-2",
            *options,
            "--max-messages",
            "3",
        )
        check('"name":"offsets_committed"' in said and '"success":true' in said, f"--max-messages said: {said}")

    def describe(self) -> None:
        """Describe a group of each protocol while it has a member, and after that has gone."""
        for protocol, assignor in (("classic", "range"), ("consumer", "uniform")):
            topic = self._filled(f"describe-{protocol}", 2, RECORDS)
            with self._tools.member(topic, topic, "--group-protocol", protocol) as member:
                member.wait_for_committed(RECORDS)
                (state,) = self._table("--describe", "--group", topic, "--state")
                check_equal(
                    (state["STATE"], state["#MEMBERS"], state["ASSIGNMENT-STRATEGY"]),
                    ("Stable", "1", assignor),
                    "state",
                )
                (one,) = self._table("--describe", "--group", topic, "--members")
                check_equal(one["#PARTITIONS"], "2", "partitions of the member")
                check("consumer-" in one["CONSUMER-ID"] or len(one["CONSUMER-ID"]) == 22, f"its id: {one}")
                said = self._said("--describe", "--group", topic, "--members", "--verbose")
                check(f"{topic}:0,1" in said, f"--members --verbose said: {said}")
                rows = self._table("--describe", "--group", topic)
                check_equal([row["LAG"] for row in rows], ["0", "0"], "lag")
                check_equal({row["CONSUMER-ID"] for row in rows}, {one["CONSUMER-ID"]}, "owner of the partitions")
                member.stop()
            self._tools.produce(topic, _lines(5))
            said = self._said("--describe", "--group", topic)
            check("has no active members" in said, f"--describe said: {said}")
            check_equal(sum(int(row["LAG"]) for row in _table(said)), 5, "lag after five more records")
            listed = {
                row["GROUP"]: row for row in self._table("--list", "--state", "empty,stable", "--type", protocol)
            }
            check_equal(
                (listed[topic]["STATE"], listed[topic]["TYPE"].lower()), ("Empty", protocol), "how it is listed"
            )
        check(topic in self._said("--list").split(), "the group is not listed")
        said = self._said("--describe", "--group", self._task.topic("no-such-group"))
        check("GroupIdNotFoundException" in said, f"--describe of an unknown group said: {said}")
        said = self._said("--describe", "--all-groups")
        check(said.count(self._task.topic("describe-")) >= 4, f"--describe --all-groups said: {said}")

    def reset(self) -> None:
        """Move a group's offsets in every way there is; refused while it has a member."""
        topic = self._filled("reset", 1, RECORDS)
        which = ("--reset-offsets", "--group", topic, "--topic", topic)
        with self._tools.member(topic, topic) as member:
            member.wait_for_committed(RECORDS)
            said = self._said(*which, "--to-earliest", "--execute")
            check("current state is Stable" in said, f"a reset under a member said: {said}")
            member.stop()
        for how, offset in (
            (("--to-earliest",), 0),
            (("--to-latest",), RECORDS),
            (("--to-offset", "12"), 12),
            (("--shift-by", "-5"), 7),
            (("--to-current",), 7),
            (("--to-datetime", "2001-02-03T04:05:06.000"), 0),
            (("--by-duration", "PT0S"), RECORDS),
        ):
            self._check_reset(how, offset, self._said(*which, *how, "--execute"))
            check_equal(self._offset(topic), offset, f"offset after {how}")
        self._check_reset(("--dry-run",), 3, self._said(*which, "--to-offset", "3", "--dry-run"))
        check_equal(self._offset(topic), RECORDS, "offset after a dry run")
        with tempfile.TemporaryDirectory() as made:
            file = Path(made) / "offsets.csv"
            file.write_text(f'"{topic}",0,4\n', encoding="utf-8")
            options = ("--reset-offsets", "--group", topic, "--from-file", str(file), "--execute")
            self._check_reset(("--from-file",), 4, self._said(*options))
        check_equal(self._offset(topic), 4, "offset from a file")

    def _check_reset(self, how: tuple[str, ...], offset: int, said: str) -> None:
        check_equal([row["NEW-OFFSET"] for row in _table(said)], [str(offset)], f"{' '.join(how)} ({said})")

    def delete(self) -> None:
        topic = self._filled("delete-group", 2, RECORDS)
        with self._tools.member(topic, topic) as member:
            member.wait_for_committed(RECORDS)
            said = self._said("--delete", "--group", topic)
            check("GroupNotEmptyException" in said, f"--delete of a group with a member said: {said}")
            said = self._said("--delete-offsets", "--group", topic, "--topic", topic)
            check("subscribed" in said, f"--delete-offsets under a member said: {said}")
            member.stop()
        said = self._said("--delete-offsets", "--group", topic, "--topic", f"{topic}:1")
        check("Successful" in said, f"--delete-offsets said: {said}")
        check_equal([row["PARTITION"] for row in self._table("--describe", "--group", topic)], ["0"], "what is left")
        said = self._said("--delete", "--group", topic)
        check("was successful" in said, f"--delete said: {said}")
        said = self._said("--delete", "--group", topic)
        check("GroupIdNotFoundException" in said, f"--delete again said: {said}")
        check(topic not in self._said("--list").split(), "the deleted group is listed")

    def groups(self) -> None:
        """List groups of all types with kafka-groups."""
        names = {}
        for protocol in ("classic", "consumer"):
            names[protocol] = topic = self._filled(f"groups-{protocol}", 1, 3)
            self._tools.call(
                f"{TOOLS}.VerifiableConsumer",
                *("--topic", topic, "--group-id", topic, "--group-protocol", protocol, "--max-messages", "3"),
            )
        wanted = {names["classic"]: ("Classic", "consumer"), names["consumer"]: ("Consumer", "consumer")}
        for options, found in (
            ((), wanted),
            (("--consumer",), wanted),
            (("--protocol", "consumer"), wanted),
            (("--group-type", "consumer"), {names["consumer"]: ("Consumer", "consumer")}),
            (("--group-type", "classic"), {names["classic"]: ("Classic", "consumer")}),
            (("--share",), {}),
        ):
            rows = _table(self._tools.call(GROUPS, "--list", *options))
            listed = {row["GROUP"]: (row["TYPE"], row["PROTOCOL"]) for row in rows if row["GROUP"] in wanted}
            check_equal(listed, found, f"kafka-groups --list {' '.join(options)}")

    def group_configs(self) -> None:
        group = self._task.topic("group-configs")
        which = ("--entity-type", "groups", "--entity-name", group)
        settings = "consumer.session.timeout.ms=50000,consumer.heartbeat.interval.ms=6000"
        self._tools.call(CONFIGS, *which, "--alter", "--add-config", settings)
        said = self._tools.call(CONFIGS, *which, "--describe")
        for setting in settings.split(","):
            check(setting in said, f"--describe said: {said}")
        check("DYNAMIC_GROUP_CONFIG:consumer.session.timeout.ms=50000" in said, f"synonyms are missing: {said}")
        self._tools.call(CONFIGS, *which, "--alter", "--delete-config", "consumer.session.timeout.ms")
        said = self._tools.call(CONFIGS, "--group", group, "--describe", "--all")
        check("consumer.session.timeout.ms=45000 " in said, f"--describe --all said: {said}")
        check("consumer.heartbeat.interval.ms=6000 " in said, f"--describe --all said: {said}")
        check(group in self._tools.call(CONFIGS, "--entity-type", "groups", "--describe"), "the group is not listed")
        for wrong in ("no.such.config=1", "consumer.session.timeout.ms=1"):
            refused = self._tools.run(CONFIGS, *which, "--alter", "--add-config", wrong, bootstrap=True)
            check(refused.returncode != 0 and wrong.split("=")[0] in refused.stdout, f"{wrong}: {refused.stdout}")

    def _filled(self, name: str, partitions: int, records: int) -> str:
        topic = self._tools.create(name, "--partitions", str(partitions))
        # Without a small batch the producer would put all of them into one partition.
        self._tools.produce(topic, _lines(records), "--command-property", "batch.size=1")
        return topic

    def _lag(self, group: str) -> int:
        return sum(int(row["LAG"]) for row in self._table("--describe", "--group", group))

    def _offset(self, group: str) -> int:
        (row,) = self._table("--describe", "--group", group)
        return int(row["CURRENT-OFFSET"])

    def _table(self, *options: str) -> Table:
        return _table(self._said(*options))

    def _said(self, *options: str) -> str:
        return self._tools.call(CONSUMER_GROUPS, *options)


def _table(said: str) -> Table:
    """Read what these tools print as a table: a line of names, then lines of values, with blanks between."""
    lines = [re.split(r"\s{2,}|\t| (?=\S)", line.strip()) for line in said.splitlines() if line.strip()]
    heads = [number for number, line in enumerate(lines) if line[0] == "GROUP"]
    check(bool(heads), f"there is no table in: {said}")
    names = [name for name in lines[heads[0]] if name != "(ID)"]
    # The coordinator's address is followed by its id in brackets, in the head and in the rows alike.
    rows = [[value for value in line if not re.fullmatch(r"\(\d+\)", value)] for line in lines[heads[0] + 1 :]]
    return [dict(zip(names, row, strict=False)) for row in rows if row[0] != "GROUP"]


def _lines(count: int) -> str:
    return "".join(f"{number}\n" for number in range(count))
