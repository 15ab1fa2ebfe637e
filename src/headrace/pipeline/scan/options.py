"""What a person may say to `spark.read.format("headrace")`: the options of Spark's Kafka source, and ours.

Spark hands options over as text, with names in lower case. Every one of them is understood, or refused with what
there is instead: an option that is passed over in silence would read something else than what was asked for.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from headrace.errors import Invalid
from headrace.pipeline.scan.conditions import Condition, parse_condition
from headrace.pipeline.scan.offsets import (
    EARLIEST,
    LATEST,
    Offsets,
    Position,
    parse_assignment,
    parse_offsets,
)

T = TypeVar("T")

KEY: Final = "key"
VALUE: Final = "value"
TOPIC: Final = "topic"
PARTITION: Final = "partition"
OFFSET: Final = "offset"
TIMESTAMP: Final = "timestamp"
TIMESTAMP_TYPE: Final = "timestampType"
HEADERS: Final = "headers"
COLUMNS: Final = (KEY, VALUE, TOPIC, PARTITION, OFFSET, TIMESTAMP, TIMESTAMP_TYPE, HEADERS)
"""The columns of Spark's Kafka source, in its order; the last one only where it is asked for."""

MIB: Final = 1024 * 1024
TASK_BYTES: Final = 128 * MIB
"""How many stored bytes one task reads, unless the option `taskBytes` says otherwise."""

MAX_TASKS: Final = 100_000

CHOICES: Final = ("subscribe", "subscribePattern", "assign")
STARTS: Final = ("startingOffsets", "startingOffsetsByTimestamp", "startingTimestamp")
ENDS: Final = ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp")
TRIGGERS: Final = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "trigger")
STORAGE: Final = ("dataDir", "metadata", "objects", "config")
SETTING_PREFIX: Final = "headrace."

KNOWN: Final = (
    *CHOICES,
    *STARTS,
    *ENDS,
    "startingOffsetsByTimestampStrategy",
    "failOnDataLoss",
    "minPartitions",
    "maxRecordsPerPartition",
    "includeHeaders",
    *TRIGGERS,
    "columns",
    "pushdown",
    "taskBytes",
    *STORAGE,
)
"""Every option, as it is written; beside them `headrace.<setting>`."""

_NAMES: Final = {name.lower(): name for name in KNOWN}

_INSTEAD: Final[Mapping[str, str]] = {
    "groupidprefix": "there is no consumer and no group",
    "kafkaconsumer.polltimeoutms": "there is no consumer",
    "fetchoffset.numretries": "headrace.objects.retry.max.attempts says how often storage is tried",
    "fetchoffset.retryintervalms": "headrace.objects.retry.max.delay.ms says how long a pause may be",
    "path": "name topics with subscribe, and say load() without a path; dataDir says where the data is",
    "topic": "that is for writing; to read say subscribe",
    "topics": "say subscribe, with commas between names",
}

_DURATION = re.compile(r"(\d+)\s*(ms|s|min|m|h|d)?")
_UNITS_MS: Final[Mapping[str, int]] = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageOptions:
    """Where the data is: the words of the command line, and settings by their keys."""

    data_dir: str | None = None
    metadata: str | None = None
    objects: str | None = None
    config: str | None = None
    settings: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicChoice:
    """Which partitions are read; exactly one of the three is given."""

    names: tuple[str, ...] | None = None
    pattern: str | None = None
    assignment: Mapping[str, tuple[int, ...]] | None = None

    def takes(self, topic: str) -> bool:
        """Say whether a topic is one of those that are read."""
        if self.pattern is not None:
            return re.fullmatch(self.pattern, topic) is not None
        return topic in (self.names or self.assignment or ())

    @property
    def named(self) -> tuple[str, ...]:
        """The topics that must be there."""
        return self.names or tuple(self.assignment or ())

    def partitions_of(self, topic: str, partition_count: int) -> tuple[int, ...]:
        """Return which partitions of a topic are read."""
        if self.assignment is None:
            return tuple(range(partition_count))
        wanted = self.assignment[topic]
        if wanted and wanted[-1] >= partition_count:
            raise Invalid(f"assign names partition {wanted[-1]} of {topic}, which has {partition_count} partitions")
        return wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerLimits:
    """How much a trigger of a stream takes; `None` is no limit."""

    max_offsets: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = 15 * 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanOptions:
    """One read, as it was asked for. `columns` are those of the rows, in their order."""

    choice: TopicChoice
    starting: Position
    ending: Position
    columns: tuple[str, ...]
    condition: Condition
    fails_on_data_loss: bool
    min_tasks: int
    max_records_per_task: int | None
    task_bytes: int
    trigger: TriggerLimits
    storage: StorageOptions


