"""KIP-848 members that lose answers to heartbeats: a hand-over goes on, long before the rebalance timeout of minutes.

librdkafka takes the heartbeat interval for its request timeout. It drops a later answer, and goes on without saying
again what it owns: after a pause of the broker it has never heard that it should let go of something.
"""

import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from headrace.model.error_codes import ErrorCode
from tests.integration.clients.librdkafka import create_topic
from tests.integration.clients.waiting import eventually, free_port
from tests.integration.groups.far_proxy import far_away
from tests.integration.groups.group_wire import JOINING_EPOCH, Claim, GroupClient
from tests.integration.groups.team import CONSUMER, Team
from tests.servers.headrace import HeadraceProcess, running_headrace

PARTITIONS = 4
MAX_ROUNDS = 20
PAUSE_SECONDS = 1.5
"""Longer than the heartbeat interval, shorter than the broker's session."""

PAUSES = 6
LATER_SECONDS = 0.1
"""Without the repeated assignments, one pause in three leaves a member stuck."""

FAR_SECONDS = 1.1
"""Longer than the interval at rest and librdkafka's look for late answers (every second) would forgive."""


@dataclass
class RawMember:
    """A member that does as librdkafka does: what it owns it says once. Counts heartbeats, and loses one answer."""

    client: GroupClient
    group: str
    topic: str
    lost: int | None = None
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    epoch: int = JOINING_EPOCH
    owned: set[int] = field(default_factory=set)
    reported: set[int] | None = None
    beats: int = 0

    def beat(self) -> None:
        claim = Claim(group=self.group, member_id=self.id, epoch=self.epoch)
        if self.epoch == JOINING_EPOCH:
            self.owned, self.reported = set(), set()
            answer = self.client.consumer_beat(claim, topics=[self.topic], owned={})
        elif self.reported == self.owned:
            answer = self.client.consumer_beat(claim)
        else:
            self.reported = set(self.owned)
            report = {self.client.topic_id(self.topic): sorted(self.owned)}
            answer = self.client.consumer_beat(claim, owned=report)
        number, self.beats = self.beats, self.beats + 1
        if number == self.lost:
            return
        assert answer.error_code == ErrorCode.NONE, answer
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.owned = {number for part in answer.assignment.topic_partitions for number in part.partitions}


@pytest.fixture
def client(port: int) -> Iterator[GroupClient]:
    with GroupClient(port) as connected:
        yield connected


@pytest.mark.parametrize("loser", ["old", "new"])
def test_two_members_share_though_any_one_answer_of_the_hand_over_is_lost(
    client: GroupClient, bootstrap: str, new_name: Callable[[str], str], loser: str
) -> None:
    topic = new_name(f"lost-{loser}")
    create_topic(bootstrap, topic, PARTITIONS)
    for lost in range(6):
        group = f"{topic}-{lost}"
        old, new = RawMember(client, group, topic), RawMember(client, group, topic)
        old.beat()
        old.beat()
        if loser == "old":
            old.lost = old.beats + lost
        else:
            new.lost = lost
        for _ in range(MAX_ROUNDS):
            old.beat()
            new.beat()
            assert not old.owned & new.owned
        assert (len(old.owned), len(new.owned)) == (2, 2), f"answer {lost} was lost"
        assert client.consumer_described(group).group_state == "Stable"


def test_librdkafka_members_share_after_pauses_of_the_broker_while_another_joins(
    broker: HeadraceProcess, new_name: Callable[[str], str]
) -> None:
    with Team(broker.bootstrap, new_name("pauses"), partitions=PARTITIONS) as team:
        team.join("first", CONSUMER)
        team.wait_for_shares(PARTITIONS)
        for number in range(PAUSES):
            with GroupClient(broker.kafka_port) as client:
                second = team.join(f"second-{number}", CONSUMER)
                eventually("it has joined", lambda: len(client.consumer_described(team.group).members) == 2)
            # The first member may have been told to let go, or not yet: pauses begin at different moments.
            time.sleep(number * LATER_SECONDS)
            broker.pause()
            time.sleep(PAUSE_SECONDS)
            broker.resume()
            team.wait_for_shares(PARTITIONS // 2, PARTITIONS // 2)
            team.leave(second)
            team.wait_for_shares(PARTITIONS)


def test_librdkafka_members_share_where_every_answer_takes_longer_than_the_usual_interval(
    tmp_path: Path, new_name: Callable[[str], str]
) -> None:
    port = free_port()
    settings = {"advertised.listeners": f"127.0.0.1:{port}"}
    with (
        running_headrace(tmp_path, settings=settings) as broker,
        far_away(port, broker.kafka_port, delay_s=FAR_SECONDS),
        Team(f"127.0.0.1:{port}", new_name("far"), partitions=PARTITIONS) as team,
    ):
        team.join("first", CONSUMER)
        team.wait_for_shares(PARTITIONS)
        second = team.join("second", CONSUMER)
        team.wait_for_shares(PARTITIONS // 2, PARTITIONS // 2)
        team.leave(second)
        team.wait_for_shares(PARTITIONS)
        team.verify_faultless()
