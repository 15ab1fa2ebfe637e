"""The driver's side opens the stores that the options name, for each call anew, and makes none that is not there."""

import asyncio
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.sinks import StoreDesk
from headrace.broker.storage import DOMAIN, Runtime, opened_storage, topic_defaults
from headrace.cluster.identity import require_identity
from headrace.errors import Fenced, Invalid
from headrace.index.cache import IndexCache
from headrace.metadata.keys import DomainKeys
from headrace.pipeline.sink.framing import FrameLimits, FrameWriter
from headrace.pipeline.sink.plans import SinkPlan, TaskAnswer
from headrace.pipeline.sink.storing import TaskFrames
from headrace.runtime.clock import SystemClock
from headrace.runtime.crash_points import NoCrashes
from headrace.runtime.logs import open_log
from headrace.runtime.metrics import Metrics
from headrace.runtime.rng import system_rng
from headrace.settings import load_settings
from headrace.topics.admin import NewTopic, TopicAdmin
from headrace.topics.directory import TopicDirectory
from tests.unit.pipeline.sink.sink_kit import batch_of, options_of


def runtime_here() -> Runtime:
    clock = SystemClock()
    log = open_log(io.StringIO(), clock=clock)
    return Runtime(clock=clock, rng=system_rng(), crash_points=NoCrashes(), metrics=Metrics(), log=log)


def make_cluster(data_dir: Path) -> None:
    """Make a cluster on disk with a topic of one partition."""
    settings, runtime = load_settings(pairs=[f"data.dir={data_dir}"]).tree, runtime_here()

    async def make() -> None:
        async with opened_storage(settings, runtime) as storage:
            await require_identity(storage.metadata, storage.objects, rng=runtime.rng)
            defaults = topic_defaults(settings)
            admin = TopicAdmin(
                store=storage.metadata,
                keys=DomainKeys(DOMAIN),
                directory=TopicDirectory(storage.metadata, defaults=defaults, clock=runtime.clock),
                clock=runtime.clock,
                rng=runtime.rng,
                defaults=defaults,
                default_partition_count=1,
            )
            await admin.create(NewTopic(name="orders"))

    asyncio.run(make())


def high_watermark(data_dir: Path, plan: SinkPlan) -> int:
    settings = load_settings(pairs=[f"data.dir={data_dir}"]).tree

    async def read() -> int:
        async with opened_storage(settings, runtime_here()) as storage:
            index = IndexCache(storage.metadata, DomainKeys(DOMAIN), max_folded_entries=10)
            head = await index.fresh_head(plan.topics[0].streams[0])
            assert head is not None
            return head.high_watermark

    return asyncio.run(read())


def written(plan: SinkPlan) -> TaskAnswer:
    """Do what a task does, with its store on disk."""
    with TaskFrames(plan.objects, plan.domain, crash_points=NoCrashes()) as store:
        writer = FrameWriter(plan, {"value": "value"}, task=0, attempt=1, store=store, clock=SystemClock())
        frames = writer.write([batch_of(value=["a", "b"])])
    return TaskAnswer(write=plan.write, task=0, query="", frames=frames)


def test_a_write_from_plan_to_commit_and_one_that_is_given_up(tmp_path: Path) -> None:
    make_cluster(tmp_path)
    options = options_of(topic="orders", dataDir=str(tmp_path))
    plan = StoreDesk().begin(options)
    StoreDesk().commit(options, [written(plan)], 0)
    assert high_watermark(tmp_path, plan) == 2
    lost = StoreDesk().begin(options)
    answer = written(lost)
    StoreDesk().give_up(options, [answer])
    with pytest.raises(Fenced, match="has ended"):
        StoreDesk().commit(options, [answer], 0)
    assert high_watermark(tmp_path, plan) == 2


def test_no_cluster_is_made_by_a_wrong_path(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="there is no data of Headrace at"):
        StoreDesk().begin(options_of(topic="orders", dataDir=str(tmp_path)))
    assert list(tmp_path.iterdir()) == []


def test_an_attempt_that_fails_leaves_no_object_on_disk(tmp_path: Path) -> None:
    make_cluster(tmp_path)
    plan = StoreDesk().begin(options_of(topic="orders", dataDir=str(tmp_path)))
    before = {path for path in (tmp_path / "objects").rglob("*") if path.is_file()}

    def batches() -> Iterator[Any]:
        for _ in range(3):
            yield batch_of(value=["v"])
        raise RuntimeError("the rows have come to an end too early")

    with TaskFrames(plan.objects, plan.domain, crash_points=NoCrashes()) as store:
        limits = FrameLimits(chunk_rows=1, frame_bytes=1)
        writer = FrameWriter(
            plan, {"value": "value"}, task=0, attempt=1, store=store, clock=SystemClock(), limits=limits
        )
        with pytest.raises(RuntimeError, match="too early"):
            writer.write(batches())
        assert len(writer._frames) == 2, "the third chunk was not begun"
    assert {path for path in (tmp_path / "objects").rglob("*") if path.is_file()} == before
