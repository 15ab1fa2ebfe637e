"""Metered object stores: nothing changes but the figures."""

import array
from collections.abc import AsyncIterator

import pytest

from headrace.errors import Corrupt, Exists, Missing, Retryable
from headrace.objects.memory import MemoryObjects
from headrace.objects.metered import OPERATIONS, MeteredObjects
from headrace.objects.port import ByteRange, ObjectInfo, ObjectStore, SegmentStore, object_key
from headrace.runtime.metrics import Metrics
from headrace.testing.clock import ManualClock

A, B = object_key("a"), object_key("b")


class Kit:
    def __init__(self, inner: MemoryObjects | None = None) -> None:
        self.clock = ManualClock()
        self.metrics = Metrics()
        self.inner = inner or MemoryObjects(self.clock)
        self.store: ObjectStore = MeteredObjects(self.inner, metrics=self.metrics, clock=self.clock)

    @property
    def segments(self) -> SegmentStore:
        assert self.store.segments is not None
        return self.store.segments

    def figures(self) -> dict[str, float]:
        """Return all that is not zero: calls as `operation outcome`, bytes as `operation bytes`."""
        found = {}
        for line in self.metrics.render().decode().splitlines():
            name, _, value = line.rpartition(" ")
            labels = name.partition("{")[2].replace('"', "").rstrip("}").split(",")
            words = [label.partition("=")[2] for label in labels]
            if name.startswith("headrace_object_store_call_seconds_count{"):
                found[" ".join(words)] = float(value)
            elif name.startswith("headrace_object_store_bytes_total{"):
                found[f"{words[0]} bytes"] = float(value)
        return {name: value for name, value in found.items() if value}


@pytest.fixture
def kit() -> Kit:
    return Kit()


async def test_reads_and_writes_are_counted_and_weighed(kit: Kit) -> None:
    await kit.store.put(A, [b"12345", bytearray(3), memoryview(array.array("I", [1, 2]))])
    await kit.store.put_if_absent(B, [b"12"])
    assert bytes(await kit.store.get(B)) == b"12"
    ranges = [ByteRange(start_byte=0, size_bytes=2), ByteRange(start_byte=4, size_bytes=1)]
    assert [bytes(one) for one in await kit.store.get_ranges(A, ranges)] == [b"12", b"5"]
    assert (await kit.store.head(A)).size_bytes == 16
    await kit.store.delete([A, B])
    await kit.store.close()
    assert kit.figures() == {
        "put ok": 1,
        "put bytes": 16,
        "put_if_absent ok": 1,
        "put_if_absent bytes": 2,
        "get ok": 1,
        "get bytes": 2,
        "get_ranges ok": 1,
        "get_ranges bytes": 3,
        "head ok": 1,
        "delete ok": 1,
    }


async def test_failures_pass_through_and_weigh_nothing(kit: Kit) -> None:
    await kit.store.put(A, [b"x"])
    with pytest.raises(Missing):
        await kit.store.get(B)
    with pytest.raises(Exists):
        await kit.store.put_if_absent(A, [b"y"])
    with pytest.raises(Corrupt):
        await kit.store.get_ranges(A, [ByteRange(start_byte=0, size_bytes=2)])
    assert kit.figures() == {
        "put ok": 1,
        "put bytes": 1,
        "get missing": 1,
        "put_if_absent exists": 1,
        "get_ranges corrupt": 1,
    }


async def test_uploads_are_weighed_by_what_was_written(kit: Kit) -> None:
    upload = await kit.store.upload(A)
    await upload.write(b"123")
    await upload.write(b"45")
    await upload.complete()
    await (await kit.store.upload(B)).abort()
    assert bytes(await kit.inner.get(A)) == b"12345"
    assert kit.figures() == {
        "upload ok": 2,
        "upload_write ok": 2,
        "upload_write bytes": 5,
        "upload_complete ok": 1,
        "upload_abort ok": 1,
    }


async def test_appends_are_the_wals_bytes(kit: Kit) -> None:
    segment = await kit.segments.create_segment(A, capacity_bytes=1000)
    assert (segment.key, segment.size_bytes) == (A, 0)
    assert await segment.append([b"123", b"4"]) == 0
    assert await segment.append([b"5"]) == 4
    assert segment.size_bytes == 5
    await segment.seal()
    await kit.segments.seal_segment(A, size_bytes=5)
    with pytest.raises(Missing):
        await kit.segments.seal_segment(B, size_bytes=5)
    assert bytes(await kit.inner.get(A)) == b"12345"
    assert kit.figures() == {
        "create_segment ok": 1,
        "append ok": 2,
        "append bytes": 5,
        "seal ok": 1,
        "seal_segment ok": 1,
        "seal_segment missing": 1,
    }


def test_a_store_without_segments_has_none(kit: Kit) -> None:
    class Remote(MemoryObjects):
        @property
        def segments(self) -> None:  # type: ignore[override]
            return None

    assert Kit(Remote(kit.clock)).store.segments is None


async def test_a_listing_counts_once_however_it_ends(kit: Kit) -> None:
    class Flaky(MemoryObjects):
        async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectInfo]:
            async for info in super().list(prefix, start_after=start_after):
                yield info
            if prefix == "b":
                raise Retryable("gone")

    kit = Kit(Flaky(kit.clock))
    await kit.inner.put(A, [b""])
    await kit.inner.put(B, [b""])
    assert [info.key async for info in kit.store.list("")] == [A, B]
    assert [info.key async for info in kit.store.list("", start_after="a")] == [B]
    listing = kit.store.list("")
    assert (await anext(listing)).key == A
    await listing.aclose()  # type: ignore[attr-defined]
    with pytest.raises(Retryable):
        [info.key async for info in kit.store.list("b")]
    assert kit.figures() == {"list ok": 3, "list retryable": 1}


async def test_what_the_caller_does_between_two_keys_is_not_the_stores_time(kit: Kit) -> None:
    await kit.inner.put(A, [b""])
    await kit.inner.put(B, [b""])
    async for _ in kit.store.list(""):
        await kit.clock.advance(10)
    assert b'headrace_object_store_call_seconds_sum{operation="list",outcome="ok"} 0.0' in kit.metrics.render()


def test_every_operation_is_visible_from_the_start_or_known_by_name(kit: Kit) -> None:
    rendered = kit.metrics.render().decode()
    for operation in OPERATIONS[:8]:
        assert f'operation="{operation}",outcome="ok"' in rendered
    assert "other" not in rendered
