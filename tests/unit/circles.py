"""What stays alive when nothing collects circles: a broker collects seldom, and a buffer must not wait for it."""

import contextlib
import gc
import weakref
from collections.abc import Iterator


class Buffer:
    """Stands for a request's memory: it can be asked whether it is still alive."""


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Collect no circles meanwhile: what dies here, dies because nobody holds it."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def is_gone(buffer: "weakref.ref[Buffer]") -> bool:
    """Say whether the last owner has let go of it."""
    return buffer() is None
