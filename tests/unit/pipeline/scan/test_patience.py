"""A store that does not answer is asked again, some times, with longer and longer pauses; other failures are told."""

import pytest

from headrace.errors import Invalid, OutcomeUnknown, Retryable
from headrace.pipeline.scan.patience import ATTEMPTS, patiently
from headrace.testing.clock import ManualClock


class Store:
    """Answers after so many failures."""

    def __init__(self, failures: list[Exception]) -> None:
        self.failures = failures
        self.calls = 0

    async def ask(self) -> str:
        self.calls += 1
        if self.failures:
            raise self.failures.pop(0)
        return "answer"


class PausingClock(ManualClock):
    """A clock whose sleepers wake at once; it notes how long they would have slept."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)


async def test_a_store_that_comes_back_is_asked_again() -> None:
    clock, store = PausingClock(), Store([Retryable("busy"), OutcomeUnknown("gone"), Retryable("busy")])
    assert await patiently(store.ask, clock=clock) == "answer"
    assert clock.pauses == [0.5, 1.0, 2.0]


async def test_a_store_that_stays_away_is_told_in_the_end() -> None:
    store = Store([Retryable("busy")] * 9)
    with pytest.raises(Retryable, match="busy"):
        await patiently(store.ask, clock=PausingClock())
    assert store.calls == ATTEMPTS


async def test_what_will_not_mend_is_told_at_once() -> None:
    clock, store = PausingClock(), Store([Invalid("no such topic")])
    with pytest.raises(Invalid):
        await patiently(store.ask, clock=clock)
    assert store.calls == 1 and clock.pauses == []