def columns_of(given: Mapping[str, str]) -> tuple[str, ...]:
    """Return the columns that the options ask for. Raises `Invalid`."""
    options = _Options(given)
    has_headers = options.flag("includeHeaders", default=False)
    listed = options.text("columns")
    if listed is None:
        return COLUMNS if has_headers else COLUMNS[:-1]
    by_lower = {name.lower(): name for name in COLUMNS}
    names = [name.strip() for name in listed.split(",") if name.strip()]
    unknown = [name for name in names if name.lower() not in by_lower]
    if unknown or not names or len({name.lower() for name in names}) < len(names):
        raise Invalid(f"columns is {listed!r}: list some of {', '.join(COLUMNS)}, each once")
    chosen = tuple(by_lower[name.lower()] for name in names)
    if has_headers and HEADERS not in chosen:
        raise Invalid("includeHeaders is true, and columns does not list headers: list them, or leave includeHeaders")
    return chosen


def parse_options(given: Mapping[str, str], *, is_stream: bool) -> ScanOptions:
    """Understand the options of a read. Raises `Invalid`, with what to say instead."""
    options = _Options(given)
    options.refuse_unknown()
    options.refuse_misplaced(ENDS if is_stream else TRIGGERS, is_stream=is_stream)
    return ScanOptions(
        choice=_choice(options),
        starting=_starting(options, is_stream=is_stream),
        ending=_ending(options),
        columns=columns_of(given),
        condition=Condition() if (told := options.text("pushdown")) is None else parse_condition(told),
        fails_on_data_loss=options.flag("failOnDataLoss", default=True),
        min_tasks=options.whole("minPartitions", most=MAX_TASKS) or 1,
        max_records_per_task=options.whole("maxRecordsPerPartition"),
        task_bytes=options.whole("taskBytes") or TASK_BYTES,
        trigger=_trigger(options),
        storage=StorageOptions(
            data_dir=options.text("dataDir"),
            metadata=options.text("metadata"),
            objects=options.text("objects"),
            config=options.text("config"),
            settings=tuple(
                (name.removeprefix(SETTING_PREFIX), value)
                for name, value in sorted(options.given.items())
                if name.startswith(SETTING_PREFIX)
            ),
        ),
    )


