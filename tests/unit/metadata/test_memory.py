from headrace.metadata.keys import DomainKeys
from headrace.metadata.memory import MemoryMetadata
from headrace.metadata.port import Decision, Reads, Seen
from headrace.model.ids import DomainId
from headrace.runtime.rng import seeded_rng

DOMAIN = DomainKeys(DomainId(0))


async def test_one_seed_gives_one_history() -> None:
    async def history() -> list[object]:
        store = MemoryMetadata(seeded_rng(5))
        sessions = [await store.open_session(timeout_ms=1000) for _ in range(3)]
        await store.end_session(sessions[1])
        return [sessions, await store.sessions()]

    assert await history() == await history()


async def test_nothing_runs_between_reading_and_writing() -> None:
    """A transaction ends in the very step in which it is begun, so no other task can come between."""
    store = MemoryMetadata(seeded_rng(1))

    def decide(seen: Seen) -> Decision[str]:
        return Decision(result="done", puts={DOMAIN.state: b"1"})

    coroutine = store.transact([DOMAIN.unit], Reads(keys=[DOMAIN.state]), decide)
    try:
        coroutine.send(None)
    except StopIteration as done:
        assert done.value.result == "done"
    else:
        raise AssertionError("the transaction waited for something")
