"""The exception tree: what a caller may rely on when it catches one of them."""

import inspect

import pytest

from headrace import errors
from headrace.errors import HeadraceError, OutcomeUnknown, Retryable, Throttled


def _raised_types() -> list[type[HeadraceError]]:
    return [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, HeadraceError)]


def test_failed_and_outcome_unknown_are_never_caught_as_each_other() -> None:
    assert not issubclass(OutcomeUnknown, Retryable)
    assert not issubclass(Retryable, OutcomeUnknown)


def test_a_throttled_call_may_be_retried_like_any_other_without_effect() -> None:
    assert issubclass(Throttled, Retryable)


@pytest.mark.parametrize("kind", _raised_types())
def test_every_error_has_the_root_and_says_what_to_do(kind: type[HeadraceError]) -> None:
    assert issubclass(kind, HeadraceError)
    assert not issubclass(kind, OSError | ValueError), "a library's error must not be taken for ours"
    assert kind.__doc__ and kind.__doc__.endswith(".")


@pytest.mark.parametrize("kind", [kind for kind in _raised_types() if kind not in (HeadraceError, Throttled)])
def test_remedies_do_not_overlap(kind: type[HeadraceError]) -> None:
    others = [other for other in _raised_types() if other not in (HeadraceError, kind, Throttled)]
    assert not any(issubclass(kind, other) for other in others)
