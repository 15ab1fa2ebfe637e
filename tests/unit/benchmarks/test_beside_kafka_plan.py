"""Which cells are measured, and how the short form is asked for."""

import functools

import pytest

from benchmarks import __main__ as command
from benchmarks.beside_kafka.plan import full_plan, quick_plan


def test_the_full_plan_covers_every_cell_and_the_quick_one_a_part() -> None:
    titles = [step.scenario.title for step in full_plan().steps]
    assert len(titles) == len(set(titles))
    for size in ("100 B", "1 KiB", "10 KiB"):
        for partitions in ("1 partition", "6 partitions", "100 partitions"):
            for producers in ("1 producer", "4 producers"):
                assert f"{size}, {partitions}, {producers}" in titles
    quick = [step.scenario.title for step in quick_plan().steps]
    assert set(quick) < set(titles)
    assert [step.scenario.title for step in quick_plan().only("100 B").steps] == ["100 B, 6 partitions, 1 producer"]


def test_quick_without_names_runs_only_what_has_a_short_form(monkeypatch: pytest.MonkeyPatch) -> None:
    known = command.discover()
    assert command.has_quick_form(known["beside_kafka"])
    assert not command.has_quick_form(known["wire"])
    asked: list[tuple[str, bool]] = []

    def note(name: str, *, is_quick: bool = False) -> list[command.Row]:
        asked.append((name, is_quick))
        return []

    for name, module in known.items():
        monkeypatch.setattr(module, "run", functools.partial(note, name))
    monkeypatch.setattr(command, "save", lambda figures, path: None)
    assert command.main(["--quick"]) == 0
    assert ("beside_kafka", True) in asked
    assert ("tables_beside_spark", True) in asked
    assert [name for name, _ in asked] == sorted(name for name in known if command.has_quick_form(known[name]))
    assert all(is_quick for _, is_quick in asked)
    asked.clear()
    assert command.main(["--quick", "wire", "beside_kafka"]) == 0
    assert asked == [("wire", False), ("beside_kafka", True)]
    asked.clear()
    assert command.main(["beside_kafka"]) == 0
    assert asked == [("beside_kafka", False)]
