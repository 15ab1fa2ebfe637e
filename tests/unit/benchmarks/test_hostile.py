"""What the hostile soak calls wrong: memory that grows, peaks or stays; answers that were not expected."""

import socket
import threading
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from benchmarks import __main__ as benchmarks_main
from benchmarks import hostile
from benchmarks.hostile import Outcome, rows_of
from benchmarks.hostile.driver import take_turn
from benchmarks.hostile.judging import (
    course_of,
    is_settled,
    percentile,
    picture,
    problems_of_end,
    problems_of_memory,
)
from benchmarks.hostile.kinds import KINDS
from benchmarks.hostile.plan import FULL_MINUTES, MIB, Bounds, HostilePlan, plan_of
from benchmarks.hostile.stage import CLOSED, Stage, Tally
from benchmarks.hostile.watching import BACK_TO_ZERO, FOLLOWED, Sample

BOUNDS = Bounds()
WARM_UP_S = 20.0


def sample(at_s: float, mib: float, *, files: int = 40, **gauges: float) -> Sample:
    return Sample(
        at_s=at_s,
        resident_bytes=int(mib * MIB),
        anonymous_bytes=0,
        open_files=files,
        gauges=dict.fromkeys(FOLLOWED, 0.0) | gauges,
        stalls=0,
        log_lines=0,
    )


def course(mibs: Sequence[float]) -> list[str]:
    """Return what is wrong with a memory that was so large at every second."""
    samples = [sample(float(second), mib) for second, mib in enumerate(mibs)]
    return problems_of_memory(course_of(samples, warm_up_s=WARM_UP_S), BOUNDS)


def test_memory_that_grows_in_the_warm_up_and_is_flat_behind_it_is_fine() -> None:
    assert course([100 + 10 * second for second in range(20)] + [300, 310, 290, 305] * 20) == []


def test_memory_that_grows_slowly_for_ever_is_not() -> None:
    (problem,) = course([100 + second for second in range(200)])
    assert "memory grows" in problem


def test_one_large_request_at_the_moment_of_a_look_is_fine_and_more_than_all_budgets_is_not() -> None:
    assert course([100.0] * 60 + [600.0] + [100.0] * 60) == []
    (problem,) = course([100.0] * 60 + [1000.0] + [100.0] * 60)
    assert "memory peaks at 1,000 MiB" in problem


def test_caches_may_grow_within_limits_of_their_own() -> None:
    samples = [sample(float(n), 100 + n, tail_cache_bytes=float(n * MIB)) for n in range(200)]
    assert problems_of_memory(course_of(samples, warm_up_s=WARM_UP_S), BOUNDS) == []


def test_a_soak_that_is_too_short_to_be_judged_says_so() -> None:
    with pytest.raises(ValueError, match="too few"):
        course([100.0] * 25)


@pytest.mark.parametrize("name", BACK_TO_ZERO)
def test_a_gauge_that_is_not_back_at_zero_is_named(name: str) -> None:
    flat = course_of([sample(float(n), 100.0) for n in range(60)], warm_up_s=WARM_UP_S)
    first = sample(0.0, 100.0)
    last = replace(first, gauges=first.gauges | {name: 1.0})
    (problem,) = problems_of_end(first, last, flat, BOUNDS)
    assert name in problem
    assert not is_settled(last, BOUNDS)


def test_what_is_left_in_the_end_is_held_against_the_warm_level() -> None:
    flat = course_of([sample(float(n), 300.0) for n in range(60)], warm_up_s=WARM_UP_S)
    first = sample(0.0, 100.0)
    assert problems_of_end(first, sample(60.0, 310.0), flat, BOUNDS) == []
    (left,) = problems_of_end(first, sample(60.0, 400.0), flat, BOUNDS)
    assert "400 MiB are left" in left
    (files,) = problems_of_end(first, sample(60.0, 300.0, files=200), flat, BOUNDS)
    assert "200 files" in files


def test_buffers_in_which_the_tail_cache_keeps_its_records_are_not_lent() -> None:
    kept = sample(0.0, 100.0, buffers_leased_bytes=96.0 * MIB, tail_cache_bytes=48.0 * MIB)
    assert is_settled(kept, BOUNDS)
    lent = sample(0.0, 100.0, buffers_leased_bytes=96.0 * MIB)
    assert not is_settled(lent, BOUNDS)
    flat = course_of([sample(float(n), 100.0) for n in range(60)], warm_up_s=WARM_UP_S)
    (problem,) = problems_of_end(lent, lent, flat, BOUNDS)
    assert "still lent" in problem


def test_pictures_and_percentiles() -> None:
    assert picture([0, 1, 2, 4], width=4) == "▁▃▅█"
    assert len(picture(range(1000), width=72)) == 72
    assert picture([]) == ""
    assert [percentile([3.0, 1.0, 2.0], share) for share in (0.0, 0.5, 1.0)] == [1.0, 2.0, 3.0]
    assert percentile([], 0.5) == 0.0


def test_answers_are_counted_by_kind_and_name_and_others_than_expected_are_surprises() -> None:
    tally = Tally()
    stage = Stage("too-large", 0, Random(1), tally)
    stage.heard(10, 10)
    stage.heard(0, 10)
    stage.heard(CLOSED, CLOSED, 10)
    assert tally.answers == {
        ("too-large", "MESSAGE_TOO_LARGE"): 1,
        ("too-large", "NONE"): 1,
        ("too-large", "closed"): 1,
    }
    assert tally.surprises == ["too-large: NONE, expected MESSAGE_TOO_LARGE"]


def _hang_up(server: socket.socket) -> None:
    connection, _ = server.accept()
    connection.close()


def test_a_connection_that_is_lost_where_it_should_not_is_a_surprise() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_hang_up, args=(server,), daemon=True).start()
        tally = Tally()
        take_turn(Stage("fetch-sessions", server.getsockname()[1], Random(1), tally), tally)
    assert len(tally.surprises) == 1 and tally.surprises[0].startswith("fetch-sessions: Connection")


def test_the_command_line_names_the_length_and_what_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = []
    outcome = Outcome()

    def soak(plan: HostilePlan) -> Outcome:
        plans.append(plan)
        return outcome

    monkeypatch.setattr(hostile, "soak", soak)
    assert benchmarks_main.main(["hostile", "--minutes", "60", "--without", "slow-readers"]) == 0
    assert (plans[-1].seconds, plans[-1].without) == (3600.0, frozenset({"slow-readers"}))
    assert hostile.main(["--only", "bombs"]) == 0
    assert plans[-1].without == KINDS.keys() - {"bombs"}
    assert plans[-1] == plan_of(FULL_MINUTES, without=plans[-1].without)
    outcome.problems.append("something")
    assert hostile.main(["--quick"]) == 1
    assert rows_of(outcome)[0] == ("hostile events", 0.0, "", None)
