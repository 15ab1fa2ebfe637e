"""Go through a tree of directories in the order of whole keys.

Directory order is not key order: `a-c` and `a.b` come before `a/b`, because `-` and `.` sort before `/`, yet the
directory `a` comes before both. So a directory is sorted under its name with the `/`, as its keys are.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass

from headrace.objects.port import ObjectInfo, object_key


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """What one directory holds: directories by their full path with a `/` at the end, and objects."""

    directories: Iterable[str]
    objects: Iterable[ObjectInfo]


async def walk(
    read_level: Callable[[str], Awaitable[Level]], prefix: str, start_after: str
) -> AsyncIterator[ObjectInfo]:
    """Yield what lies under `prefix` behind `start_after`, reading only directories that may hold some of it.

    Memory holds one level for each step down the tree.
    """
    pending: list[str | ObjectInfo] = [directory_of(prefix)]
    while pending:
        step = pending.pop()
        if isinstance(step, ObjectInfo):
            yield step
            continue
        level = await read_level(step)
        wanted: list[str | ObjectInfo] = [d for d in level.directories if _may_hold(d, prefix, start_after)]
        wanted += [o for o in level.objects if o.key.startswith(prefix) and o.key > start_after]
        wanted.sort(key=_position, reverse=True)
        pending += wanted


def directory_of(prefix: str) -> str:
    """Return the directory that all keys with this prefix lie in, with its `/`; the root is empty."""
    directory = prefix[: prefix.rfind("/") + 1]
    if directory:
        object_key(directory[:-1])
    return directory


def _may_hold(directory: str, prefix: str, start_after: str) -> bool:
    on_the_way = directory.startswith(prefix) or prefix.startswith(directory)
    return on_the_way and (directory > start_after or start_after.startswith(directory))


def _position(step: str | ObjectInfo) -> str:
    return step if isinstance(step, str) else step.key