class _Options:
    """What was given, by name in lower case."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self.given = {name.lower(): value for name, value in given.items()}

    def text(self, name: str) -> str | None:
        value = self.given.get(name.lower())
        if value is not None and not value.strip():
            raise Invalid(f"{name} is empty: give it a value, or leave it away")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise Invalid(f"{name} is {value!r}: it takes true or false")
        return value.lower() == "true"

    def whole(self, name: str, *, least: int = 1, most: int = 2**63 - 1) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        try:
            number = int(value)
        except ValueError:
            number = least - 1
        if not least <= number <= most:
            raise Invalid(f"{name} is {value!r}: it takes a whole number from {least} to {most}")
        return number

    def parsed(self, name: str, parse: Callable[[str], T]) -> T | None:
        value = self.text(name)
        return None if value is None else parse(value)

    def refuse_unknown(self) -> None:
        for name in sorted(self.given):
            if name in _NAMES or name.startswith(SETTING_PREFIX):
                continue
            if name in _INSTEAD:
                raise Invalid(f"there is no option {name}: {_INSTEAD[name]}")
            if name.startswith("kafka."):
                raise Invalid(
                    f"{name} is for clients of a broker, and no broker is asked here: storage is read directly. Say "
                    "where it is with dataDir, or with metadata and objects, as headrace serve is told"
                )
            raise Invalid(f"there is no option {name}; there are {', '.join(KNOWN)} and {SETTING_PREFIX}<setting>")

    def refuse_misplaced(self, names: tuple[str, ...], *, is_stream: bool) -> None:
        for name in names:
            if name.lower() in self.given:
                raise Invalid(
                    f"{name} is for {'batches' if is_stream else 'streams'}: "
                    + ("a stream has no end" if is_stream else "a batch has no triggers")
                )


def _choice(options: _Options) -> TopicChoice:
    given = [name for name in CHOICES if options.text(name) is not None]
    if len(given) != 1:
        raise Invalid(f"say one of {', '.join(CHOICES)}" + (f", not {' and '.join(given)}" if given else ""))
    if (names := options.text("subscribe")) is not None:
        listed = tuple(dict.fromkeys(name.strip() for name in names.split(",") if name.strip()))
        if not listed:
            raise Invalid("subscribe names no topic")
        return TopicChoice(names=listed)
    if (pattern := options.text("subscribePattern")) is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise Invalid(f"subscribePattern {pattern!r} is no regular expression: {error}") from error
        return TopicChoice(pattern=pattern)
    return TopicChoice(assignment=options.parsed("assign", parse_assignment))


def _starting(options: _Options, *, is_stream: bool) -> Position:
    strategy = (options.text("startingOffsetsByTimestampStrategy") or "error").lower()
    if strategy not in ("error", "latest"):
        raise Invalid(f"startingOffsetsByTimestampStrategy is {strategy!r}: it takes error or latest")
    position = _position(
        options, STARTS, edge=LATEST if is_stream else EARLIEST, latest_without_time=strategy == "latest"
    )
    is_latest = position.edge == LATEST if position.offsets is None else _has(position.offsets, LATEST)
    if not is_stream and is_latest:
        raise Invalid("startingOffsets cannot be the latest of a batch: there would be nothing to read")
    return position


def _ending(options: _Options) -> Position:
    position = _position(options, ENDS, edge=LATEST, latest_without_time=True)
    is_earliest = position.edge == EARLIEST if position.offsets is None else _has(position.offsets, EARLIEST)
    if is_earliest:
        raise Invalid("endingOffsets cannot be the earliest: there would be nothing to read")
    return position


def _position(options: _Options, names: tuple[str, ...], *, edge: int, latest_without_time: bool) -> Position:
    by_offset, by_timestamp, for_all = names
    told = options.text(by_offset)
    offsets: Offsets | None = None
    if told is not None and told.strip().lower() in ("earliest", "latest"):
        edge = EARLIEST if told.strip().lower() == "earliest" else LATEST
    elif told is not None:
        offsets = parse_offsets(told, by_offset)
    return Position(
        edge=edge,
        offsets=offsets,
        timestamps=options.parsed(by_timestamp, lambda text: parse_offsets(text, by_timestamp, least=0)),
        timestamp_ms=options.whole(for_all, least=0),
        latest_without_time=latest_without_time,
    )


def _has(offsets: Offsets, number: int) -> bool:
    return any(number in parts.values() for parts in offsets.values())


def _trigger(options: _Options) -> TriggerLimits:
    trigger = options.text("trigger")
    if trigger is not None and trigger.lower() != "processingtime":
        raise Invalid(
            f"trigger is {trigger!r}: it takes processingTime, which promises that the query is not started with "
            "availableNow or once"
        )
    limits = TriggerLimits(
        max_offsets=options.whole("maxOffsetsPerTrigger"),
        min_offsets=options.whole("minOffsetsPerTrigger"),
        max_delay_ms=options.parsed("maxTriggerDelay", _duration_ms) or TriggerLimits().max_delay_ms,
    )
    for name, limit in (("maxOffsetsPerTrigger", limits.max_offsets), ("minOffsetsPerTrigger", limits.min_offsets)):
        if limit is not None and trigger is None:
            raise Invalid(
                f"{name} holds for triggers that come again. With availableNow and once, Spark asks a Python source "
                "for one batch and does not say so, and whatever is above the limit would silently be left for the "
                "next start. Start the query with a processing time and say trigger=processingTime, or leave "
                f"{name} away"
            )
    if limits.max_offsets is not None and limits.min_offsets is not None and limits.max_offsets < limits.min_offsets:
        raise Invalid("maxOffsetsPerTrigger is less than minOffsetsPerTrigger")
    return limits


def _duration_ms(text: str) -> int:
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None:
        raise Invalid(
            f"maxTriggerDelay is {text!r}: it takes a number with ms, s, m, min, h or d behind it, as in 15m"
        )
    return int(found[1]) * _UNITS_MS[found[2] or "ms"]
