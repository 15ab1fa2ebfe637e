"""The clock that retention goes by: the slowest of all living brokers', and none at all after a jump.

Every broker writes down what its wall clock says, in a key that vanishes with its session. A clock that is ahead of
the others then deletes nothing early, and one that is behind only delays.

Must stay true: what `look` returns is not later than this host's clock, nor than what any living broker's clock said
when it last looked. A broker that is registered and has not said anything yet stops retention until it does.
"""

from collections.abc import Callable

from headrace.errors import Fenced
from headrace.index.values import CLOCK_STAMP, ClockStamp
from headrace.metadata import keys
from headrace.metadata.keys import prefix_range
from headrace.metadata.port import Decision, MetadataStore, Reads
from headrace.model.ids import SessionId
from headrace.runtime.clock import Clock
from headrace.runtime.logs import Log

MAX_BROKERS = 1000


class ClockGuard:
    """One broker's part in it: it tells its time, and hears that of the others."""

    def __init__(
        self,
        *,
        node_id: int,
        metadata: MetadataStore,
        session: Callable[[], SessionId | None],
        clock: Clock,
        log: Log,
        max_jump_ms: int,
    ) -> None:
        self._key = keys.clock(node_id)
        self._metadata = metadata
        self._session = session
        self._clock = clock
        self._log = log
        self._max_jump_ms = max_jump_ms
        self._last: tuple[int, float] | None = None

    async def look(self) -> int | None:
        """Tell our time and return the one to go by; `None` where there is none to trust."""
        wall_ms, has_jumped = self._read()
        session = self._session()
        if session is None:
            return None
        stamp = {self._key: CLOCK_STAMP.encode(ClockStamp(wall_ms))}
        try:
            await self._metadata.transact(
                [keys.REGISTRY], Reads(), lambda _: Decision(result=None, ephemerals=stamp), session=session
            )
        except Fenced:
            return None  # a new session follows, or this process ends
        told = await self._told()
        return None if has_jumped or told is None else min([wall_ms, *told])

    def _read(self) -> tuple[int, bool]:
        """Return the wall clock, and whether it was set since the last look."""
        now = self._clock.now_ms(), self._clock.monotonic()
        last, self._last = self._last, now
        if last is None:
            return now[0], False
        moved_ms = (now[0] - last[0]) - round((now[1] - last[1]) * 1000)
        has_jumped = abs(moved_ms) > self._max_jump_ms
        if has_jumped:
            self._log.warning("the wall clock has jumped, so nothing expires this time", by_ms=moved_ms)
        return now[0], has_jumped

    async def _told(self) -> list[int] | None:
        """Return what all living brokers have told, or `None` while one of them has told nothing."""
        brokers = await self._metadata.range(prefix_range(keys.BROKERS, limit=MAX_BROKERS))
        stamps = await self._metadata.range(prefix_range(keys.CLOCKS, limit=MAX_BROKERS))
        nodes = {item.key.removeprefix(keys.CLOCKS) for item in stamps}
        silent = [node for item in brokers if (node := item.key.removeprefix(keys.BROKERS)) not in nodes]
        if silent:
            self._log.info("nothing expires until all brokers have told their time", silent=len(silent))
            return None
        return [CLOCK_STAMP.decode(item.value, item.key).wall_ms for item in stamps]
