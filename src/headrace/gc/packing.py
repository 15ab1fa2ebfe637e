"""Make one packed object: announce it, copy the bytes, let the index name them in bounded steps, seal it.

    stage the record → write the object → swap, step by step → seal

A crash before the first swap leaves a staged object, which its age condemns. After that the object is open and named
by what was swapped: its writer's session ends, a collector seals it, and the rest of the plan is found again.

Must stay true: the object is durable before the first entry names it. Every step demands the topic's lease, so no run
of the pipeline and no other repack of the topic goes on beside it, not even of a process that was paused. What took
part in a swap whose outcome is not known is sealed later, again and again until it is.
"""

import contextlib
from collections.abc import Awaitable

from headrace.errors import HeadraceError
from headrace.gc.copying import Copier
from headrace.index.objects import packed_object_id, seal_object, stage_objects, wal_object_key
from headrace.index.repack import RepackPlan, swap_packed, swap_steps
from headrace.index.values import ObjectState
from headrace.index.writers import register_writer
from headrace.metadata.keys import DomainKeys
from headrace.metadata.leases import Lease
from headrace.metadata.port import MetadataStore
from headrace.model.ids import ObjectId, SessionId, StreamId, WriterId
from headrace.objects.port import ObjectStore
from headrace.runtime.clock import Clock
from headrace.runtime.crash_points import CrashPoint, CrashPoints
from headrace.runtime.rng import Rng

MAX_UNSEALED = 100
"""How many objects may wait to be sealed before no further one is made."""


class Packer:
    """Makes packed objects, as a writer of its own in each session."""

    def __init__(
        self,
        *,
        keys: DomainKeys,
        metadata: MetadataStore,
        objects: ObjectStore,
        copier: Copier,
        clock: Clock,
        rng: Rng,
        crash_points: CrashPoints,
        entries_per_step: int,
    ) -> None:
        self._keys = keys
        self._metadata = metadata
        self._objects = objects
        self._copier = copier
        self._clock = clock
        self._rng = rng
        self._crash_points = crash_points
        self._entries_per_step = entries_per_step
        self._session: SessionId | None = None
        self._writer = WriterId("")
        self._next_number = 0
        self._unsealed: list[ObjectId] = []

    @property
    def is_full(self) -> bool:
        """Whether objects have to be sealed before the next one is made."""
        return len(self._unsealed) >= MAX_UNSEALED

    async def pack(self, lease: Lease, stream: StreamId, plan: RepackPlan) -> int:
        """Do what a plan says; return how many shared objects nothing names any more.

        Raises `UnreadableEntry` where bytes are damaged: nothing has changed then. Raises `StalePlan` or
        `ObjectClosed` if the stream was trimmed or the object collected meanwhile, `Fenced` if the lease was lost:
        some steps may have been made then, and each of them is whole.
        """
        packed = await self._stage(lease.session)
        self._crash_points.reach(CrashPoint.REPACK_AFTER_STAGE)
        await self._write(packed, plan)
        self._crash_points.reach(CrashPoint.REPACK_AFTER_WRITE)
        self._unsealed.append(packed)
        freed = 0
        for step in swap_steps(plan, stream, packed, max_entries=self._entries_per_step):
            rule = swap_packed(self._keys, step, now_ms=self._clock.now_ms())
            freed += await rule.apply_under(self._metadata, lease)
            self._crash_points.reach(CrashPoint.SWAP_AFTER_STEP)
        self._crash_points.reach(CrashPoint.REPACK_AFTER_SWAPS)
        return freed

    async def seal(self) -> None:
        """Seal what takes no further entry. One that is still staged may yet be opened by a swap on its way."""
        for packed in list(self._unsealed):
            record = await seal_object(self._keys, packed, now_ms=self._clock.now_ms()).apply(self._metadata)
            if record is None or record.state in (ObjectState.SEALED, ObjectState.CONDEMNED):
                self._unsealed.remove(packed)

    async def _stage(self, session: SessionId) -> ObjectId:
        if self._session != session:
            writer = WriterId(f"{self._rng.getrandbits(128):032x}")
            rule = register_writer(self._keys, writer, session=session, now_ms=self._clock.now_ms())
            await rule.apply(self._metadata, session=session)
            self._session, self._writer, self._next_number = session, writer, 0
        packed = packed_object_id(self._writer, self._next_number)
        self._next_number += 1
        now_ms = self._clock.now_ms()
        await stage_objects(self._keys, [packed], writer=self._writer, is_segment=False, now_ms=now_ms).apply(
            self._metadata
        )
        return packed

    async def _write(self, packed: ObjectId, plan: RepackPlan) -> None:
        upload = await self._objects.upload(wal_object_key(self._keys.domain, packed), if_absent=True)
        is_complete = False
        try:
            await self._copier.copy(plan.planned, upload)
            await upload.complete()
            is_complete = True
        finally:
            if not is_complete:
                await _abort(upload.abort())


async def _abort(aborting: Awaitable[None]) -> None:
    """Give back what was sent; whatever keeps us from it, the object is staged and its age will condemn it."""
    with contextlib.suppress(HeadraceError):
        await aborting
