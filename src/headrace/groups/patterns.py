"""Regular expressions of all groups of a broker: matched on a thread, once per name, for all who ask.

Group machines are plain code on the event loop, so they only look up here what was found before. Their shell lets a
pattern be resolved before a member that brings it is let in, and before a group that knows it is loaded. When topics
come, only the new names are matched (`topic_news.py`); until then a pattern stands for what it stood for before.

Must stay true:
- What a look-up returns was found for every name of some recent image of the topics. It never shrinks by a match that
  is still under way.
- No pattern is matched on the event loop, but for one that nobody has announced: that is a mistake of ours, which
  must not cost a member its partitions.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from headrace.groups.regexes import INTERNAL_TOPICS, InvalidPattern, Regex, compiled, matching, shown
from headrace.runtime.executor import Executor

Names = Mapping[str, object]
"""All topics by name, as one image has them. Never changed: threads may read it and patterns may share it."""

MAX_MATCH_S = 1.0
"""What one new pattern may take to be matched with all topics, in seconds of a thread's time. Ordinary ones take 2 µs
per name, the dearest that RE2 lets pass 2 ms: those are refused where there are many topics."""

MAX_UPDATE_S = 0.5
"""How long all patterns together are matched with new names, in seconds of a thread's time, before groups hear of the
topics. What is left goes on afterwards."""

SLICE_S = 0.02
"""How long one pattern has the thread before others have their turn, in seconds of the thread's time."""

NAMES_PER_LOOK = 16
"""How many names are matched between two looks at the time."""

MAX_REFUSED = 128
"""How many patterns are remembered as too dear, so that a member that tries again does not cost as much again."""


@dataclass(slots=True)
class _Resolved:
    """What a pattern stands for: `found` among all of `seen`. `used_in`: the last round in which it was looked up."""

    regex: Regex
    found: frozenset[str]
    seen: Names
    used_in: int
    update: "_Matching | None" = None


@dataclass(frozen=True, slots=True)
class _Refusal:
    """That a pattern was too dear for so many topics."""

    name_count: int
    message: str


class _Matching:
    """One pattern on its way through names that it has not seen, a slice at a time."""

    def __init__(self, regex: Regex, names: Names, before: _Resolved | None = None) -> None:
        self.names = names
        self.spent_s = 0.0
        self.count = 0
        self._regex = regex
        self._before = before
        self._found: set[str] = set()
        self._left: Iterator[str] | None = None

    def advance(self, worked_s: Callable[[], float]) -> bool:
        """Match for one slice of time; say whether that was all. Runs on a thread."""
        began_s = worked_s()
        left = self._begun() if self._left is None else self._left
        is_over = True
        for name in left:
            self.count += 1
            # Bytes spare the library from counting characters.
            if self._regex.fullmatch(name.encode()) and name not in INTERNAL_TOPICS:
                self._found.add(name)
            if self.count % NAMES_PER_LOOK == 0 and worked_s() - began_s >= SLICE_S:
                is_over = False
                break
        self.spent_s += worked_s() - began_s
        return is_over

    def found(self) -> frozenset[str]:
        """Return all names that match, once `advance` has said that it is over."""
        return frozenset(self._found)

    def _begun(self) -> Iterator[str]:
        new: Iterable[str] = self.names
        if self._before is not None:
            seen, names = self._before.seen, self.names
            self._found = {name for name in self._before.found if name in names}
            new = [name for name in names if name not in seen]
        self._left = iter(new)
        return self._left


