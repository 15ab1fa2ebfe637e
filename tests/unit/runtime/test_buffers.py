"""Buffers come back when their last view has died, and not before; budgets are served in order."""

import gc
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from headrace.runtime.buffers import KIB, LARGEST_KEPT_BYTES, MIB, SMALLEST_CLASS_BYTES, BufferPool, ByteBudget


def test_buffer_is_used_again_once_its_last_view_has_died() -> None:
    pool = BufferPool(max_idle_bytes=MIB)
    view = pool.lease(100 * KIB)
    view[:5] = b"first"
    part = view[2:4].toreadonly()
    del view
    gc.collect()
    assert pool.idle_bytes == 0, "a view of a view keeps the buffer"
    assert bytes(part) == b"rs"
    del part
    gc.collect()
    assert (pool.idle_bytes, pool.leased_bytes) == (128 * KIB, 0)
    again = pool.lease(128 * KIB)
    assert bytes(again[:5]) == b"first", "the same memory came back"
    assert (pool.idle_bytes, pool.leased_bytes) == (0, 128 * KIB)


def test_two_leases_never_share_memory() -> None:
    pool = BufferPool(max_idle_bytes=MIB)
    one, two = pool.lease(1), pool.lease(1)
    one[0], two[0] = 1, 2
    assert (one[0], two[0]) == (1, 2)
    assert len(one) == len(two) == 1


def test_pool_keeps_no_more_idle_bytes_than_it_may() -> None:
    pool = BufferPool(max_idle_bytes=2 * SMALLEST_CLASS_BYTES)
    views = [pool.lease(1) for _ in range(5)]
    views.clear()
    gc.collect()
    assert pool.idle_bytes == 2 * SMALLEST_CLASS_BYTES


def test_very_large_buffers_are_not_kept() -> None:
    pool = BufferPool(max_idle_bytes=1 << 40)
    view = pool.lease(LARGEST_KEPT_BYTES + 1)
    assert len(view) == LARGEST_KEPT_BYTES + 1
    del view
    gc.collect()
    assert (pool.idle_bytes, pool.leased_bytes) == (0, 0)


def test_budget_serves_its_line_in_order() -> None:
    budget = ByteBudget(10)
    served: list[str] = []

    def to(name: str) -> Callable[[], None]:
        return lambda: served.append(name)

    assert budget.take(8, to("never called"))
    assert not budget.take(5, to("a"))
    assert not budget.take(1, to("b")), "a small demand does not pass a large one that waits"
    budget.give_back(8)
    assert served == ["a", "b"]
    assert budget.taken_bytes == 6


def test_demand_above_the_limit_is_served_alone() -> None:
    budget = ByteBudget(10)
    assert budget.take(1, lambda: None)
    served: list[int] = []
    assert not budget.take(100, lambda: served.append(100))
    budget.give_back(1)
    assert served == [100]
    assert not budget.take(1, lambda: served.append(1))
    budget.give_back(100)
    assert served == [100, 1]


def test_who_leaves_the_line_holds_nobody_up() -> None:
    budget = ByteBudget(10)
    served: list[str] = []
    assert budget.take(5, lambda: None)

    def large() -> None:
        served.append("large")

    assert not budget.take(10, large)
    assert not budget.take(5, lambda: served.append("small"))
    assert budget.leave_line(large)
    assert served == ["small"]
    assert not budget.leave_line(large)


@given(st.lists(st.tuples(st.sampled_from(["take", "give"]), st.integers(1, 12)), max_size=60))
def test_budget_never_passes_its_limit_and_forgets_nobody(steps: list[tuple[str, int]]) -> None:
    budget = ByteBudget(10)
    held: list[int] = []
    asked = 0
    for step, size in steps:
        if step == "take":
            asked += 1
            if budget.take(size, lambda size=size: held.append(size)):  # type: ignore[misc]
                held.append(size)
        elif held:
            budget.give_back(held.pop(0))
        assert budget.taken_bytes == sum(held)
        assert sum(held) <= 10 or len(held) == 1
    released = 0
    while held:
        released += 1
        budget.give_back(held.pop(0))
    assert budget.waiting_count == 0 and budget.taken_bytes == 0
