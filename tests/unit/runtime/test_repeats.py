"""Lines that repeat: the first at once, then one per period and thing."""

from headrace.runtime.repeats import MAX_REMEMBERED, Repeats
from headrace.testing.clock import ManualClock


async def test_each_thing_is_due_once_per_period() -> None:
    clock = ManualClock()
    repeats = Repeats(clock, every_s=10)
    assert [repeats.is_due(about) for about in ("a", "a", "b", "a")] == [True, False, True, False]
    await clock.advance(9.9)
    assert not repeats.is_due("a")
    await clock.advance(0.1)
    assert repeats.is_due("a") and not repeats.is_due("a")


async def test_what_is_remembered_is_bounded() -> None:
    repeats = Repeats(ManualClock(), every_s=10)
    assert all(repeats.is_due(number) for number in range(10 * MAX_REMEMBERED))
    assert len(repeats._silent_until) <= MAX_REMEMBERED
