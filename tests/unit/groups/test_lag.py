"""How far groups are behind, as a metric."""

from dataclasses import dataclass
from typing import Any

import pytest

from headrace.groups import lag
from headrace.groups.lag import LagMeter
from headrace.groups.protocol import CommitClaim
from headrace.metadata.memory import MemoryMetadata
from headrace.runtime.metrics import Metrics
from headrace.runtime.rng import seeded_rng
from headrace.testing.clock import ManualClock
from tests.unit.groups.office import NOBODY, TOPIC, joined, offset, open_office


@dataclass(frozen=True)
class Head:
    high_watermark: int


class Index:
    """Knows three streams, which end at 100, 200 and 300."""

    @property
    def view(self) -> "Index":
        return self

    def head(self, stream: int) -> Head | None:
        return Head(100 * stream) if stream in (1, 2, 3) else None


class Topics:
    def get_by_id(self, topic_id: bytes) -> Any:
        return Streams() if topic_id == TOPIC else None


@dataclass(frozen=True)
class Streams:
    streams: tuple[int, ...] = (1, 2, 3)


def shown(metrics: Metrics, group: str) -> str | None:
    for line in metrics.render().decode().splitlines():
        if line.startswith("headrace_group_lag_records{") and f'"{group}"' in line:
            return line.rpartition(" ")[2]
    return None


async def test_the_lag_of_groups_with_members_is_the_sum_over_their_partitions() -> None:
    store, clock, metrics = MemoryMetadata(seeded_rng(1)), ManualClock(), Metrics()
    office = await open_office(store, clock)
    meter = LagMeter(metrics, seats=office.seats, store=store, topics=Topics(), index=Index())  # type: ignore[arg-type]
    member = await joined(office, "orders")
    claim = CommitClaim(member_id=member.member_id, instance_id=None, epoch=member.generation, knows_epochs=True)
    gone = bytes(16)
    committed = {(TOPIC, 0): offset(90), (TOPIC, 1): offset(500), (TOPIC, 2): offset(0), (gone, 0): offset(1)}
    await office.coordinator.commit("orders", claim, committed)  # type: ignore[arg-type]
    await office.coordinator.commit("simple", NOBODY, {(TOPIC, 0): offset(1)})
    await meter.tick()
    assert shown(metrics, "orders") == "310.0", (
        "an offset behind the end counts as no lag, a topic that is gone neither"
    )
    assert shown(metrics, "simple") is None, "nobody reads it"
    await clock.advance(30)
    await meter.tick()
    assert shown(metrics, "orders") == "0.0", "its members are gone"
    await office.close()


async def test_offsets_are_read_page_by_page_and_a_round_goes_on_in_the_next_tick(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lag, "OFFSETS_PER_READ", 2)
    monkeypatch.setattr(lag, "OFFSETS_PER_TICK", 4)
    store, clock, metrics = MemoryMetadata(seeded_rng(1)), ManualClock(), Metrics()
    office = await open_office(store, clock)
    meter = LagMeter(metrics, seats=office.seats, store=store, topics=Topics(), index=Index())  # type: ignore[arg-type]
    for group_id in ("a", "b"):
        member = await joined(office, group_id)
        claim = CommitClaim(member_id=member.member_id, instance_id=None, epoch=member.generation, knows_epochs=True)
        await office.coordinator.commit(group_id, claim, {(TOPIC, partition): offset(0) for partition in range(3)})
    await meter.tick()
    assert shown(metrics, "a") is None, "the round is not over"
    await meter.tick()
    assert (shown(metrics, "a"), shown(metrics, "b")) == ("600.0", "600.0")
    await office.close()
