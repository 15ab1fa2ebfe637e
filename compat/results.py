"""What drivers reported, judged against their lists, and the table that a person reads.

Must stay true: every case that was asked for has an outcome. A driver that ends early, hangs or prints nonsense fails
the cases that it owes.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from compat.cases import Case

NOTE_LETTERS = 300


class Verdict(Enum):
    """What an outcome means for the run."""

    PASSED = "pass"
    FAILED = "FAIL"
    NOT_YET = "not yet"
    NEWLY_PASSED = "PASSES NOW"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one case of one client."""

    client: str
    case: Case
    verdict: Verdict
    seconds: float
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One line of a driver."""

    case: str
    passed: bool
    seconds: float
    note: str


def parse_report(line: str) -> Report | None:
    """Read one line of a driver's output; None: it is not a report."""
    if not line.startswith("{"):
        return None
    try:
        content = json.loads(line)
        return Report(
            case=str(content["case"]),
            passed=content["passed"] is True,
            seconds=float(content["seconds"]),
            note=str(content.get("note", "")),
        )
    except (ValueError, KeyError, TypeError):
        return None


def judge(client: str, asked: Sequence[Case], reports: Iterable[Report], ending: str) -> list[Outcome]:
    """Give every case that was asked for its verdict. `ending` says why the missing ones have no report."""
    found = {report.case: report for report in reports}
    outcomes = []
    for case in asked:
        report = found.get(case.name) or Report(case=case.name, passed=False, seconds=0.0, note=ending)
        if case.reason is None:
            verdict = Verdict.PASSED if report.passed else Verdict.FAILED
        else:
            verdict = Verdict.NEWLY_PASSED if report.passed else Verdict.NOT_YET
        outcomes.append(Outcome(client=client, case=case, verdict=verdict, seconds=report.seconds, note=report.note))
    return outcomes


def not_tried(client: str, cases: Iterable[Case]) -> list[Outcome]:
    """Give the cases that are not served yet and were not asked for a line of their own: listed, not hidden."""
    return [
        Outcome(client=client, case=case, verdict=Verdict.NOT_YET, seconds=0.0, note=case.reason or "")
        for case in cases
    ]


def failed(outcomes: Iterable[Outcome]) -> bool:
    """Tell whether the run failed: a case that passes by its list did not."""
    return any(outcome.verdict is Verdict.FAILED for outcome in outcomes)


def table(outcomes: Sequence[Outcome]) -> str:
    """Write one line per client and case."""
    wide = max((len(outcome.client) for outcome in outcomes), default=0)
    name_wide = max((len(outcome.case.name) for outcome in outcomes), default=0)
    return "\n".join(
        f"{one.client:{wide}}  {one.case.name:{name_wide}}  {one.verdict.value:10}  {one.seconds:6.1f} s"
        f"  {_one_line(one.note)}".rstrip()
        for one in outcomes
    )


def closing_line(outcomes: Sequence[Outcome], seconds: float) -> str:
    """Count the verdicts."""
    counts = {verdict: sum(one.verdict is verdict for one in outcomes) for verdict in Verdict}
    clients = len({one.client for one in outcomes})
    line = (
        f"{clients} clients: {counts[Verdict.PASSED]} passed, {counts[Verdict.FAILED]} failed, "
        f"{counts[Verdict.NOT_YET]} not served yet, in {seconds:.0f} s"
    )
    newly = counts[Verdict.NEWLY_PASSED]
    return f"{line}; {newly} listed as not yet pass now: move them to [passes]" if newly else line


def _one_line(note: str) -> str:
    flat = " ".join(note.split())
    return flat if len(flat) <= NOTE_LETTERS else flat[:NOTE_LETTERS] + " ..."
