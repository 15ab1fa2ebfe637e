"""The repacker of a broker, as the settings say."""

from collections.abc import Callable, Mapping

from headrace.broker.storage import Runtime, Storage
from headrace.gc.copying import Copier
from headrace.gc.leased import CollectorLease
from headrace.gc.packing import Packer
from headrace.gc.repacking import REPACKER_LEASE, Repacker, RepackerLimits, RepackMetrics
from headrace.handlers.node import Node
from headrace.index.repack import RepackLimits
from headrace.model.ids import SessionId, StreamId
from headrace.model.topics import TopicId
from headrace.pipeline.sagas import Sagas
from headrace.settings import Settings

LOOKS_PER_TICK = 500
"""How many streams one tick reads, every five seconds."""

SECONDS_PER_TICK = 10
"""How long one tick copies at most, at full pace."""

STAGED_SHARE = 4
"""An object is written within a quarter of the age at which it would count as left behind."""


def make_repacker(
    settings: Settings, runtime: Runtime, storage: Storage, node: Node, session: Callable[[], SessionId | None]
) -> Repacker:
    """Make the repacker; nothing runs yet."""
    wal, clock, keys, metadata = settings.wal, runtime.clock, node.keys, storage.metadata
    bytes_per_second = wal.repack_max_bytes_per_second
    sagas = Sagas(metadata, keys)

    async def table_ends(topic_id: TopicId) -> Mapping[int, int]:
        state = await sagas.state(topic_id)
        return {} if state is None else state.ends

    def high_watermark(stream: StreamId) -> int | None:
        head = node.index.view.head(stream)
        return None if head is None else head.high_watermark

    copier = Copier(
        domain=keys.domain,
        objects=storage.objects,
        executor=node.executor,
        clock=clock,
        bytes_per_second=bytes_per_second,
    )
    return Repacker(
        keys=keys,
        metadata=metadata,
        packer=Packer(
            keys=keys,
            metadata=metadata,
            objects=storage.objects,
            copier=copier,
            clock=clock,
            rng=runtime.rng,
            crash_points=runtime.crash_points,
            entries_per_step=settings.index.swap_max_entries,
        ),
        topics=node.topics.known,
        table_ends=table_ends,
        high_watermark=high_watermark,
        turn=CollectorLease(metadata, session, key=REPACKER_LEASE).take,
        session=session,
        executor=node.executor,
        clock=clock,
        limits=RepackerLimits(
            plan=RepackLimits(
                min_age_ms=wal.repack_min_age_ms,
                entry_bytes=wal.repack_entry_bytes,
                object_bytes=min(
                    wal.repack_object_bytes, bytes_per_second * wal.staged_max_age_ms // (1000 * STAGED_SHARE)
                ),
            ),
            looks_per_tick=LOOKS_PER_TICK,
            bytes_per_tick=bytes_per_second * SECONDS_PER_TICK,
        ),
        metrics=RepackMetrics(runtime.metrics),
        log=runtime.log,
    )
