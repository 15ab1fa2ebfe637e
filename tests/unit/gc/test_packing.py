"""One packed object: whose it is, when it is sealed, and what is left when it is broken off."""

import asyncio

import pytest

from headrace.errors import Fenced, OutcomeUnknown, Retryable
from headrace.gc.copying import Copier
from headrace.gc.packing import MAX_UNSEALED, Packer
from headrace.index.objects import wal_object_key
from headrace.index.repack import RepackPlan, plan_repack
from headrace.index.values import WRITER_STATE, ObjectState
from headrace.metadata.keys import table_lease
from headrace.metadata.leases import Lease, take
from headrace.runtime.crash_points import NoCrashes
from headrace.runtime.executor import InlineExecutor
from headrace.runtime.rng import seeded_rng
from tests.unit.gc.repack_kit import FAST, PLAN, AtOnce, RepackKit
from tests.unit.produce.scripted import Hold, Lose


async def logged() -> RepackKit:
    kit = RepackKit()
    await kit.start()
    await kit.append_round(6)
    await kit.age()
    return kit


def packer_of(kit: RepackKit) -> Packer:
    clock = AtOnce(kit.kit)
    copier = Copier(
        domain=kit.kit.keys.domain,
        objects=kit.kit.objects,
        executor=InlineExecutor(),
        clock=clock,
        bytes_per_second=FAST,
    )
    return Packer(
        keys=kit.kit.keys,
        metadata=kit.kit.metadata,
        objects=kit.kit.objects,
        copier=copier,
        clock=clock,
        rng=seeded_rng(1),
        crash_points=NoCrashes(),
        entries_per_step=2,
    )


async def plan_of(kit: RepackKit, number: int = 0) -> RepackPlan:
    entries = await kit.entries(kit.kit.streams[number])
    plan = plan_repack(entries, held_below=0, now_ms=kit.kit.clock.now_ms(), limits=PLAN).plan
    assert plan is not None
    return plan


async def lease_of(kit: RepackKit, *, anew: bool = True) -> Lease:
    session = await kit.new_session()
    return await take(kit.kit.metadata, table_lease(kit.topics[0].id), session, anew=anew)


async def test_object_is_open_until_it_is_sealed_and_belongs_to_a_writer_of_the_session() -> None:
    kit = await logged()
    packer, lease = packer_of(kit), await lease_of(kit)
    await packer.pack(lease, kit.kit.streams[0], await plan_of(kit))
    (record,) = await kit.packed()
    assert record.state is ObjectState.OPEN and not record.is_segment
    raw = await kit.kit.metadata.get(kit.kit.keys.writer(record.writer))
    assert raw is not None and WRITER_STATE.decode(raw.value, raw.key).session == lease.session
    await packer.seal()
    (record,) = await kit.packed()
    assert record.state is ObjectState.SEALED
    assert record.entry_count == len(await kit.entries(kit.kit.streams[0]))


async def test_next_session_has_another_writer() -> None:
    kit = await logged()
    packer, first = packer_of(kit), await lease_of(kit)
    await packer.pack(first, kit.kit.streams[0], await plan_of(kit))
    await kit.kit.metadata.end_session(first.session)
    await packer.pack(await lease_of(kit), kit.kit.streams[1], await plan_of(kit, 1))
    assert len({record.writer for record in await kit.packed()}) == 2


async def test_lease_that_is_lost_fences_every_step() -> None:
    kit = await logged()
    packer, first = packer_of(kit), await lease_of(kit)
    plan = await plan_of(kit)
    await kit.kit.metadata.end_session(first.session)
    with pytest.raises(Fenced):
        await packer.pack(first, kit.kit.streams[0], plan)
    second = await lease_of(kit)
    again = await take(kit.kit.metadata, second.key, second.session, anew=True)
    with pytest.raises(Fenced):
        await packer.pack(second, kit.kit.streams[0], plan)
    await packer.pack(again, kit.kit.streams[0], plan)
    assert await kit.loose(kit.kit.streams[0]) == 0


async def test_swap_in_doubt_keeps_the_object_among_those_to_be_sealed() -> None:
    kit = await logged()
    packer, lease = packer_of(kit), await lease_of(kit)
    kit.kit.script.plan("Rule", Lose(OutcomeUnknown("lost")))
    with pytest.raises(OutcomeUnknown):
        await packer.pack(lease, kit.kit.streams[0], await plan_of(kit))
    assert [record.state for record in await kit.packed()] == [ObjectState.OPEN]
    await packer.seal()
    assert [record.state for record in await kit.packed()] == [ObjectState.SEALED]


async def test_object_that_is_still_staged_is_asked_for_again() -> None:
    kit = await logged()
    packer, lease = packer_of(kit), await lease_of(kit)
    plan = await plan_of(kit)
    late = Hold()
    kit.kit.script.plan("Rule", late)
    packing = asyncio.create_task(packer.pack(lease, kit.kit.streams[0], plan))
    await kit.kit.clock.settle()
    await packer.seal()
    assert [record.state for record in await kit.packed()] == [ObjectState.STAGED]
    late.release()
    await packing
    await packer.seal()
    assert [record.state for record in await kit.packed()] == [ObjectState.SEALED]


async def test_no_further_object_while_too_many_wait() -> None:
    kit = await logged()
    packer = packer_of(kit)
    assert not packer.is_full
    packer._unsealed = list(await kit.objects()) * MAX_UNSEALED
    assert packer.is_full


async def test_copy_that_is_broken_off_leaves_no_bytes() -> None:
    kit = await logged()
    packer, lease = packer_of(kit), await lease_of(kit)
    reading = Hold(Retryable("never"))
    kit.kit.script.plan("read", reading)
    packing = asyncio.create_task(packer.pack(lease, kit.kit.streams[0], await plan_of(kit)))
    await kit.kit.clock.settle()
    packing.cancel()
    await asyncio.wait([packing])
    (staged,) = await kit.packed()
    assert staged.state is ObjectState.STAGED
    (object_id,) = [one for one in await kit.objects() if one.endswith("p")]
    found = [info.key async for info in kit.kit.objects.list("")]
    assert wal_object_key(kit.kit.keys.domain, object_id) not in found
