"""Every setting that is declared dynamic reaches the parts that go by it, in a broker that runs."""

import io
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from headrace.broker.live_settings import defaults_reader
from headrace.broker.serving import Broker
from headrace.broker.storage import Runtime, Storage, opened_storage
from headrace.cluster.identity import require_identity
from headrace.cluster.node_lock import NodeLock
from headrace.groups.keeping import GroupKeeper
from headrace.groups.protocol import GroupConfig, Moment
from headrace.groups.records import Loaded
from headrace.handlers.node import Node
from headrace.model.topics import Topic
from headrace.runtime.clock import SystemClock
from headrace.runtime.crash_points import NoCrashes
from headrace.runtime.executor import InlineExecutor
from headrace.runtime.logs import open_log
from headrace.runtime.metrics import Metrics
from headrace.runtime.rng import seeded_rng
from headrace.settings import all_settings, load_settings
from headrace.topics.admin import NewTopic
from headrace.topics.compaction import compaction_rules_of
from headrace.topics.directory import TopicDirectory


class Kit:
    """A broker that has been put together and has read what is set; nothing of it runs."""

    def __init__(self, broker: Broker, storage: Storage, written: io.StringIO) -> None:
        self.broker = broker
        self.storage = storage
        self.written = written
        self.node: Node = broker._parts.node
        self.server = broker._server
        self.seats: Any = broker._parts.seats

    async def set(self, name: str, value: str | None, *, for_all: bool = False) -> None:
        await self.node.broker_configs.set({name: value}, for_all=for_all)

    def topic(self) -> Topic:
        topic = self.node.topics.get("t")
        assert topic is not None
        return topic

    def group(self) -> GroupConfig:
        return self.node.group_configs.of("g")

    def keeper(self) -> Any:
        """Return the part that forgets offsets."""
        for service in self.broker._services._services:
            found = getattr(getattr(service, "_tick", None), "__self__", None)
            if isinstance(found, GroupKeeper):
                return found
        raise AssertionError("there is no keeper of groups")

    def machine_limits(self) -> Any:
        """Return what a group that is loaded now would be allowed."""
        machine = self.seats._make_machine(Loaded(group_id="g", head=None), Moment(0, 0))
        return machine._limits


@asynccontextmanager
async def running(path: Path, *pairs: str, node_id: int = 1) -> AsyncIterator[Kit]:
    told = [f"data.dir={path}", "listeners=127.0.0.1:0", f"node.id={node_id}", *pairs]
    configuration, clock, written = load_settings(pairs=told), SystemClock(), io.StringIO()
    runtime = Runtime(
        clock=clock,
        rng=seeded_rng(node_id),
        crash_points=NoCrashes(),
        metrics=Metrics(),
        log=open_log(written, clock=clock, format="json"),
    )
    async with opened_storage(configuration.tree, runtime) as storage:
        lock = NodeLock.take(path, node_id)
        try:
            cluster_id = await require_identity(storage.metadata, storage.objects, rng=runtime.rng)
            executor = InlineExecutor()
            broker = Broker(
                configuration,
                runtime,
                storage,
                lock,
                cluster_id=cluster_id,
                executor=executor,
                table_executor=executor,
                pattern_executor=executor,
            )
            await broker._parts.node.broker_configs.refresh()
            yield Kit(broker, storage, written)
        finally:
            lock.release()


async def topic_of(kit: Kit) -> Any:
    if kit.node.topics.get("t") is None:
        await kit.node.admin.create(NewTopic(name="t"))
    return kit.node.topics.get("t")


