"""Where a group's offsets shall go: what `headrace group reset-offsets` was asked for, and the plan that follows.

Nothing here talks to a cluster: a plan follows from what was committed, what each partition holds, and the wish.

Must stay true: every new offset lies between the partition's start offset and its end offset, both included, so that
a consumer which starts there neither skips what is not written yet nor asks for what retention has taken.
"""

import datetime
import enum
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from headrace.cli.group_details import Place
from headrace.errors import HeadraceError, Invalid, Missing

MAX_PARTITION_DIGITS = 9
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MILLISECOND = datetime.timedelta(milliseconds=1)


class WishKind(enum.Enum):
    """The ways to say where offsets shall go, each under the name of its option."""

    EARLIEST = "--to-earliest"
    LATEST = "--to-latest"
    OFFSET = "--to-offset"
    DATETIME = "--to-datetime"
    SHIFT = "--shift-by"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Where offsets shall go. `number` is the offset, the moment in milliseconds since 1970, or how far to move."""

    kind: WishKind
    number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSurvey:
    """What a plan is made from: what a group committed in a partition, and what the partition holds.

    `committed_offset` is None where nothing was committed. `offset_at` is the first offset at or after the moment
    that was asked about, None where nothing is that young or no moment was asked about.
    """

    topic: str
    partition: int
    committed_offset: int | None
    start_offset: int
    end_offset: int
    offset_at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedReset:
    """What happens to one partition.

    `wished_offset` is what was asked for, before it was brought within the partition's bounds. It and `new_offset`
    are None where the wish says nothing: an offset that was never committed cannot be shifted.
    """

    survey: PartitionSurvey
    wished_offset: int | None
    new_offset: int | None

    @property
    def place(self) -> Place:
        """The partition."""
        return self.survey.topic, self.survey.partition

    @property
    def is_change(self) -> bool:
        """Whether there is anything to do."""
        return self.new_offset is not None and self.new_offset != self.survey.committed_offset

    @property
    def is_bounded(self) -> bool:
        """Whether the partition does not reach as far as was asked for."""
        return self.new_offset != self.wished_offset


class Outcome(enum.StrEnum):
    """What happened to a partition, or would."""

    PLANNED = "planned"
    RESET = "reset"
    FAILED = "failed"
    UNCHANGED = "unchanged"
    """The offset is there already."""
    LEFT = "left"
    """It was to be shifted, and nothing was ever committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset:
    """A plan and what became of it.

    `exists` says whether the group is there already. `failures` is None as long as the plan was not carried out; then
    it holds what went wrong in each partition that was to change, None where nothing did.
    """

    group: str
    exists: bool
    plan: Sequence[PlannedReset]
    failures: Mapping[Place, HeadraceError | None] | None

    def outcome(self, step: PlannedReset) -> Outcome:
        """Return what happened to a partition, or would."""
        if step.new_offset is None:
            return Outcome.LEFT
        if not step.is_change:
            return Outcome.UNCHANGED
        if self.failures is None:
            return Outcome.PLANNED
        return Outcome.RESET if self.failures[step.place] is None else Outcome.FAILED


def plan_reset(wish: Wish, surveys: Iterable[PartitionSurvey]) -> list[PlannedReset]:
    """Return what happens to each partition, in the order given."""
    return [_planned(survey, _wished_offset(wish, survey)) for survey in surveys]


def changes_of(plan: Iterable[PlannedReset]) -> dict[Place, int]:
    """Return the offsets that have to be committed for a plan; what is right already is not committed again."""
    return {step.place: step.new_offset for step in plan if step.new_offset is not None and step.is_change}


def choose_wish(given: Mapping[WishKind, int | None]) -> Wish:
    """Return the one wish among what the options were given; what is None was not. Raises `Invalid`."""
    chosen = [Wish(kind=kind, number=number) for kind, number in given.items() if number is not None]
    if len(chosen) != 1:
        names = [kind.value for kind in WishKind]
        given_names = " and ".join(wish.kind.value for wish in chosen)
        problem = f"{given_names} exclude each other" if chosen else "it is not said where to"
        raise Invalid(f"{problem}: give one of {', '.join(names[:-1])} or {names[-1]}")
    return chosen[0]


def parse_topics(given: Sequence[str]) -> dict[str, frozenset[int] | None]:
    """Read what `--topic` takes, TOPIC or TOPIC:0,1,2: the partitions by topic, None for all. Raises `Invalid`."""
    wanted: dict[str, frozenset[int] | None] = {}
    for text in given:
        topic, colon, numbers = text.partition(":")
        words = numbers.split(",") if colon else []
        if not topic or not all(_is_partition(word) for word in words):
            raise Invalid(f"--topic is {text!r}; it takes TOPIC for all partitions, or TOPIC:0,1,2 for some")
        before = wanted.get(topic, frozenset())
        wanted[topic] = None if before is None or not colon else before | {int(word) for word in words}
    return wanted


def choose_partitions(topic: str, wanted: Collection[int] | None, existing: Collection[int]) -> list[int]:
    """Return the partitions to reset, in order; all if `wanted` is None. Raises `Missing` if one is not there."""
    if wanted is None:
        return sorted(existing)
    if absent := sorted(set(wanted) - set(existing)):
        shown = ", ".join(map(str, absent))
        raise Missing(f"topic {topic} has no partition {shown}: it has {len(existing)}, counted from 0")
    return sorted(wanted)


def parse_moment(text: str) -> int:
    """Read an ISO 8601 date or date and time as milliseconds since 1970; without a zone it is UTC. Raises `Invalid`.

    A record's timestamp has milliseconds: what is finer counts up to the next one, the first that is not before it.
    """
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise Invalid(
            f"--to-datetime is {text!r}; it takes ISO 8601, such as 2026-03-01T12:30:00Z or 2026-03-01T13:30+01:00"
        ) from error
    zoned = moment if moment.tzinfo is not None else moment.replace(tzinfo=datetime.UTC)
    moment_ms = -((_EPOCH - zoned) // _MILLISECOND)
    if moment_ms < 0:
        raise Invalid(f"--to-datetime is {text!r}, before 1970: --to-earliest is what goes back that far")
    return moment_ms


def _is_partition(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) <= MAX_PARTITION_DIGITS


def _wished_offset(wish: Wish, survey: PartitionSurvey) -> int | None:
    if wish.kind is WishKind.EARLIEST:
        return survey.start_offset
    if wish.kind is WishKind.OFFSET:
        return wish.number
    if wish.kind is WishKind.SHIFT:
        return None if survey.committed_offset is None else survey.committed_offset + wish.number
    if wish.kind is WishKind.DATETIME and survey.offset_at is not None:
        return survey.offset_at
    return survey.end_offset


def _planned(survey: PartitionSurvey, wished_offset: int | None) -> PlannedReset:
    new_offset = None if wished_offset is None else min(max(wished_offset, survey.start_offset), survey.end_offset)
    assert new_offset is None or survey.start_offset <= new_offset <= survey.end_offset, f"out of bounds: {survey}"
    return PlannedReset(survey=survey, wished_offset=wished_offset, new_offset=new_offset)
