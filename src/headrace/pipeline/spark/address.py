"""How the object store is opened where tasks run.

Must stay true: this loads little. Drivers name addresses in Python processes that live for one plan only.
"""

import msgspec

from headrace.objects.open import open_objects
from headrace.objects.port import ObjectStore
from headrace.objects.retrying import RetryPolicy
from headrace.runtime.clock import SystemClock
from headrace.runtime.executor import ThreadExecutor
from headrace.runtime.rng import system_rng


class ObjectsAddress(msgspec.Struct, frozen=True):
    """How an executor opens the object store. Its credentials are in its own environment, never in here."""

    url: str
    retry_attempts: int = 6
    retry_max_backoff_ms: int = 5_000


def open_address(address: ObjectsAddress, executor: ThreadExecutor) -> ObjectStore:
    """Open the object store in this process."""
    return open_objects(
        address.url,
        executor=executor,
        clock=SystemClock(),
        rng=system_rng(),
        policy=RetryPolicy(attempts=address.retry_attempts, max_backoff_ms=address.retry_max_backoff_ms),
        # Copying into pages that the cache has not used before was a third of a task's CPU time at 1 KiB: 2.9
        # against 1.7 CPU seconds per GB in one thread. Whoever reads the table soon brings its pages back.
        drops_cache=True,
    )
