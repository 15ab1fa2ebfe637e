"""The answer to "all topics", encoded once per change: with 100,000 partitions it takes half a second to make.

Must stay true: an answer is given only for the very topics and brokers that it was made from.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from headrace.cluster.view import LivingBrokers

MAX_KEPT_ANSWERS = 8
"""How many answers are kept: one per version, zone and set of wishes. 100,000 partitions take some 3 MB."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """What an answer depends on besides topics and brokers: who asks, and for what."""

    version: int
    zone: str | None
    cluster_operations: bool
    topic_operations: bool


@dataclass(frozen=True, slots=True)
class _Kept:
    generation: int
    living: LivingBrokers
    body: "asyncio.Task[bytes]"


class AllTopics:
    """Keeps the latest answers, and shares the making of one among all who ask meanwhile."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Wishes, _Kept] = OrderedDict()

    async def body(
        self, wishes: Wishes, generation: int, living: LivingBrokers, make: Callable[[], Awaitable[bytes]]
    ) -> bytes:
        """Return the encoded answer for this generation of topics and these brokers; `make` is called if need be."""
        kept = self._kept.pop(wishes, None)
        if kept is None or kept.generation != generation or kept.living is not living or _has_failed(kept.body):
            kept = _Kept(generation, living, asyncio.ensure_future(_awaited(make)))
            kept.body.add_done_callback(_has_failed)
        self._kept[wishes] = kept
        if len(self._kept) > MAX_KEPT_ANSWERS:
            self._kept.popitem(last=False)
        # Who stops waiting must not break it off: others may wait for it, too.
        return await asyncio.shield(kept.body)


async def _awaited(make: Callable[[], Awaitable[bytes]]) -> bytes:
    return await make()


def _has_failed(body: "asyncio.Task[bytes]") -> bool:
    return body.done() and (body.cancelled() or body.exception() is not None)
