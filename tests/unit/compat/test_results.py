"""Reports of drivers, judged against their lists."""

import pytest

from compat.cases import Case
from compat.results import Report, Verdict, closing_line, failed, judge, not_tried, parse_report, table

PASSES = Case(name="reads", is_short=True, reason=None)
NOT_YET = Case(name="joins", is_short=False, reason="groups are not served yet")


def _report(case: Case, passed: bool) -> Report:
    return Report(case=case.name, passed=passed, seconds=0.5, note="said")


@pytest.mark.parametrize(
    ("case", "passed", "verdict"),
    [
        (PASSES, True, Verdict.PASSED),
        (PASSES, False, Verdict.FAILED),
        (NOT_YET, True, Verdict.NEWLY_PASSED),
        (NOT_YET, False, Verdict.NOT_YET),
    ],
)
def test_verdict_compares_the_list_with_the_truth(case: Case, passed: bool, verdict: Verdict) -> None:
    outcomes = judge("client", [case], [_report(case, passed)], "")
    assert [one.verdict for one in outcomes] == [verdict]
    assert failed(outcomes) is (verdict is Verdict.FAILED)


def test_case_without_a_report_fails_with_the_ending() -> None:
    (outcome,) = judge("client", [PASSES], [], "the driver was killed after its limit of 5 s")
    assert outcome.verdict is Verdict.FAILED
    assert "killed after its limit" in table([outcome])


def test_report_of_a_case_that_was_not_asked_for_counts_for_nothing() -> None:
    assert judge("client", [], [_report(PASSES, True)], "") == []


def test_what_was_not_tried_is_shown_with_its_reason() -> None:
    outcomes = not_tried("client", [NOT_YET])
    assert not failed(outcomes)
    assert "groups are not served yet" in table(outcomes)
    assert "1 not served yet" in closing_line(outcomes, 1.0)


def test_closing_line_tells_of_cases_that_pass_now() -> None:
    outcomes = judge("client", [PASSES, NOT_YET], [_report(PASSES, True), _report(NOT_YET, True)], "")
    assert closing_line(outcomes, 61.0) == (
        "1 clients: 1 passed, 0 failed, 0 not served yet, in 61 s; "
        "1 listed as not yet pass now: move them to [passes]"
    )


def test_note_of_many_lines_stays_on_one_line() -> None:
    outcomes = judge("client", [PASSES], [Report(case="reads", passed=False, seconds=1.0, note="a\nb\n" * 200)], "")
    assert len(table(outcomes).splitlines()) == 1


@pytest.mark.parametrize(
    "line",
    ["", "hello", "{", "{}", '{"case": "a"}', '{"case": "a", "passed": true, "seconds": "x"}', "[1]", "{1: 2}"],
)
def test_line_that_is_no_report_is_left_alone(line: str) -> None:
    assert parse_report(line) is None


def test_report_is_read() -> None:
    found = parse_report('{"case": "a", "passed": true, "seconds": 1.5, "note": "n"}')
    assert found == Report(case="a", passed=True, seconds=1.5, note="n")
