"""One API as the dispatcher knows it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from headrace.handlers.call import Call, Refusal
from headrace.handlers.node import Node
from headrace.wire.reading import MAX_REQUEST_ELEMENTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """Its key and name, the versions that are served, who serves them, and how many elements a request may have."""

    key: int
    name: str
    first_version: int
    last_version: int
    handle: Callable[[Node, Call, Any], Awaitable[Any]]
    refused: Callable[[Call, Any, Refusal], Any]
    max_elements: int = MAX_REQUEST_ELEMENTS