SEEN: dict[str, tuple[str, object, Callable[[Kit], Any]]] = {
    "auto.create.topics.enable": ("false", False, lambda kit: kit.node.auto_create_topics),
    "num.partitions": ("7", 7, lambda kit: kit.node.admin.default_partition_count),
    "message.max.bytes": ("2000", 2000, lambda kit: kit.topic().rules.max_message_bytes),
    "log.retention.ms": ("5000", 5000, lambda kit: kit.topic().retention.max_age_ms),
    "log.retention.bytes": ("900", 900, lambda kit: kit.topic().retention.max_bytes),
    "group.min.session.timeout.ms": ("7000", 7000, lambda kit: kit.machine_limits().min_session_timeout_ms),
    "group.max.session.timeout.ms": ("9000", 9000, lambda kit: kit.machine_limits().max_session_timeout_ms),
    "group.initial.rebalance.delay.ms": ("9", 9, lambda kit: kit.machine_limits().initial_rebalance_delay_ms),
    "group.max.size": ("4", 4, lambda kit: kit.machine_limits().max_members),
    "group.member.metadata.max.bytes": ("2048", 2048, lambda kit: kit.machine_limits().max_metadata_bytes),
    "group.max.subscribed.topics": ("6", 6, lambda kit: kit.machine_limits().max_subscribed_topics),
    "group.max.groups": ("3", 3, lambda kit: kit.seats._max_groups),
    "group.idle.timeout.ms": ("2500", 2.5, lambda kit: kit.seats._idle_s),
    "group.consumer.session.timeout.ms": (
        "50000",
        50000,
        lambda kit: kit.group().session_timeout_ms,
    ),
    "group.consumer.heartbeat.interval.ms": (
        "900",
        900,
        lambda kit: kit.group().heartbeat_interval_ms,
    ),
    "group.consumer.heartbeats.per.second": ("8", 8, lambda kit: kit.seats._pace.beats_per_second),
    "offsets.retention.minutes": ("2", 120_000, lambda kit: kit.keeper()._limits.retention_ms),
    "offset.metadata.max.bytes": ("77", 77, lambda kit: kit.node.offset_metadata_max_bytes),
    "socket.request.max.bytes": ("2000000", 2_000_000, lambda kit: kit.server.limits.max_frame_bytes),
    "connections.max.count": ("12", 12, lambda kit: kit.server.limits.max_connections),
    "max.connections.per.ip": ("11", 11, lambda kit: kit.server.limits.max_connections_per_address),
    "max.requests.in.flight.per.connection": ("5", 5, lambda kit: kit.server.limits.max_requests_in_flight),
    "connections.max.idle.ms": ("3000", 3.0, lambda kit: kit.server.limits.idle_timeout_s),
    "socket.slow.read.timeout.ms": ("4000", 4.0, lambda kit: kit.server.limits.slow_read_timeout_s),
    "socket.slow.write.timeout.ms": ("6000", 6.0, lambda kit: kit.server.limits.slow_write_timeout_s),
}
"""For each dynamic setting: a value, what its part makes of it, and where that part keeps it."""


def test_no_dynamic_setting_is_forgotten_here() -> None:
    assert set(SEEN) == {setting.key for setting in all_settings() if setting.is_dynamic}


async def test_each_dynamic_setting_reaches_its_part_and_goes_back(tmp_path: Path) -> None:
    async with running(tmp_path) as kit:
        await topic_of(kit)
        for name, (value, expected, look) in SEEN.items():
            before = look(kit)
            assert before != expected, name
            await kit.set(name, value)
            assert look(kit) == expected, name
            await kit.set(name, None)
            assert look(kit) == before, name


RULES: dict[str, tuple[str, object, Callable[[Any], Any]]] = {
    "compression.type": ("gzip", "gzip", lambda topic: topic.rules.compression),
    "log.cleanup.policy": ("compact", True, lambda topic: topic.rules.is_compacted),
    "log.message.timestamp.type": ("LogAppendTime", True, lambda topic: topic.rules.is_log_append_time),
    "log.message.timestamp.before.max.ms": ("5", 5, lambda topic: topic.rules.timestamp_before_max_ms),
    "log.message.timestamp.after.max.ms": ("6", 6, lambda topic: topic.rules.timestamp_after_max_ms),
    "log.cleaner.min.cleanable.ratio": ("0.25", 0.25, lambda topic: compaction_rules_of(topic.configs).dirty_ratio),
    "log.cleaner.min.compaction.lag.ms": ("7", 7, lambda topic: compaction_rules_of(topic.configs).min_lag_ms),
    "log.cleaner.max.compaction.lag.ms": ("8", 8, lambda topic: compaction_rules_of(topic.configs).max_lag_ms),
    "log.cleaner.delete.retention.ms": ("9", 9, lambda topic: compaction_rules_of(topic.configs).delete_retention_ms),
}


