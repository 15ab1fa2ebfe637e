"""The tally that compares what was written with what was read."""

import os
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.beside_kafka import jobs
from benchmarks.beside_kafka.java_driver import read_summary
from benchmarks.beside_kafka.process_cost import cpu_seconds, memory, parse_stat, process_tree
from benchmarks.beside_kafka.values import (
    NOTHING,
    RecordsDiffer,
    Tally,
    compare,
    make_pool,
    tally_of,
    tally_of_cycles,
)


@given(st.lists(st.binary(min_size=1, max_size=20), min_size=1, max_size=10), st.integers(0, 40))
def test_cycles_through_the_pool_tally_like_the_values_themselves(pool: list[bytes], records: int) -> None:
    assert tally_of_cycles(pool, records) == tally_of(pool[n % len(pool)] for n in range(records))


@given(st.lists(st.binary(max_size=20), max_size=20), st.randoms(use_true_random=False))
def test_order_and_division_do_not_matter(values: list[bytes], rng: random.Random) -> None:
    shuffled = list(values)
    rng.shuffle(shuffled)
    cut = rng.randint(0, len(values))
    assert tally_of(shuffled[:cut]) + tally_of(shuffled[cut:]) == tally_of(values)


@pytest.mark.parametrize(
    "read",
    [
        pytest.param([b"one", b"two"], id="lost"),
        pytest.param([b"one", b"two", b"six", b"six"], id="doubled"),
        pytest.param([b"one", b"two", b"two"], id="one lost and another doubled"),
        pytest.param([b"one", b"two", b"sxi"], id="damaged"),
    ],
)
def test_what_is_not_what_was_written_is_found(read: list[bytes]) -> None:
    with pytest.raises(RecordsDiffer, match="here: "):
        compare(tally_of([b"one", b"two", b"six"]), tally_of(read), where="here")


def test_a_checksum_that_nobody_took_is_not_compared_but_the_count_is() -> None:
    written = tally_of([b"one", b"two"])
    compare(written, Tally(records=2, size_bytes=6, checksum=None), where="here")
    assert (written + Tally(records=0, size_bytes=0, checksum=None)).checksum is None
    with pytest.raises(RecordsDiffer):
        compare(written, Tally(records=1, size_bytes=3, checksum=None), where="here")


def test_the_pool_holds_values_of_the_size_that_differ() -> None:
    for record_bytes in (100, 1024, 10_240):
        pool = make_pool(record_bytes)
        assert {len(value) for value in pool} == {record_bytes}
        assert len(set(pool)) == len(pool) > 100


def test_jobs_and_outcomes_survive_the_way_to_a_process_and_back() -> None:
    pace = jobs.Pace(bootstrap="h:1", topic="t", record_bytes=100, records=5, records_per_second=1000, linger_ms=None)
    read = jobs.Read(bootstrap="h:1", topic="t", records=5, start=jobs.END, is_checked=True)
    for job in (pace, read):
        assert jobs.decode_job(jobs.encode_job(job)) == job
    done = jobs.Done(tally=tally_of([b"one"]), began_ns=1, ended_ns=2, latencies_ns=[3, 4])
    assert jobs.decode_done(jobs.encode_done(done)) == done


def test_clients_that_work_together_are_timed_from_the_first_beginning_to_the_last_end() -> None:
    outcomes = [
        jobs.Done(tally=tally_of([b"one"]), began_ns=2_000_000_000, ended_ns=5_000_000_000),
        jobs.Done(tally=tally_of([b"two"]), began_ns=1_000_000_000, ended_ns=3_000_000_000),
    ]
    assert jobs.seconds_of(outcomes) == 4.0
    assert jobs.total_of(outcomes) == tally_of([b"one", b"two"])
    assert NOTHING + outcomes[0].tally == outcomes[0].tally


def test_the_java_clients_rate_is_that_after_its_warm_up() -> None:
    output = (
        "100 records sent, 20.0 records/sec (0.02 MB/sec), 5.0 ms avg latency, 9.0 ms max latency.\n"
        "300 records sent, 70.5 records/sec (0.07 MB/sec), 5.31 ms avg latency, 1 ms 50th, 9 ms 95th.\n"
        "200 steady state records sent, 123456.789 records/sec (120.56 MB/sec), 5.31 ms avg latency.\n"
    )
    assert read_summary(output) == (300, 123456.789)
    assert read_summary("usage: producer-performance") is None


def test_a_process_name_with_brackets_and_blanks_does_not_shift_the_fields() -> None:
    fields = "S 7 1 1 0 -1 4194560 1 1 0 0 100 20 3 4 20 0 1 0"
    assert parse_stat(f"42 (a ) b) {fields}") == (7, 127)


def test_the_cost_of_a_live_process_is_seen() -> None:
    assert os.getpid() in process_tree(os.getppid())
    assert cpu_seconds(os.getpid()) > 0
    seen = memory(os.getpid())
    assert seen.rss_bytes >= seen.pss_bytes > 0
