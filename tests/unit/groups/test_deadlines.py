"""Deadlines that are moved far more often than they come."""

from headrace.groups.deadlines import Deadlines


def test_what_is_due_comes_once_and_in_order() -> None:
    deadlines = Deadlines()
    deadlines.set("b", 20)
    deadlines.set("a", 10)
    deadlines.set("c", 30)
    assert deadlines.next_ms == 10
    assert deadlines.pop_due(9) is None
    assert [deadlines.pop_due(20) for _ in range(3)] == ["a", "b", None]
    assert deadlines.next_ms == 30


def test_a_deadline_that_moved_on_is_found_out_when_its_alarm_comes() -> None:
    deadlines = Deadlines()
    deadlines.set("a", 10)
    deadlines.set("a", 50)
    assert deadlines.next_ms == 10, "too early is harmless"
    assert deadlines.pop_due(49) is None
    assert deadlines.next_ms == 50
    assert deadlines.pop_due(50) == "a"


def test_a_deadline_that_is_drawn_nearer_comes_nearer() -> None:
    deadlines = Deadlines()
    deadlines.set("a", 50)
    deadlines.set("a", 10)
    assert deadlines.next_ms == 10
    assert deadlines.pop_due(10) == "a"
    assert deadlines.pop_due(100) is None
    assert "a" not in deadlines


def test_a_cleared_deadline_never_comes() -> None:
    deadlines = Deadlines()
    deadlines.set("a", 10)
    deadlines.set("b", 20)
    deadlines.clear("a")
    assert deadlines.pop_due(15) is None
    deadlines.clear("b")
    assert deadlines.next_ms is None, "nothing is waited for any more"
    deadlines.clear("never set")


def test_a_deadline_that_was_cleared_and_set_again_counts_from_then() -> None:
    deadlines = Deadlines()
    deadlines.set("other", 5)
    deadlines.set("a", 10)
    deadlines.clear("a")
    deadlines.set("a", 40)
    assert deadlines.pop_due(5) == "other"
    assert deadlines.pop_due(39) is None
    assert deadlines.pop_due(40) == "a"


def test_moving_a_deadline_costs_no_room() -> None:
    deadlines = Deadlines()
    for beat in range(1_000):
        deadlines.set("a", 10 + beat)
    assert len(deadlines._heap) == 1
