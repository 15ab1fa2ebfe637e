"""Which faults are drawn, how often, and that they can be made to stop."""

from dataclasses import replace

from headrace.runtime.rng import seeded_rng
from headrace.testing.simulation.plan import CREATE_FAULTS, READ_FAULTS, FaultKind, FaultPlan, FaultRates


def test_faults_are_drawn_at_their_rates() -> None:
    plan = FaultPlan(seeded_rng(1), FaultRates(retryable=0.2, own_exists=0.1))
    drawn = [plan.draw(CREATE_FAULTS) for _ in range(10_000)]
    assert 1_800 < drawn.count(FaultKind.RETRYABLE) < 2_200
    assert 850 < drawn.count(FaultKind.OWN_EXISTS) < 1_150
    assert plan.injected == {
        FaultKind.RETRYABLE: drawn.count(FaultKind.RETRYABLE),
        FaultKind.OWN_EXISTS: drawn.count(FaultKind.OWN_EXISTS),
    }


def test_only_faults_that_can_strike_are_drawn() -> None:
    plan = FaultPlan(seeded_rng(1), FaultRates(lost_answer=1.0, own_exists=1.0))
    assert plan.draw(READ_FAULTS) is None


def test_a_calm_plan_draws_nothing() -> None:
    plan = FaultPlan(seeded_rng(1), FaultRates.calm())
    assert all(plan.draw(CREATE_FAULTS) is None for _ in range(1000))
    assert not plan.injected


def test_a_quiet_plan_has_no_new_faults_and_keeps_its_latency() -> None:
    plan = FaultPlan(seeded_rng(1), replace(FaultRates.rough(), retryable=1.0, max_latency_ms=7.0))
    assert plan.draw(READ_FAULTS) is not None
    plan.quiesce()
    assert all(plan.draw(CREATE_FAULTS) is None for _ in range(1000))
    assert plan.rates.max_latency_ms == 7.0
    assert 0 <= plan.latency_seconds() <= 0.007


def test_orphans_land_tear_or_are_dropped() -> None:
    plan = FaultPlan(seeded_rng(1), FaultRates(landing_after_crash=0.5))
    fates = {plan.fate_of_orphan(can_tear=True) for _ in range(100)}
    assert fates == {FaultKind.DROPPED_BY_CRASH, FaultKind.LANDED_AFTER_CRASH, FaultKind.TORN_BY_CRASH}
    fates = {plan.fate_of_orphan(can_tear=False) for _ in range(100)}
    assert fates == {FaultKind.DROPPED_BY_CRASH, FaultKind.LANDED_AFTER_CRASH}


def test_a_torn_append_is_never_whole() -> None:
    plan = FaultPlan(seeded_rng(1), FaultRates())
    parts = {plan.part_of(3) for _ in range(200)}
    assert parts == {0, 1, 2}
