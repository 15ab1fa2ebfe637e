"""Which cells are measured, what becomes of what the load saw, and what travels between the processes."""

import dataclasses

import pytest

from benchmarks.beside_kafka.figures import Measure
from benchmarks.groups_beside_kafka import _by_settings, jobs, readings
from benchmarks.groups_beside_kafka.brokers import WITH_DEFAULTS, WITHOUT_DELAY
from benchmarks.groups_beside_kafka.plan import full_plan, quick_plan
from benchmarks.groups_beside_kafka.scenarios import Fleet

WINDOW = jobs.Window(seconds=10.0, heartbeats=2000, broker_cpu_seconds=1.5, load_cpu_seconds=0.5)
DONE = jobs.Done(
    all_join_seconds=[0.5, 1.5],
    one_joins_seconds=[],
    one_leaves_seconds=[],
    commit_seconds=[0.001, 0.002, 0.003],
    window=WINDOW,
    load_lag_seconds=0.002,
    fenced=0,
    owned_twice=0,
)


def test_the_full_plan_holds_what_was_promised() -> None:
    plan = full_plan()
    titles = [scenario.title for scenario in plan.scenarios]
    assert len(titles) == len(set(titles))
    promised = [one for one in plan.scenarios if isinstance(one, Fleet) and one.has_aims and one.window_seconds]
    assert [one.speech.protocol for one in promised] == [jobs.CONSUMER, jobs.CLASSIC]
    assert {(one.groups, one.members, one.partitions) for one in promised} == {(50, 20, 100)}
    assert any(scenario.settings == WITH_DEFAULTS for scenario in plan.scenarios)
    assert all(scenario.settings == WITHOUT_DELAY for scenario in plan.warm_up)


def test_brokers_are_started_once_for_all_scenarios_with_the_same_settings() -> None:
    assert [settings for settings, _ in _by_settings(full_plan().scenarios)] == [WITHOUT_DELAY, WITH_DEFAULTS]
    assert [settings for settings, _ in _by_settings(quick_plan().scenarios)] == [WITHOUT_DELAY]


def test_only_some_scenarios_can_be_asked_for() -> None:
    found = quick_plan().only("KIP-848").scenarios
    assert [scenario.title for scenario in found] == ["KIP-848, 10 groups x 10 x 100 partitions"]
    assert full_plan().only("nothing like it").scenarios == []


def test_a_stable_fleet_costs_a_share_of_a_core() -> None:
    found = readings.window_readings(WINDOW, has_aim=True)
    assert [reading.value for reading in found] == pytest.approx([15.0, 200.0, 750.0])
    assert [reading.kind.at_most for reading in found] == [30.0, None, None]
    assert readings.window_readings(WINDOW, has_aim=False)[0].kind.at_most is None
    quiet = dataclasses.replace(WINDOW, heartbeats=0)
    assert readings.window_readings(quiet, has_aim=False)[1].value == 0


def test_times_that_were_not_measured_are_not_shown() -> None:
    assert readings.time_readings("one member joins", [], readings.SECONDS_AIM) == []
    p50, p99 = readings.time_readings("all members join", DONE.all_join_seconds, readings.SECONDS_AIM)
    assert (p50.value, p99.value) == (0.5, 1.5)
    assert p50.kind.at_most is None
    assert p99.kind.at_most == 1.0


@pytest.mark.parametrize(("ours", "is_as_good"), [(0.4, True), (0.54, True), (0.56, False)])
def test_times_that_chance_could_have_swapped_count_as_the_same(ours: float, is_as_good: bool) -> None:
    kind = readings.SECONDS_AIM
    measure = Measure(group="cell", what="p99", kind=kind, headrace=[ours], kafka=[0.5])
    assert measure.matches_kafka is is_as_good


def test_commits_are_counted_per_second_and_per_cost() -> None:
    found = readings.commit_readings(DONE)
    assert [reading.what for reading in found] == [
        "commits",
        "one commit, p50",
        "one commit, p99",
        "broker CPU per commit",
    ]
    assert [reading.value for reading in found] == pytest.approx([0.3, 2.0, 3.0, 500_000.0])


def test_two_owners_end_the_run_unless_a_member_was_thrown_out() -> None:
    readings.check(DONE, where="here")
    doubled = dataclasses.replace(DONE, owned_twice=2)
    with pytest.raises(readings.OwnedTwice, match="here: 2 times"):
        readings.check(doubled, where="here")
    fenced = dataclasses.replace(doubled, fenced=1)
    readings.check(fenced, where="here")
    assert "1 MEMBERS WERE THROWN OUT" in readings.remark(fenced)
    assert readings.remark(DONE) == "the load was late by 2.0 ms at p99, took 5 % of a core itself"


@pytest.mark.parametrize("done", [DONE, dataclasses.replace(DONE, window=None)])
def test_outcomes_travel_as_one_line(done: jobs.Done) -> None:
    line = jobs.encode_done(done)
    assert "\n" not in line
    assert jobs.decode_done(line) == done


def test_jobs_travel_as_one_line() -> None:
    commit = jobs.Commit(
        bootstrap="127.0.0.1:1",
        broker_pid=2,
        topic="topic",
        protocol=jobs.CLASSIC,
        heartbeat_ms=3000,
        groups=1,
        members=2,
        seconds=0.5,
    )
    fleet = jobs.Fleet(
        bootstrap="127.0.0.1:1",
        broker_pid=2,
        topic="topic",
        protocol=jobs.CONSUMER,
        heartbeat_ms=0,
        groups=1,
        members=2,
        spread_seconds=1.0,
        rest_seconds=0.0,
        window_seconds=0.0,
        hand_overs=1,
    )
    for job in (commit, fleet):
        assert jobs.decode_job(jobs.encode_job(job)) == job
