"""Run what never waits without an event loop: the in-memory stores, from checkers and property tests."""

from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of an in-memory store, which never waits, to its end."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("an in-memory store waited for something")
