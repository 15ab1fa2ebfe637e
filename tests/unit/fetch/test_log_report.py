"""The report of a verified log: ordered, joined where one cause has many entries, and bounded."""

import pytest

from headrace.fetch import log_report
from headrace.fetch.damage import Damage
from headrace.fetch.log_report import LogReport


def damage(start: int, end: int, *, key: str = "wal/a", at: int = 0, why: str = "it is gone") -> Damage:
    return Damage(object_key=key, start_byte=at, size_bytes=10, start_offset=start, end_offset=end, why=why)


def test_neighbours_with_one_cause_are_one_damage_in_the_order_of_offsets() -> None:
    report = LogReport()
    for start in (4, 0, 2):
        report.add(damage(start, start + 2, at=10 * start), topic="t", partition=0)
    report.add(damage(8, 9), topic="t", partition=0)
    report.add(damage(6, 7), topic="s", partition=1)
    found = [
        (one.topic, one.start_offset, one.end_offset, one.start_byte, one.size_bytes) for one in report.damages()
    ]
    assert found == [("s", 6, 7, 0, 10), ("t", 0, 6, 0, 50), ("t", 8, 9, 0, 10)]
    assert report.count == 5 and not report.is_clean


@pytest.mark.parametrize(
    "second",
    [damage(2, 3, key="wal/b"), damage(2, 3, why="its CRC is wrong"), damage(3, 4), damage(2, 3, key="")],
    ids=["object", "cause", "gap", "index"],
)
def test_other_damages_stay_apart(second: Damage) -> None:
    report = LogReport()
    report.add(damage(0, 2), topic="t", partition=0)
    report.add(second, topic="t", partition=0)
    assert len(report.damages()) == 2


def test_more_damages_than_fit_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_report, "MAX_DAMAGES", 3)
    report = LogReport()
    for start in range(0, 20, 2):
        report.add(damage(start, start + 1), topic="t", partition=0)
    assert (report.count, len(report.damages()), report.uncounted) == (10, 3, 7)
