"""Metered metadata stores: nothing changes but the figures."""

import pytest

from headrace.errors import Fenced, Invalid
from headrace.metadata import keys
from headrace.metadata.memory import MemoryMetadata
from headrace.metadata.metered import MeteredMetadata
from headrace.metadata.port import Decision, MetadataStore, Reads, Seen
from headrace.runtime.metrics import Metrics
from headrace.runtime.rng import seeded_rng
from headrace.testing.clock import ManualClock

KEY, OTHER = keys.lease("a"), keys.lease("b")
UNITS = [keys.unit_of(KEY), keys.unit_of(OTHER)]


class Kit:
    def __init__(self) -> None:
        self.metrics = Metrics()
        self.inner = MemoryMetadata(seeded_rng(1))
        self.store: MetadataStore = MeteredMetadata(self.inner, metrics=self.metrics, clock=ManualClock())

    def figures(self) -> dict[str, float]:
        """Return all that is not zero: calls as `operation outcome`, bytes as `operation bytes`."""
        found = {}
        for line in self.metrics.render().decode().splitlines():
            name, _, value = line.rpartition(" ")
            labels = name.partition("{")[2].replace('"', "").rstrip("}").split(",")
            words = [label.partition("=")[2] for label in labels]
            if name.startswith("headrace_metadata_store_call_seconds_count{"):
                found[" ".join(words)] = float(value)
            elif name.startswith("headrace_metadata_store_bytes_total{"):
                found[f"{words[0]} bytes"] = float(value)
        return {name: value for name, value in found.items() if value}


@pytest.fixture
def kit() -> Kit:
    return Kit()


async def test_transactions_and_reads_are_counted_and_weighed(kit: Kit) -> None:
    session = await kit.store.open_session(timeout_ms=1000)

    def decide(seen: Seen) -> Decision[str]:
        assert seen.get(KEY) is None
        return Decision(result="done", puts={KEY: b"123"}, ephemerals={OTHER: b"12345"})

    committed = await kit.store.transact(UNITS, Reads(keys=[KEY]), decide, session=session)
    assert committed.result == "done" and committed.revision > 0
    found = await kit.store.get(KEY)
    assert found is not None and found.value == b"123"
    assert await kit.store.get(keys.FORMAT) is None
    assert len(await kit.store.range(keys.prefix_range(keys.LEASES, limit=10))) == 2
    await kit.store.close()
    assert kit.figures() == {
        "open_session ok": 1,
        "transact ok": 1,
        "transact bytes": 8,
        "get ok": 2,
        "get bytes": 3,
        "range ok": 1,
        "range bytes": 8,
    }


async def test_a_refusal_of_the_rule_or_of_the_store_passes_through(kit: Kit) -> None:
    def refuse(seen: Seen) -> Decision[None]:
        raise Fenced("not ours")

    with pytest.raises(Fenced, match="not ours"):
        await kit.store.transact(UNITS, Reads(), refuse)
    with pytest.raises(Invalid):
        await kit.store.transact([], Reads(keys=[KEY]), lambda seen: Decision(result=None))
    assert kit.figures() == {"transact fenced": 1, "transact invalid": 1}


async def test_sessions_pass_through(kit: Kit) -> None:
    session = await kit.store.open_session(timeout_ms=1000)
    await kit.store.renew_session(session)
    (state,) = await kit.store.sessions()
    assert await kit.store.expire_session(state)
    assert not await kit.store.expire_session(state)
    await kit.store.end_session(session)
    with pytest.raises(Fenced):
        await kit.store.renew_session(session)
    assert kit.figures() == {
        "open_session ok": 1,
        "renew_session ok": 1,
        "renew_session fenced": 1,
        "sessions ok": 1,
        "expire_session ok": 2,
        "end_session ok": 1,
    }


async def test_watches_pass_through(kit: Kit) -> None:
    watch = kit.store.watch(keys.LEASES)
    await watch.wait()
    await kit.inner.transact(UNITS, Reads(), lambda seen: Decision(result=None, puts={KEY: b""}))
    assert (await watch.wait()).revision > 0
    watch.close()