class Patterns:
    """All patterns that members of this broker's groups subscribe with."""

    def __init__(
        self,
        *,
        names: Callable[[], Names],
        executor: Executor,
        worked_s: Callable[[], float],
        max_match_s: float = MAX_MATCH_S,
    ) -> None:
        """Take what returns the topics as they are now. `worked_s` returns how long the calling thread has worked."""
        self._names = names
        self._executor = executor
        self._worked_s = worked_s
        self._max_match_s = max_match_s
        self._resolved: dict[str, _Resolved] = {}
        self._resolving: dict[str, asyncio.Task[None]] = {}
        self._held: Counter[str] = Counter()
        self._refused: OrderedDict[str, _Refusal] = OrderedDict()
        self._round = 0
        self.matched_names = 0
        """How many names were matched with a pattern so far."""

    def __len__(self) -> int:
        return len(self._resolved)

    def matching(self, pattern: str, names: Collection[str]) -> frozenset[str]:
        """Return what a pattern stands for; what was resolved is looked up. Raises `InvalidPattern`."""
        known = self._resolved.get(pattern)
        if known is None:
            return matching(pattern, names)
        known.used_in = self._round
        return known.found

    @asynccontextmanager
    async def held(self, patterns: Iterable[str], *, is_new: bool) -> AsyncIterator[None]:
        """Resolve patterns, and keep them until the caller has handed them to a group.

        Raises `InvalidPattern` for what RE2 does not take and, if they are new, for what is too dear. Those of a
        group that is loaded were taken once: they are resolved whatever it costs, or stand for nothing.
        """
        wanted = list(dict.fromkeys(patterns))
        self._held.update(wanted)
        try:
            for pattern in wanted:
                await self._resolve(pattern, is_new=is_new)
            yield
        finally:
            self._held.subtract(wanted)
            for pattern in wanted:
                if not self._held[pattern]:
                    del self._held[pattern]

    async def update(self) -> bool:
        """Match names that have come since; return whether all patterns know all topics by now."""
        names = self._names()
        behind = [one for one in self._resolved.values() if one.seen is not names]
        behind.sort(key=lambda one: one.update is not None)  # those that took long already come last
        spent_s = 0.0
        while behind and spent_s < MAX_UPDATE_S:
            left, slice_s = await self._executor.run(lambda: self._update_some(behind, names))  # noqa: B023
            self._take(behind[: len(behind) - len(left)])
            behind, spent_s = left, spent_s + slice_s
        return not behind and all(one.seen is self._names() for one in self._resolved.values())

    def begin_round(self) -> None:
        """Begin a round in which all groups look up what they use."""
        self._round += 1

    def end_round(self) -> None:
        """Forget what nobody has looked up in this round."""
        unused = [
            pattern
            for pattern, one in self._resolved.items()
            if one.used_in < self._round and pattern not in self._held
        ]
        for pattern in unused:
            del self._resolved[pattern]

    async def _resolve(self, pattern: str, *, is_new: bool) -> None:
        while pattern not in self._resolved:
            if is_new:
                self._check_refused(pattern)
            task = self._resolving.get(pattern)
            if task is None:
                task = asyncio.get_running_loop().create_task(self._first(pattern, is_new=is_new))
                self._resolving[pattern] = task
                task.add_done_callback(lambda done: self._forget_task(pattern, done))
            try:
                await asyncio.shield(task)
            except InvalidPattern:
                if is_new:
                    raise
                if self._refused.get(pattern) is None:
                    return  # A release with other limits must still be able to load the group.
            finally:
                # It holds its error, whose traceback holds this frame, and with it the request that waits here.
                del task

    def _forget_task(self, pattern: str, done: "asyncio.Task[None]") -> None:
        del self._resolving[pattern]
        if not done.cancelled():
            done.exception()  # those who wait raise it

    async def _first(self, pattern: str, *, is_new: bool) -> None:
        """Match a pattern with all topics. Raises `InvalidPattern`."""
        regex = await self._executor.run(lambda: compiled(pattern))
        before: _Resolved | None = None
        # Topics may come meanwhile. Those who hear of them now do not know of this pattern yet.
        while before is None or before.seen is not self._names():
            one = _Matching(regex, self._names(), before)
            while not await self._executor.run(lambda: one.advance(self._worked_s)):  # noqa: B023
                if is_new and one.spent_s > self._max_match_s:
                    self._refuse(pattern, one)
            self.matched_names += one.count
            before = _Resolved(regex, one.found(), one.names, self._round)
        before.used_in = self._round
        self._resolved[pattern] = before
        self._refused.pop(pattern, None)

    def _update_some(self, behind: list[_Resolved], names: Names) -> tuple[list[_Resolved], float]:
        """Bring patterns up to date for one slice of time; return those that are left, and the time that it took."""
        began_s = self._worked_s()
        for number, one in enumerate(behind):
            if one.update is None:
                one.update = _Matching(one.regex, names, one)
            if not one.update.advance(self._worked_s):
                # The others have their turn before it goes on.
                return [*behind[number + 1 :], one], self._worked_s() - began_s
            if self._worked_s() - began_s >= SLICE_S:
                return behind[number + 1 :], self._worked_s() - began_s
        return [], self._worked_s() - began_s

    def _take(self, done: list[_Resolved]) -> None:
        for one in done:
            update = one.update
            if update is None:
                continue
            self.matched_names += update.count
            one.found, one.seen, one.update = update.found(), update.names, None

    def _check_refused(self, pattern: str) -> None:
        known = self._refused.get(pattern)
        if known is not None and len(self._names()) >= known.name_count:
            raise InvalidPattern(known.message)

    def _refuse(self, pattern: str, one: _Matching) -> None:
        message = (
            f"regular expression '{shown(pattern)}' costs too much: {one.count} of {len(one.names)} topics took "
            f"{one.spent_s * 1000:.0f} ms, {self._max_match_s * 1000:.0f} ms are allowed for all. "
            "Use one with fewer repetitions, or subscribe by name"
        )
        self._refused[pattern] = _Refusal(len(one.names), message)
        self._refused.move_to_end(pattern)
        if len(self._refused) > MAX_REFUSED:
            self._refused.popitem(last=False)
        raise InvalidPattern(message)
