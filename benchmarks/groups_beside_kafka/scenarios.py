"""What is measured: each scenario plays one turn on one broker; it returns readings and a remark about the load."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from benchmarks.beside_kafka.brokers import Contestant
from benchmarks.beside_kafka.figures import Reading
from benchmarks.beside_kafka.scenarios import count_name
from benchmarks.groups_beside_kafka import jobs, readings
from benchmarks.groups_beside_kafka.brokers import WITHOUT_DELAY
from benchmarks.groups_beside_kafka.crew import perform

NO_HEARTBEAT_OF_ITS_OWN = 0
"""KIP-848 members are told their interval by the coordinator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What one turn of one broker gave."""

    readings: list[Reading]
    remark: str


class Scenario(Protocol):
    """One thing to measure on both brokers, which run with `settings`."""

    @property
    def title(self) -> str: ...

    @property
    def settings(self) -> Mapping[str, str]: ...

    def turn(self, contestant: Contestant) -> Turn: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Speech:
    """How members talk: which protocol, and for the classic one how often."""

    protocol: str
    heartbeat_ms: int = NO_HEARTBEAT_OF_ITS_OWN

    @property
    def title(self) -> str:
        if self.protocol == jobs.CONSUMER:
            return "KIP-848"
        return f"classic, heartbeats every {self.heartbeat_ms / 1000:g} s"


KIP_848 = Speech(protocol=jobs.CONSUMER)
CLASSIC = Speech(protocol=jobs.CLASSIC, heartbeat_ms=3000)
CLASSIC_EAGER_TO_HEAR = Speech(protocol=jobs.CLASSIC, heartbeat_ms=500)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Groups form, hold still, and hand partitions over. `has_aims`: it is the size that promises are made for."""

    speech: Speech
    groups: int
    members: int
    partitions: int
    spread_seconds: float
    rest_seconds: float
    window_seconds: float
    hand_overs: int
    has_aims: bool
    settings: Mapping[str, str]

    @property
    def title(self) -> str:
        size = f"{count_name(self.groups, 'group')} x {self.members} x {count_name(self.partitions, 'partition')}"
        delay = "" if self.settings == WITHOUT_DELAY else ", default initial delay"
        return f"{self.speech.title}, {size}{delay}"

    def turn(self, contestant: Contestant) -> Turn:
        with contestant.topic(self.partitions) as topic:
            done = perform(
                jobs.Fleet(
                    bootstrap=contestant.bootstrap,
                    broker_pid=contestant.pid,
                    topic=topic,
                    protocol=self.speech.protocol,
                    heartbeat_ms=self.speech.heartbeat_ms,
                    groups=self.groups,
                    members=self.members,
                    spread_seconds=self.spread_seconds,
                    rest_seconds=self.rest_seconds,
                    window_seconds=self.window_seconds,
                    hand_overs=self.hand_overs,
                )
            )
        readings.check(done, where=f"{contestant.name}, {self.title}")
        # Nobody promised to be faster than a delay that was asked for.
        p99_kind = readings.SECONDS_AIM if self.settings == WITHOUT_DELAY else readings.SECONDS_AS_KAFKA
        found = []
        if done.window is not None:
            found += readings.window_readings(done.window, has_aim=self.has_aims)
        found += readings.time_readings("all members join", done.all_join_seconds, p99_kind)
        found += readings.time_readings("one member joins", done.one_joins_seconds, p99_kind)
        found += readings.time_readings("one member leaves", done.one_leaves_seconds, p99_kind)
        return Turn(readings=found, remark=readings.remark(done))


@dataclass(frozen=True, slots=True, kw_only=True)
class Commits:
    """Members commit what they own, `partitions_each`, each as fast as it is answered."""

    speech: Speech
    groups: int
    members: int
    partitions_each: int
    seconds: float
    settings: Mapping[str, str]

    @property
    def title(self) -> str:
        who = f"{count_name(self.groups, 'group')} x {count_name(self.members, 'member')}"
        return f"offset commits, {who}, {self.partitions_each} partitions each"

    def turn(self, contestant: Contestant) -> Turn:
        with contestant.topic(self.partitions_each * self.members) as topic:
            done = perform(
                jobs.Commit(
                    bootstrap=contestant.bootstrap,
                    broker_pid=contestant.pid,
                    topic=topic,
                    protocol=self.speech.protocol,
                    heartbeat_ms=self.speech.heartbeat_ms,
                    groups=self.groups,
                    members=self.members,
                    seconds=self.seconds,
                )
            )
        readings.check(done, where=f"{contestant.name}, {self.title}")
        return Turn(readings=readings.commit_readings(done), remark=readings.remark(done))
