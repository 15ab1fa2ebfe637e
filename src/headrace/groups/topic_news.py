"""Tell groups that topics have changed: many changes at once, and a few groups at a time.

A broker coordinates thousands of groups, and topics may come by the hundred. So changes that come while one round of
telling is under way share the next one, and the event loop belongs to others between any two groups.

Must stay true: after the last change, every group hears of an image that has it, and of patterns that were matched
with it. Loading a group in the middle of a round is harmless: it begins with the newest image.
"""

import asyncio

from headrace.groups.images import TopicImages
from headrace.groups.patterns import Patterns
from headrace.groups.protocol import TopicsChanged
from headrace.groups.seats import Seats
from headrace.runtime.clock import Clock

GROUPS_AT_ONCE = 4
"""How many groups hear of topics before others have their turn on the event loop."""

MAX_UNUSED_PATTERNS = 1_000
"""By how many patterns there may be more than after the last round, before a round finds out which are still used."""


class TopicNews:
    """Brings topics to the groups of one broker."""

    def __init__(self, *, images: TopicImages, patterns: Patterns, seats: Seats, clock: Clock) -> None:
        self._images = images
        self._patterns = patterns
        self._seats = seats
        self._clock = clock
        self._is_due = asyncio.Event()
        self._patterns_kept = 0

    def changed(self) -> None:
        """Take note that topics have changed."""
        self._images.outdate()
        self._is_due.set()

    async def tick(self) -> None:
        """Ask for a round if there are many patterns that perhaps nobody uses any more."""
        if len(self._patterns) > self._patterns_kept + MAX_UNUSED_PATTERNS:
            self._is_due.set()

    async def run(self) -> None:
        """Tell groups whenever topics have changed, until cancelled."""
        while True:
            await self._is_due.wait()
            self._is_due.clear()
            try:
                await self._tell()
            except BaseException:
                self._is_due.set()  # the next round must not forget what was not told
                raise

    async def _tell(self) -> None:
        is_all_known = await self._patterns.update()
        self._patterns.begin_round()
        event = TopicsChanged(image=self._images.current())
        for number, seat in enumerate(self._seats, start=1):
            seat.tell(event)
            if number % GROUPS_AT_ONCE == 0:
                await self._clock.sleep(0)
        self._patterns.end_round()
        self._patterns_kept = len(self._patterns)
        if not is_all_known:
            self._is_due.set()