async def test_defaults_of_topics_count_for_topics_that_are_there_and_for_those_to_come(tmp_path: Path) -> None:
    async with running(tmp_path) as kit:
        before = await topic_of(kit)
        for name, (value, expected, look) in RULES.items():
            assert look(before) != expected, name
            await kit.set(name, value, for_all=True)
            assert look(kit.topic()) == expected, name
        await kit.node.admin.create(NewTopic(name="later", configs={"compression.type": "lz4"}))
        later = kit.node.topics.get("later")
        assert later is not None
        assert {name: look(later) for name, (_, _, look) in RULES.items()} == {
            name: expected if name != "compression.type" else "lz4" for name, (_, expected, _) in RULES.items()
        }


async def test_levels_of_compression_count_with_their_codec(tmp_path: Path) -> None:
    async with running(tmp_path) as kit:
        await topic_of(kit)
        for codec, level in (("gzip", "2"), ("lz4", "3"), ("zstd", "4")):
            await kit.node.broker_configs.set(
                {"compression.type": codec, f"compression.{codec}.level": level}, for_all=False
            )
            rules = (await topic_of(kit)).rules
            assert (rules.compression, rules.compression_level) == (codec, int(level))


async def test_another_broker_a_restart_and_the_pipeline_find_what_was_set(tmp_path: Path) -> None:
    async with running(tmp_path) as first, running(tmp_path, node_id=2) as second:
        await topic_of(first)
        await first.node.broker_configs.set({"log.cleanup.policy": "compact", "num.partitions": "3"}, for_all=True)
        await first.set("num.partitions", "5")
        await second.node.broker_configs.refresh()
        assert (first.node.admin.default_partition_count, second.node.admin.default_partition_count) == (5, 3)
        settings = load_settings(pairs=[f"data.dir={tmp_path}"]).tree
        reader = defaults_reader(settings, first.storage.metadata)
        topics = TopicDirectory(
            first.storage.metadata, defaults=await reader(), clock=SystemClock(), read_defaults=reader
        )
        await topics.refresh()
        (topic,) = topics.known()
        assert compaction_rules_of(topic.configs).enable
        await first.set("log.cleanup.policy", None, for_all=True)
        await topics.refresh()
        assert not compaction_rules_of(topics.known()[0].configs).enable
    async with running(tmp_path, "num.partitions=8") as again:
        assert again.node.admin.default_partition_count == 5
        await again.set("num.partitions", None)
        assert again.node.admin.default_partition_count == 3
        await again.set("num.partitions", None, for_all=True)
        assert again.node.admin.default_partition_count == 8


async def test_what_contradicts_the_settings_of_a_restart_is_ignored_loudly(tmp_path: Path) -> None:
    async with running(tmp_path) as kit:
        await kit.node.broker_configs.set({"message.max.bytes": "3000000", "log.retention.ms": "-1"}, for_all=True)
    async with running(tmp_path, "socket.request.max.bytes=2000000") as kit:
        topic = await topic_of(kit)
        assert (topic.rules.max_message_bytes, topic.retention.max_age_ms) == (1_048_588, None)
        lines = [json.loads(line) for line in kit.written.getvalue().splitlines()]
        (warning,) = [line for line in lines if line["level"] == "warning"]
        assert "ignored" in warning["event"] and warning["configs"] == "message.max.bytes"


async def test_groups_that_are_held_hear_of_other_limits(tmp_path: Path) -> None:
    async with running(tmp_path) as kit:
        told: list[object] = []

        class Seat:
            group_id = "g"

            def tell(self, event: object) -> None:
                told.append(event)

        kit.seats._seats["g"] = Seat()
        try:
            await kit.set("group.max.size", "3")
        finally:
            del kit.seats._seats["g"]
        limits, config = told
        assert (limits.limits.max_members, config.config.session_timeout_ms) == (3, 45_000)  # type: ignore[attr-defined]
