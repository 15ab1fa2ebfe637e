"""Lists of cases: what passes, and what a client can do that the broker does not serve yet.

A list is a TOML file beside its driver. `[passes]` names cases, each with "short" (part of both forms) or "full";
`[not-yet]` names cases with the reason why they do not pass.

Must stay true: the list and the truth agree. A case that passes by the list and fails in truth fails the run; one
that is listed as not yet and passes is told, so that the list can be mended.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path

FORMS = ("short", "full")


class BadCases(Exception):
    """A list of cases cannot be read; the message says where and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One thing a driver does. `reason` is None for a case that passes, else why it does not yet."""

    name: str
    is_short: bool
    reason: str | None


def load_cases(path: Path) -> tuple[Case, ...]:
    """Read a list. Raises `BadCases` for anything but the two tables."""
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    unknown = sorted(content.keys() - {"passes", "not-yet"})
    if unknown:
        raise BadCases(f"{path}: table [{unknown[0]}] is neither [passes] nor [not-yet]")
    passes, not_yet = content.get("passes", {}), content.get("not-yet", {})
    both = sorted(passes.keys() & not_yet.keys())
    if both:
        raise BadCases(f"{path}: {both[0]} is in both tables: keep one")
    for name, form in passes.items():
        if form not in FORMS:
            raise BadCases(f'{path}: {name} = "{form}": write "short" or "full"')
    for name, reason in not_yet.items():
        if not isinstance(reason, str) or not reason:
            raise BadCases(f"{path}: {name} needs its reason, in words")
    return (
        *(Case(name=name, is_short=form == "short", reason=None) for name, form in passes.items()),
        *(Case(name=name, is_short=False, reason=reason) for name, reason in not_yet.items()),
    )


def chosen_cases(cases: tuple[Case, ...], *, short: bool, try_not_yet: bool) -> tuple[Case, ...]:
    """Return what one run asks of a driver, in the order of the list."""
    return tuple(case for case in cases if (try_not_yet if case.reason is not None else case.is_short or not short))
