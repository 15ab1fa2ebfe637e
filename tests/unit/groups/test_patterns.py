"""Regular expressions of all groups of a broker: each name is matched once, on a thread, within a budget."""

import asyncio
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import TypeVar

import pytest

from headrace.groups.patterns import MAX_UPDATE_S, SLICE_S, Names, Patterns
from headrace.groups.regexes import InvalidPattern
from headrace.runtime.executor import InlineExecutor
from tests.unit.circles import Buffer, is_gone, no_collection

T = TypeVar("T")

DEAR = "(.{0,60}){0,10}b"


def topics(*names: str) -> Names:
    return dict.fromkeys(names)


class Bench:
    """Patterns over topics that the test changes. Each look at a thread's time says that `step_s` have passed."""

    def __init__(self, *names: str, step_s: float = 0.0, max_match_s: float = 1.0) -> None:
        self.names = topics(*names)
        self.step_s = step_s
        self._worked_s = 0.0
        self.patterns = Patterns(
            names=lambda: self.names, executor=InlineExecutor(), worked_s=self.worked_s, max_match_s=max_match_s
        )

    def worked_s(self) -> float:
        self._worked_s += self.step_s
        return self._worked_s

    async def resolve(self, *patterns: str, is_new: bool = True) -> None:
        async with self.patterns.held(patterns, is_new=is_new):
            pass

    def found(self, pattern: str) -> frozenset[str]:
        return self.patterns.matching(pattern, self.names)


async def test_each_name_is_matched_once_with_each_pattern() -> None:
    bench = Bench("a1", "a2", "b1")
    await bench.resolve("a.*")
    assert bench.found("a.*") == {"a1", "a2"} and bench.patterns.matched_names == 3
    bench.names = topics("a1", "b1", "a3")
    assert await bench.patterns.update()
    assert bench.found("a.*") == {"a1", "a3"}, "what is gone drops out"
    assert bench.patterns.matched_names == 4, "only the new name was matched"
    assert await bench.patterns.update()
    assert bench.patterns.matched_names == 4


async def test_equal_patterns_are_shared_even_while_they_are_resolved() -> None:
    bench = Bench("a1", "b1")
    await asyncio.gather(*(bench.resolve("a.*") for _ in range(10)))
    await bench.resolve("a.*")
    assert bench.patterns.matched_names == 2 and len(bench.patterns) == 1


async def test_pattern_stands_for_what_it_stood_for_until_new_names_were_matched() -> None:
    bench = Bench("a1")
    await bench.resolve("a.*")
    bench.names = topics("a1", "a2")
    assert bench.found("a.*") == {"a1"}
    await bench.patterns.update()
    assert bench.found("a.*") == {"a1", "a2"}


async def test_topics_that_come_while_a_pattern_is_resolved_are_not_missed() -> None:
    bench = Bench("a1")
    inner = InlineExecutor()

    class CreatesATopic:
        async def run(self, work: Callable[[], T]) -> T:
            result = await inner.run(work)
            bench.names = bench.names if "a2" in bench.names else topics("a1", "a2")
            return result

        def close(self) -> None:
            return None

    patterns = Patterns(names=lambda: bench.names, executor=CreatesATopic(), worked_s=lambda: 0.0)
    async with patterns.held(["a.*"], is_new=True):
        assert patterns.matching("a.*", bench.names) == {"a1", "a2"}


async def test_pattern_that_costs_too_much_is_refused_with_a_sentence_and_costs_nothing_the_second_time() -> None:
    bench = Bench(*(f"topic-{number}" for number in range(1000)), step_s=SLICE_S, max_match_s=0.1)
    with pytest.raises(InvalidPattern, match=r"costs too much: \d+ of 1000 topics took \d+ ms, 100 ms are allowed"):
        await bench.resolve(DEAR)
    assert len(bench.patterns) == 0
    spent_s = bench.worked_s()
    with pytest.raises(InvalidPattern, match="costs too much"):
        await bench.resolve(DEAR)
    assert bench.worked_s() - spent_s == pytest.approx(SLICE_S), "nobody worked in between"
    bench.names = topics("b")
    await bench.resolve(DEAR)
    assert bench.found(DEAR) == {"b"}, "with few topics it is cheap"


async def test_pattern_of_a_group_that_is_loaded_is_resolved_whatever_it_costs() -> None:
    bench = Bench(*(f"topic-{number}b" for number in range(1000)), step_s=SLICE_S, max_match_s=0.1)
    with pytest.raises(InvalidPattern):
        await bench.resolve(DEAR)
    await bench.resolve(DEAR, is_new=False)
    assert bench.found(DEAR) == set(bench.names)


async def test_pattern_that_re2_does_not_take_is_refused_if_it_is_new_and_passed_over_in_a_group_that_is_loaded() -> (
    None
):
    bench = Bench("a")
    with pytest.raises(InvalidPattern, match="is invalid"):
        await bench.resolve("(")
    await bench.resolve("(", "a", is_new=False)
    assert bench.found("a") == {"a"}


async def test_dear_patterns_do_not_keep_news_from_groups_and_are_matched_in_the_end() -> None:
    bench = Bench()
    await bench.resolve(DEAR, "x.*")
    bench.names = topics("x", *(f"topic-{number}b" for number in range(2000)))
    bench.step_s = SLICE_S
    rounds = 1
    while not await bench.patterns.update():
        rounds += 1
        assert bench.found("x.*") in ({"x"}, frozenset())
    assert rounds > 1, f"one update is bounded by {MAX_UPDATE_S} s"
    assert bench.found("x.*") == {"x"} and len(bench.found(DEAR)) == 2000
    assert bench.patterns.matched_names == 2 * 2001


async def test_patterns_that_no_group_looks_up_in_a_round_are_forgotten_unless_somebody_is_about_to_use_them() -> (
    None
):
    bench = Bench("a")
    await bench.resolve("a", "b")
    async with bench.patterns.held(["c"], is_new=True):
        bench.patterns.begin_round()
        bench.found("a")
        bench.patterns.end_round()
        assert len(bench.patterns) == 2
    bench.patterns.begin_round()
    bench.patterns.end_round()
    assert len(bench.patterns) == 0
    assert bench.found("a") == {"a"}, "what nobody has announced is matched all the same"


async def test_work_that_was_cancelled_by_one_who_waits_goes_on_for_the_others() -> None:
    gate = asyncio.Event()

    class Holds:
        async def run(self, work: Callable[[], T]) -> T:
            await gate.wait()
            return work()

        def close(self) -> None:
            return None

    names = topics("a")
    patterns = Patterns(names=lambda: names, executor=Holds(), worked_s=lambda: 0.0)
    seen = SimpleNamespace(count=0)

    async def resolve() -> None:
        async with patterns.held(["a"], is_new=True):
            seen.count += 1

    first, second = asyncio.create_task(resolve()), asyncio.create_task(resolve())
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    gate.set()
    await second
    assert seen.count == 1 and patterns.matched_names == 1


@pytest.mark.parametrize("pattern", ["[", DEAR])
async def test_a_refused_pattern_keeps_nothing_of_its_request_alive(pattern: str) -> None:
    bench = Bench(*(f"topic-{number}" for number in range(1000)), step_s=SLICE_S, max_match_s=0.1)

    async def ask() -> "weakref.ref[Buffer]":
        buffer = Buffer()
        try:
            await bench.resolve(pattern)
        except InvalidPattern:
            return weakref.ref(buffer)
        raise AssertionError("it is refused")

    with no_collection():
        gone = await ask()
        await asyncio.sleep(0)  # what is called when a task is done has been called
        assert is_gone(gone)
