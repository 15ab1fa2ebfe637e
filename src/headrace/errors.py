"""What can go wrong, named for the caller's next move.

`Retryable` and `OutcomeUnknown` look alike on the wire and are opposites for whoever holds data:
after the first nothing has happened, after the second it may have. Every port promises to tell
them apart, so code above it never has to guess.
"""

from typing import TypeVar

E = TypeVar("E", bound=BaseException)


class HeadraceError(Exception):
    """The root of everything Headrace raises on purpose."""


class Retryable(HeadraceError):
    """It failed and had no effect; the same call may succeed later."""


class Throttled(Retryable):
    """The other side asks for fewer calls: back off before the next try."""


class OutcomeUnknown(HeadraceError):
    """It may or may not have taken effect: look before acting again."""


class Fenced(HeadraceError):
    """Somebody else has taken over: stop acting, re-read, start anew."""


class Invalid(HeadraceError):
    """What was asked for is wrong and stays wrong: do not try again."""


class Missing(HeadraceError):
    """The thing that was named is not there."""


class Exists(HeadraceError):
    """The thing that was to be created is there already."""


class Corrupt(HeadraceError):
    """Stored bytes are not what was written. Nothing is deleted, nothing is guessed."""


class Unsupported(HeadraceError):
    """This store or this release cannot do it: change the configuration or upgrade."""


class Unusable(HeadraceError):
    """A store can no longer be trusted in this process: stop it, look at the disk, start again."""


def without_frames(error: E) -> E:
    """Let go of the frames that an error and its causes went through, and return it.

    For errors that are kept or handed on as values: their tracebacks would keep every local of these frames alive,
    whole requests among them, and often the very place where the error is kept.
    """
    link: BaseException | None = error
    seen: set[int] = set()
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        link.__traceback__ = None
        link = link.__cause__ or link.__context__
    return error
