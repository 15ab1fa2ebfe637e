"""Each checker of groups is itself checked: plant a bug that a tired engineer might write, and see it caught."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from headrace.groups import consumer_core, coordinator, journal, keeping, reconciliation, seats, store
from headrace.groups.journal import Journal
from headrace.groups.records import Loaded
from headrace.groups.seat import Seat
from headrace.metadata import leases
from headrace.metadata.port import Decision, Key, Reads
from headrace.model.error_codes import ErrorCode
from headrace.testing.simulation.groups.scenario import run_group_seed
from headrace.testing.simulation.history import Violation
from headrace.testing.simulation.loop import SimulationFailed

MOST_SEEDS = 60

Plant = Callable[[pytest.MonkeyPatch], None]


def answer_before_it_is_durable(patch: pytest.MonkeyPatch) -> None:
    """Answer at once, while the write is still under way."""
    patch.setattr(Journal, "after", lambda self, then: then())


def write_without_the_lease(patch: pytest.MonkeyPatch) -> None:
    """Write whoever holds the lease by now, in any session, and answer without asking whether we live."""
    real = Journal.__init__

    class AnySession:
        def __init__(self, inner: Any) -> None:
            self._inner = inner

        async def transact(self, units: Any, reads: Any, decide: Any, *, session: Any = None) -> Any:
            return await self._inner.transact(units, reads, decide)

    def init(self: Journal, *, store: Any, **rest: Any) -> None:
        anybody: Any = AnySession(store)
        real(self, store=anybody, **rest)

    patch.setattr(Journal, "__init__", init)
    patch.setattr(journal, "require", lambda seen, lease: None)
    patch.setattr(Seat, "require_alive", lambda self: None)


def take_with_the_old_epoch(patch: pytest.MonkeyPatch) -> None:
    """Load a group anew without shutting out what is still on its way from before."""
    real = leases.take

    async def take(metadata: Any, key: Any, session: Any, *, anew: bool = False) -> Any:
        return await real(metadata, key, session)

    patch.setattr(store, "take", take)


def forget_members_on_load(patch: pytest.MonkeyPatch) -> None:
    """Load a group without who is in it."""
    real = store.take_over

    async def take_over(*arguments: Any, **named: Any) -> Any:
        lease, loaded = await real(*arguments, **named)
        return lease, Loaded(group_id=loaded.group_id, head=None)

    patch.setattr(seats, "take_over", take_over)


def commit_to_memory(patch: pytest.MonkeyPatch) -> None:
    """Say that offsets are committed before they are."""

    async def written(self: Seat, changes: Mapping[Key, bytes | None]) -> ErrorCode:
        self._writes.save(changes)
        return ErrorCode.NONE

    patch.setattr(Seat, "_written", written)


def go_on_after_a_lost_write(patch: pytest.MonkeyPatch) -> None:
    """Take a write whose outcome is unknown for done."""
    real = Journal._write

    async def write(self: Journal, changes: Any) -> None:
        try:
            await real(self, changes)
        except Exception:
            return

    patch.setattr(Journal, "_write", write)


def expire_young_offsets(patch: pytest.MonkeyPatch) -> None:
    """Take every offset of a group without members for expired."""
    patch.setattr(keeping, "_has_expired", lambda head, record, now_ms, retention_ms: head.empty_since_ms is not None)


def expire_offsets_in_use(patch: pytest.MonkeyPatch) -> None:
    """Forget that members keep offsets alive."""
    patch.setattr(keeping, "_has_expired", lambda head, record, now_ms, retention_ms: record.offset % 5 == 0)


def fetch_from_nowhere(patch: pytest.MonkeyPatch) -> None:
    """Answer a fetch for a group that is being loaded as if it had no offsets."""

    async def read_offsets(*arguments: Any) -> dict[Any, Any]:
        return {}

    patch.setattr(coordinator, "read_offsets", read_offsets)


def give_before_release(patch: pytest.MonkeyPatch) -> None:
    """Give a partition to its next owner while the last one still has it."""
    real = reconciliation.next_standing

    def next_standing(standing: Any, goal: Any, *, is_taken: Any, **rest: Any) -> Any:
        return real(standing, goal, is_taken=lambda topic_id, partition: False, **rest)

    patch.setattr(consumer_core, "next_standing", next_standing)


def believe_that_all_was_released(patch: pytest.MonkeyPatch) -> None:
    """Take a member for done with letting go before it says so."""
    patch.setattr(reconciliation, "_owns_any", lambda owned, held: False)


def delete_the_head_first(patch: pytest.MonkeyPatch) -> None:
    """Delete a group's head and leave its offsets to whoever creates it again."""

    async def delete_step(metadata: Any, keys: Any, lease: Any) -> bool:
        await metadata.transact([keys.unit], Reads(), lambda seen: Decision(result=None, deletes=[keys.head]))
        return True

    patch.setattr(store, "_delete_step", delete_step)


def leave_groups_asleep(patch: pytest.MonkeyPatch) -> None:
    """Never look at deadlines."""
    patch.setattr(Seat, "wake", lambda self, now_ms: None)


def hurry_members_that_are_far_away(patch: pytest.MonkeyPatch) -> None:
    """Give everybody the short interval, within which some hear nothing."""
    patch.setattr(consumer_core, "patient_interval_ms", lambda interval_ms, turn_ms: interval_ms)


@pytest.mark.parametrize(
    "plant",
    [
        answer_before_it_is_durable,
        write_without_the_lease,
        take_with_the_old_epoch,
        forget_members_on_load,
        commit_to_memory,
        go_on_after_a_lost_write,
        expire_young_offsets,
        expire_offsets_in_use,
        fetch_from_nowhere,
        give_before_release,
        believe_that_all_was_released,
        delete_the_head_first,
        leave_groups_asleep,
        hurry_members_that_are_far_away,
    ],
)
def test_a_planted_bug_is_caught(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    for seed in range(MOST_SEEDS):
        try:
            run_group_seed(seed)
        except (Violation, SimulationFailed):
            return
    pytest.fail(f"{plant.__doc__} Nothing noticed in {MOST_SEEDS} histories.")
