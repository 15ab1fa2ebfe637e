"""Dynamic configs of brokers: stored in one transaction, known to every broker, and checked with all that is set."""

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from headrace.cluster.broker_configs import BROKER_CONFIG, BrokerConfigRecord, BrokerConfigs, InvalidBrokerConfig
from headrace.errors import Corrupt, OutcomeUnknown
from headrace.metadata import keys
from headrace.metadata.port import Decision, Reads
from headrace.topics.configs import ConfigValue
from tests.unit.topics.registry_kit import SwiftClock, UnsureStore


class Rules:
    """Takes every value but `bad`, and no two of the same value together."""

    def check(self, changed: Mapping[str, str], *, for_all: Mapping[str, str], own: Mapping[str, str]) -> None:
        together = {**for_all, **own}
        if "bad" in changed.values() or len(set(together.values())) < len(together):
            raise InvalidBrokerConfig(f"not allowed: {sorted(together.items())}")

    def describe(self, *, for_all: Mapping[str, str], own: Mapping[str, str]) -> Sequence[ConfigValue]:
        return ()

    def describe_for_all(self, for_all: Mapping[str, str]) -> Sequence[ConfigValue]:
        return ()

    def edited(self, name: str, now: str | None, elements: str, *, is_append: bool) -> str:
        return f"{now}{'+' if is_append else '-'}{elements}"


class Kit:
    """A store, and brokers that remember what is in it."""

    def __init__(self) -> None:
        self.store = UnsureStore()
        self.clock = SwiftClock()
        self.one, self.two = self.another(1), self.another(2)

    def another(self, node_id: int) -> BrokerConfigs:
        return BrokerConfigs(self.store, node_id=node_id, rules=Rules(), clock=self.clock)

    async def stored(self) -> dict[str, BrokerConfigRecord]:
        found = await self.store.range(keys.prefix_range(keys.BROKER_CONFIGS, limit=100))
        return {item.key.rpartition("/")[2]: BROKER_CONFIG.decode(item.value, item.key) for item in found}


@pytest.fixture
def kit() -> Kit:
    return Kit()


async def test_what_is_set_is_stored_per_broker_and_for_all(kit: Kit) -> None:
    await kit.one.set({"a": "1"}, for_all=True)
    await kit.two.set({"a": "2", "b": " 3 "}, for_all=False)
    assert await kit.stored() == {
        "all": BrokerConfigRecord(None, {"a": "1"}),
        "00000000000000000002": BrokerConfigRecord(2, {"a": "2", "b": " 3 "}),
    }
    assert (kit.one.for_all, kit.one.own) == ({"a": "1"}, {})
    assert (kit.two.for_all, kit.two.own) == ({"a": "1"}, {"a": "2", "b": " 3 "})


async def test_unsetting_the_last_one_leaves_nothing_behind(kit: Kit) -> None:
    await kit.one.set({"a": "1", "b": "2"}, for_all=False)
    await kit.one.set({"a": None, "never.set": None}, for_all=False)
    assert kit.one.own == {"b": "2"}
    await kit.one.set({}, for_all=False, replace=True)
    assert (kit.one.own, await kit.stored()) == ({}, {})


async def test_a_change_that_is_refused_or_only_tried_out_changes_nothing(kit: Kit) -> None:
    await kit.one.set({"a": "1"}, for_all=True)
    before = await kit.stored()
    with pytest.raises(InvalidBrokerConfig):
        await kit.one.set({"b": "2", "c": "bad"}, for_all=False)
    with pytest.raises(InvalidBrokerConfig, match="'a', '1'"):
        await kit.two.set({"b": "1"}, for_all=False)  # it goes by what is in the store, not by what it has heard
    await kit.one.set({"a": "5"}, for_all=True, validate_only=True)
    assert await kit.stored() == before


async def test_unsetting_is_checked_with_what_stays(kit: Kit) -> None:
    await kit.one.set({"a": "1", "b": "2"}, for_all=True)
    await kit.one.set({"b": "1", "a": "2"}, for_all=False)
    with pytest.raises(InvalidBrokerConfig):
        await kit.one.set({"a": None}, for_all=False)
    assert kit.one.own == {"b": "1", "a": "2"}


async def test_others_hear_of_it_by_watch(kit: Kit) -> None:
    heard: list[Mapping[str, str]] = []
    both = asyncio.Event()

    def listen() -> None:
        heard.append({**kit.two.for_all, **kit.two.own})
        if len(heard) == 2:
            both.set()

    kit.two.on_change(listen)
    following = asyncio.create_task(kit.two.follow())
    try:
        await kit.one.set({"a": "1"}, for_all=True)
        await kit.one.set({"a": "9"}, for_all=False)
        while not heard:
            await asyncio.sleep(0)
        await kit.one.set({"a": "2"}, for_all=True)
        await asyncio.wait_for(both.wait(), 30)
    finally:
        following.cancel()
    assert heard == [{"a": "1"}, {"a": "2"}], "what concerns another broker is no news"


async def test_listeners_hear_of_a_change_and_not_of_a_look(kit: Kit) -> None:
    heard: list[str] = []
    kit.one.on_change(lambda: heard.append(kit.one.own.get("a", "-")))
    await kit.one.set({"a": "1"}, for_all=False)
    await kit.one.refresh()
    await kit.one.set({"a": "1"}, for_all=False)
    await kit.one.set({"a": None}, for_all=False)
    assert heard == ["1", "-"]


async def test_lists_are_edited_from_what_counts(kit: Kit) -> None:
    await kit.one.set({"l": "x"}, for_all=True)
    assert kit.one.edited("l", "y", for_all=False, is_append=True) == "x+y"
    await kit.one.set({"l": "z"}, for_all=False)
    assert kit.one.edited("l", "y", for_all=False, is_append=False) == "z-y"
    assert kit.one.edited("l", "y", for_all=True, is_append=True) == "x+y"


async def test_an_unknown_outcome_is_told_and_a_repetition_does_no_harm(kit: Kit) -> None:
    kit.store.plan = ["lost"]
    with pytest.raises(OutcomeUnknown):
        await kit.one.set({"a": "1"}, for_all=False)
    await kit.one.set({"a": "1"}, for_all=False)
    assert kit.one.own == {"a": "1"}


async def test_a_store_that_cannot_be_read_after_the_commit_undoes_nothing(kit: Kit) -> None:
    kit.store.reads_fail = True
    await kit.one.set({"a": "1"}, for_all=False)
    assert kit.one.own == {}
    kit.store.reads_fail = False
    await kit.one.refresh()
    assert kit.one.own == {"a": "1"}


async def test_garbage_in_the_store_is_named(kit: Kit) -> None:
    decision = Decision(result=None, puts={keys.broker_config(1): b"\x01garbage"})
    await kit.store.transact([keys.REGISTRY], Reads(), lambda _: decision)
    with pytest.raises(Corrupt, match="broker-configs/00000000000000000001"):
        await kit.one.refresh()
