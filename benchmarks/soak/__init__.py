"""Ten minutes with everything on: producers, readers, retention, repacking, tables, merging, compaction by key, and
somebody who kills brokers and the pipeline with no warning.

At the end every acknowledged record that its topic's life lets it keep is read exactly once, `headrace table verify`
is clean for every table, and bytes, objects, index entries and metadata are within stated bounds of what is kept.

A soak that finds something wrong raises `SoakFailed` with all of it; its figures are for people to judge.
"""

import json
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.beside_kafka.show import make_console
from benchmarks.soak.clients import Following, Sightings, Writing, create_topics, read_all
from benchmarks.soak.crew import HEADRACE, Crew, kill_until, running_crew
from benchmarks.soak.judging import Judge
from benchmarks.soak.plan import MIB, SoakPlan, full_plan, quick_plan
from benchmarks.soak.stock import Bounds, Stock, take_stock
from tests.servers.kafka_jars import BUILD

NAME = "soak"
HAS_QUICK_FORM = True

VERIFY_LIMIT_SECONDS = 300.0
LOOK_AGAIN_SECONDS = 3.0

STORED_FACTOR = 2.0
"""So many bytes may be stored for each byte that readers can still get; besides, what the processes have open."""

OPEN_BYTES = 6 * MIB
"""Open segments of two brokers with their zeros ahead, table metadata, and files whose grace is not over."""

BYTES_PER_OBJECT = 64 * 1024
OBJECTS_PER_TOPIC = 150
"""Snapshots that are not old enough, with their manifests, and what is younger than the merging's patience."""

BYTES_PER_ENTRY = 64 * 1024
ENTRIES_PER_PARTITION = 60
KEYS_PER_ENTRY = 3
KEYS_AT_REST = 500

Row = tuple[str, float, str, float | None]


class SoakFailed(Exception):
    """A promise was broken, or the stores hold more than they should."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Soaked:
    """What came of a soak that found nothing wrong."""

    written: int
    kills: dict[str, int]
    kept_records: int
    kept_bytes: int
    settled_seconds: float
    stock: Stock


def run(*, is_quick: bool = False) -> list[Row]:
    """Soak, and return the figures."""
    BUILD.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILD, prefix="soak-") as directory:
        soaked = soak(quick_plan() if is_quick else full_plan(), Path(directory))
    stock = soaked.stock
    return [
        ("records written and acknowledged", float(soaked.written), "", None),
        ("processes killed", float(sum(soaked.kills.values())), "", None),
        ("records that readers still get, each once", float(soaked.kept_records), "", None),
        ("keepers were done after", soaked.settled_seconds, "s", None),
        ("bytes stored for each byte kept", stock.stored_bytes / max(1, soaked.kept_bytes), "x", None),
        ("objects left", float(stock.objects), "", None),
        ("index entries left", float(stock.entries), "", None),
        ("metadata keys left", float(stock.metadata_keys), "", None),
    ]


def soak(plan: SoakPlan, directory: Path) -> Soaked:
    """Go through a plan and judge what came of it. Raises `SoakFailed`."""
    console = make_console()
    data_dir = directory / "data"
    with running_crew(data_dir, plan) as crew:
        create_topics(crew.bootstrap, plan.topics)
        writing = Writing(crew.bootstrap, plan.topics, records_per_second=plan.records_per_second)
        following = {topic.name: Following(crew.bootstrap, topic) for topic in plan.topics}
        console.print(f"{plan.seconds:g} s of writing, reading and killing", style="dim")
        for thread in (writing, *following.values()):
            thread.start()
        kill_until(crew, time.monotonic() + plan.seconds)
        writing.end()
        problems: list[str] = []
        judges = {topic.name: Judge(topic, writing.ledgers[topic.name]) for topic in plan.topics}
        for name, follower in following.items():
            follower.end_after(list(writing.ledgers[name].at))
            problems += judges[name].of_follower(follower.seen)
        _require_none(problems)
        console.print(f"killed {crew.kills}; the keepers settle", style="dim")
        settled_seconds, left = _settle(crew, plan, data_dir, judges)
        problems = _verify(plan, data_dir)
        _require_none(problems)
    return Soaked(
        written=writing.written,
        kills=crew.kills,
        kept_records=left.records,
        kept_bytes=left.size_bytes,
        settled_seconds=settled_seconds,
        stock=left.stock,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Left:
    """What readers still get, and what the stores hold for it."""

    records: int
    size_bytes: int
    stock: Stock


def _settle(crew: Crew, plan: SoakPlan, data_dir: Path, judges: dict[str, Judge]) -> tuple[float, _Left]:
    """Wait until the stores hold no more than they may; every look reads all topics from their beginning."""
    began = time.monotonic()
    while True:
        crew.require_alive()
        stock = take_stock(data_dir)
        seen = {topic.name: read_all(crew.bootstrap, topic) for topic in plan.topics}
        at = time.monotonic()
        _require_none([problem for name, one in seen.items() for problem in judges[name].of_reader(one, at=at)])
        size_bytes = sum(_bytes_of(plan, name, one) for name, one in seen.items())
        exceeded = bounds(plan, size_bytes).exceeded_by(stock)
        if not exceeded:
            records = sum(len(one.at) for one in seen.values())
            return time.monotonic() - began, _Left(records=records, size_bytes=size_bytes, stock=stock)
        if time.monotonic() - began > plan.settle_seconds:
            raise SoakFailed(
                f"{plan.settle_seconds:.0f} s after the last record, for {size_bytes:,} bytes that are kept:\n"
                + "\n".join([*exceeded, json.dumps(stock.by_kind)])
            )
        time.sleep(LOOK_AGAIN_SECONDS)


def bounds(plan: SoakPlan, kept_bytes: int) -> Bounds:
    """Return what may be left in the stores for so many bytes that are kept."""
    partitions = sum(topic.partitions for topic in plan.topics)
    entries = ENTRIES_PER_PARTITION * partitions + kept_bytes // BYTES_PER_ENTRY
    return Bounds(
        stored_bytes=int(kept_bytes * STORED_FACTOR) + OPEN_BYTES,
        objects=OBJECTS_PER_TOPIC * len(plan.topics) + kept_bytes // BYTES_PER_OBJECT,
        entries=entries,
        metadata_keys=KEYS_PER_ENTRY * entries + KEYS_AT_REST,
    )


def _bytes_of(plan: SoakPlan, name: str, seen: Sightings) -> int:
    (topic,) = (one for one in plan.topics if one.name == name)
    values = (topic.value_of(number) for number in seen.at.values())
    return sum(len(value) for value in values if value is not None)


def _verify(plan: SoakPlan, data_dir: Path) -> list[str]:
    """Let `headrace table verify` look at every table."""
    problems = []
    for topic in plan.topics:
        if topic.has_table:
            command = [HEADRACE, "table", "verify", topic.name, f"--data-dir={data_dir}"]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=VERIFY_LIMIT_SECONDS)
            if done.returncode != 0:
                problems.append(f"table verify {topic.name}: {done.stdout}{done.stderr}")
    return problems


def _require_none(problems: Sequence[str]) -> None:
    if problems:
        raise SoakFailed("\n".join(problems))
