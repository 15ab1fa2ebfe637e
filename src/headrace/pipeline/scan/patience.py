"""Ask again where a store does not answer: a query that has run for days must not end because of one lost connection.

Spark's Kafka source asks three times again, too, a second apart.

Must stay true: what is asked for again may be done twice without harm. Looks are; a pin that was put without our
knowing of it ends by itself.
"""

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from headrace.errors import OutcomeUnknown, Retryable
from headrace.runtime.clock import Clock

T = TypeVar("T")

ATTEMPTS: Final = 4
BACKOFF_S: Final = 0.5
"""The first pause; each further one is twice as long."""


async def patiently(ask: Callable[[], Awaitable[T]], *, clock: Clock) -> T:
    """Return the answer, asking some times more where there is none. Raises what the last try raised."""
    for attempt in range(ATTEMPTS - 1):
        try:
            return await ask()
        except (Retryable, OutcomeUnknown):
            await clock.sleep(BACKOFF_S * 2**attempt)
    return await ask()
