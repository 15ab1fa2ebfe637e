"""What a soak calls wrong: records that are gone, doubled, elsewhere or changed; and what it lets pass."""

from collections.abc import Iterable

import pytest

from benchmarks.soak import bounds
from benchmarks.soak.clients import Ledger, Sightings, Skip
from benchmarks.soak.judging import Judge
from benchmarks.soak.plan import KEYS, Life, SoakTopic, quick_plan
from benchmarks.soak.stock import Stock

END = 1000.0


def topic(life: Life) -> SoakTopic:
    return next(one for one in quick_plan().topics if one.life is life)


def ledger_of(numbers: Iterable[int], *, at: float = END) -> Ledger:
    """Return a ledger in which record n stands at offset n of partition 0."""
    ledger = Ledger()
    for number in numbers:
        ledger.at[0, number] = number
        ledger.acknowledged_at[0, number] = at
    return ledger


def seen_of(life: Life, numbers: Iterable[int]) -> Sightings:
    seen = Sightings(topic(life))
    seen.at.update({(0, number): number for number in numbers})
    return seen


@pytest.mark.parametrize("life", Life)
def test_whoever_reads_everything_has_nothing_to_complain_about(life: Life) -> None:
    judge = Judge(topic(life), ledger_of(range(100)))
    assert judge.of_reader(seen_of(life, range(100)), at=END) == []
    assert judge.of_follower(seen_of(life, range(100))) == []


def test_a_record_that_nothing_may_take_is_missed() -> None:
    judge = Judge(topic(Life.KEPT), ledger_of(range(10)))
    (problem,) = judge.of_reader(seen_of(Life.KEPT, range(1, 10)), at=END)
    assert "(0, 0), record 0, is gone" in problem


def test_an_old_record_may_be_gone_and_a_young_one_may_not() -> None:
    aged = topic(Life.AGED)
    retention_s = int(aged.config["retention.ms"]) / 1000
    old = Judge(aged, ledger_of(range(3), at=END - retention_s))
    young = Judge(aged, ledger_of(range(3), at=END - retention_s + 0.1))
    assert old.of_reader(seen_of(Life.AGED, ()), at=END) == []
    assert len(young.of_reader(seen_of(Life.AGED, ()), at=END)) == 3


def test_only_what_lies_far_enough_from_the_end_may_go_by_size() -> None:
    sized = topic(Life.SIZED)
    count = 10 * int(sized.config["retention.bytes"]) // sized.value_bytes
    judge = Judge(sized, ledger_of(range(count)))
    assert judge.of_reader(seen_of(Life.SIZED, range(count // 2, count)), at=END) == []
    assert judge.of_reader(seen_of(Life.SIZED, range(count - 10, count)), at=END)


def test_the_latest_record_of_a_key_stays_unless_it_is_a_tombstone() -> None:
    compacted = topic(Life.COMPACTED)
    numbers = range(3 * KEYS)
    latest = [number for number in numbers if number >= 2 * KEYS]
    judge = Judge(compacted, ledger_of(numbers))
    lasting = [number for number in latest if compacted.value_of(number) is not None]
    assert len(lasting) < len(latest)
    assert judge.of_reader(seen_of(Life.COMPACTED, lasting), at=END) == []
    (problem,) = judge.of_reader(seen_of(Life.COMPACTED, lasting[1:]), at=END)
    assert f"record {lasting[0]}," in problem


def test_a_record_where_none_was_acknowledged_is_a_problem() -> None:
    judge = Judge(topic(Life.KEPT), ledger_of(range(5)))
    assert "where None was acknowledged" in judge.of_reader(seen_of(Life.KEPT, range(6)), at=END)[0]


def test_a_follower_may_skip_only_what_was_gone_when_it_came() -> None:
    aged = topic(Life.AGED)
    retention_s = int(aged.config["retention.ms"]) / 1000
    judge = Judge(aged, ledger_of(range(10)))
    seen = seen_of(Life.AGED, range(5, 10))
    seen.skips.append(Skip(partition=0, start_offset=0, end_offset=5, at=END + retention_s))
    assert judge.of_follower(seen) == []
    seen.skips[0] = Skip(partition=0, start_offset=0, end_offset=5, at=END + 1)
    assert len(judge.of_follower(seen)) == 5


def test_what_is_more_than_the_bounds_allow_is_named() -> None:
    allowed = bounds(quick_plan(), 1_000_000)
    full = {"objects": allowed.objects, "entries": allowed.entries, "metadata_keys": allowed.metadata_keys}
    assert allowed.exceeded_by(Stock(stored_bytes=allowed.stored_bytes, by_kind={}, **full)) == []
    (problem,) = allowed.exceeded_by(Stock(stored_bytes=allowed.stored_bytes + 1, by_kind={}, **full))
    assert problem.startswith("bytes stored")
