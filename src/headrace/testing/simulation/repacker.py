"""The repacker of a simulated broker, wired as the composition root wires it, with sizes that fit a small history."""

import io
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

from headrace.gc.copying import Copier
from headrace.gc.leased import CollectorLease
from headrace.gc.packing import Packer
from headrace.gc.repacking import REPACKER_LEASE, Repacker, RepackerLimits, RepackMetrics
from headrace.index.cache import IndexCache
from headrace.index.repack import RepackLimits
from headrace.metadata.keys import DomainKeys
from headrace.metadata.port import MetadataStore
from headrace.model.ids import SessionId, StreamId
from headrace.model.topics import Topic, TopicId
from headrace.objects.port import ObjectStore
from headrace.runtime.clock import Clock
from headrace.runtime.crash_points import CrashPoints
from headrace.runtime.executor import InlineExecutor
from headrace.runtime.logs import open_log
from headrace.runtime.metrics import Metrics
from headrace.runtime.rng import Rng

BYTES_PER_SECOND = 4_000
"""So slow that a copy takes long enough to be paused, trimmed under and killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepackShape:
    """What differs from history to history. Without turns, all brokers repack at once."""

    plan: RepackLimits
    entries_per_step: int
    takes_turns: bool


def draw_repack_shape(rng: Rng) -> RepackShape:
    """Choose how finely repacks are cut."""
    return RepackShape(
        plan=RepackLimits(
            min_age_ms=rng.randrange(200, 1_500),
            entry_bytes=rng.randrange(100, 800),
            object_bytes=rng.randrange(400, 4_000),
            factor=rng.randrange(2, 5),
            loose_max_entries=rng.randrange(2, 20),
        ),
        entries_per_step=rng.randrange(1, 8),
        takes_turns=rng.random() < 0.3,
    )


def make_repacker(
    shape: RepackShape,
    *,
    keys: DomainKeys,
    metadata: MetadataStore,
    objects: ObjectStore,
    cache: IndexCache,
    topics: Callable[[], Iterable[Topic]],
    table_ends: Callable[[TopicId], Awaitable[Mapping[int, int]]],
    session: SessionId,
    clock: Clock,
    rng: Rng,
    crash_points: CrashPoints,
) -> Repacker:
    """Make the repacker of one incarnation."""

    def high_watermark(stream: StreamId) -> int | None:
        head = cache.view.head(stream)
        return None if head is None else head.high_watermark

    async def always() -> bool:
        return True

    copier = Copier(
        domain=keys.domain,
        objects=objects,
        executor=InlineExecutor(),
        clock=clock,
        bytes_per_second=BYTES_PER_SECOND,
    )
    return Repacker(
        keys=keys,
        metadata=metadata,
        packer=Packer(
            keys=keys,
            metadata=metadata,
            objects=objects,
            copier=copier,
            clock=clock,
            rng=rng,
            crash_points=crash_points,
            entries_per_step=shape.entries_per_step,
        ),
        topics=topics,
        table_ends=table_ends,
        high_watermark=high_watermark,
        turn=CollectorLease(metadata, lambda: session, key=REPACKER_LEASE).take if shape.takes_turns else always,
        session=lambda: session,
        executor=InlineExecutor(),
        clock=clock,
        limits=RepackerLimits(
            plan=shape.plan, looks_per_tick=10, bytes_per_tick=6_000, entries_per_look=120, again_after_ms=700
        ),
        metrics=RepackMetrics(Metrics()),
        log=open_log(io.StringIO(), clock=clock),
    )
