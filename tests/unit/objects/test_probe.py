from collections.abc import AsyncIterator, Iterable, Sequence

import pytest

from headrace.errors import Corrupt, Exists, Unsupported
from headrace.model.ids import ObjectKey
from headrace.objects.memory import MemoryObjects
from headrace.objects.port import Buffer, ByteRange, ObjectInfo
from headrace.objects.probe import probe
from headrace.runtime.rng import seeded_rng
from tests.unit.objects.clocks import JumpingClock


class IgnoresTheCondition(MemoryObjects):
    async def put_if_absent(self, key: ObjectKey, data: Sequence[Buffer]) -> None:
        await self.put(key, data)


class RefusesButWrites(MemoryObjects):
    async def put_if_absent(self, key: ObjectKey, data: Sequence[Buffer]) -> None:
        taken = key in self._stored
        await self.put(key, data)
        if taken:
            raise Exists(key)


class SaysNothingAndKeepsTheFirst(MemoryObjects):
    async def put_if_absent(self, key: ObjectKey, data: Sequence[Buffer]) -> None:
        if key not in self._stored:
            await self.put(key, data)


class IgnoresRanges(MemoryObjects):
    async def get_ranges(self, key: ObjectKey, ranges: Sequence[ByteRange]) -> list[Buffer]:
        return [await self.get(key) for _ in ranges]


class CutsRanges(MemoryObjects):
    async def get_ranges(self, key: ObjectKey, ranges: Sequence[ByteRange]) -> list[Buffer]:
        raise Corrupt("0 bytes")


class ListsDirectoriesFirst(MemoryObjects):
    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        found = [info async for info in super().list(prefix, start_after=start_after)]
        for info in sorted(found, key=lambda info: info.key.split("/")):
            yield info


class ForgetsTheStart(MemoryObjects):
    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        async for info in super().list(prefix):
            yield info


class NeverDeletes(MemoryObjects):
    async def delete(self, keys: Iterable[ObjectKey]) -> None:
        return None


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (IgnoresTheCondition, "does not honour put-if-absent: a second write to the same key was accepted"),
        (RefusesButWrites, "refused but changed the object"),
        (SaysNothingAndKeepsTheFirst, "was accepted"),
        (IgnoresRanges, "ranged reads with other bytes"),
        (CutsRanges, "does not answer ranged reads"),
        (ListsDirectoriesFirst, "listing=levels"),
        (ForgetsTheStart, "does not list in key order"),
        (NeverDeletes, "still lists what was deleted"),
    ],
)
async def test_a_store_that_breaks_a_promise_is_refused_and_left_clean(
    kind: type[MemoryObjects], sentence: str
) -> None:
    store = kind(JumpingClock())
    with pytest.raises(Unsupported, match=sentence):
        await probe(store, rng=seeded_rng(1))
    if kind is not NeverDeletes:
        assert store._stored == {}


async def test_two_probes_at_once_do_not_meet() -> None:
    store = MemoryObjects(JumpingClock())
    rng = seeded_rng(1)
    await probe(store, rng=rng)
    await probe(store, rng=rng)
    assert store._stored == {}
