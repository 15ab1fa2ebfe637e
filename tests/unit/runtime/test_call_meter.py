"""How calls are counted: by operation, by how they ended, with their time."""

import asyncio

import pytest

from headrace.errors import Corrupt, Fenced, HeadraceError, Invalid, OutcomeUnknown, Retryable, Throttled
from headrace.runtime.call_meter import OUTCOMES, CallMeter, outcome_of
from headrace.runtime.metrics import Metrics
from headrace.testing.clock import ManualClock


class Closed(Retryable):
    """An error of some package's own."""


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (Retryable("x"), "retryable"),
        (Throttled("x"), "throttled"),
        (Closed("x"), "retryable"),
        (OutcomeUnknown("x"), "unknown"),
        (Fenced("x"), "fenced"),
        (Invalid("x"), "invalid"),
        (Corrupt("x"), "corrupt"),
        (HeadraceError("x"), "failed"),
        (KeyError("x"), "failed"),
        (asyncio.CancelledError(), "cancelled"),
    ],
)
def test_errors_are_named_for_their_remedy(error: BaseException, outcome: str) -> None:
    assert outcome_of(error) == outcome
    assert outcome in OUTCOMES


def test_every_error_with_a_remedy_has_an_outcome_of_its_own() -> None:
    kinds = {kind for kind in all_kinds(HeadraceError) if kind.__module__ == "headrace.errors"}
    assert kinds and len({outcome_of(kind("x")) for kind in kinds}) == len(kinds)


def all_kinds(kind: type[HeadraceError]) -> list[type[HeadraceError]]:
    return [found for child in kind.__subclasses__() for found in (child, *all_kinds(child))]


async def test_time_and_outcome_of_each_call_are_noted() -> None:
    clock, metrics = ManualClock(), Metrics()
    operation = CallMeter(metrics, clock, store="a_store", operations=["get"]).operation("get")

    async def call(seconds: float, error: BaseException | None = None) -> str:
        await clock.sleep(seconds)
        if error is not None:
            raise error
        return "found"

    calls = [call(0.02), call(0.4), call(3, Retryable("x")), call(60)]
    running = [asyncio.ensure_future(operation.timed(one)) for one in calls]
    await clock.advance(5)
    running[3].cancel()
    await clock.settle()
    assert [one.result() for one in running[:2]] == ["found", "found"]
    assert isinstance(running[2].exception(), Retryable) and running[3].cancelled()
    lines = metrics.render().decode().splitlines()
    for expected in (
        'headrace_a_store_call_seconds_count{operation="get",outcome="ok"} 2.0',
        'headrace_a_store_call_seconds_bucket{le="0.025",operation="get",outcome="ok"} 1.0',
        'headrace_a_store_call_seconds_sum{operation="get",outcome="retryable"} 3.0',
        'headrace_a_store_call_seconds_sum{operation="get",outcome="cancelled"} 5.0',
    ):
        assert expected in lines


def test_a_kind_of_call_without_calls_stands_at_zero() -> None:
    metrics = Metrics()
    CallMeter(metrics, ManualClock(), store="a_store", operations=["get", "put"]).operation("put")
    assert b'headrace_a_store_call_seconds_count{operation="put",outcome="ok"} 0.0' in metrics.render().splitlines()
