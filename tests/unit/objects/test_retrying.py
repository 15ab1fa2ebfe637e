from collections.abc import AsyncIterator, Iterable, Sequence

import pytest

from headrace.errors import (
    Corrupt,
    Exists,
    HeadraceError,
    Invalid,
    Missing,
    OutcomeUnknown,
    Retryable,
    Throttled,
    Unsupported,
)
from headrace.model.ids import ObjectKey
from headrace.objects.memory import MemoryObjects
from headrace.objects.port import Buffer, ByteRange, ObjectInfo, object_key
from headrace.objects.retrying import RetryingObjects, RetryPolicy
from headrace.runtime.rng import seeded_rng
from tests.unit.objects.clocks import JumpingClock

KEY = object_key("wal/one")
POLICY = RetryPolicy(attempts=4, initial_backoff_ms=100, throttled_backoff_ms=1_000, max_backoff_ms=3_000)


class ShakyObjects(MemoryObjects):
    """Fails each call by the plan: before the effect, or after it (`landed`)."""

    def __init__(self, clock: JumpingClock, plan: Sequence[HeadraceError | None], *, landed: bool = False) -> None:
        super().__init__(clock)
        self.plan = [*plan]
        self.landed = landed
        self.calls = 0

    def _fail(self) -> None:
        self.calls += 1
        failure = self.plan.pop(0) if self.plan else None
        if failure is not None:
            raise failure

    async def put(self, key: ObjectKey, data: Sequence[Buffer]) -> None:
        self._fail()
        await super().put(key, data)

    async def put_if_absent(self, key: ObjectKey, data: Sequence[Buffer]) -> None:
        if self.plan and self.plan[0] is not None and self.landed:
            await MemoryObjects.put(self, key, data)
        self._fail()
        self._require_absent(key)
        await MemoryObjects.put(self, key, data)

    async def get(self, key: ObjectKey) -> Buffer:
        self._fail()
        return await super().get(key)

    async def get_ranges(self, key: ObjectKey, ranges: Sequence[ByteRange]) -> list[Buffer]:
        self._fail()
        return await super().get_ranges(key, ranges)

    async def delete(self, keys: Iterable[ObjectKey]) -> None:
        self._fail()
        await super().delete(keys)

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        async for info in super().list(prefix, start_after=start_after):
            self._fail()
            yield info


class Setting:
    def __init__(self, *plan: HeadraceError | None, landed: bool = False, policy: RetryPolicy = POLICY) -> None:
        self.clock = JumpingClock()
        self.inner = ShakyObjects(self.clock, plan, landed=landed)
        self.store = RetryingObjects(self.inner, clock=self.clock, rng=seeded_rng(1), policy=policy)

    async def place(self, content: bytes) -> None:
        await MemoryObjects.put(self.inner, KEY, [content])

    async def content(self) -> bytes:
        return bytes(await MemoryObjects.get(self.inner, KEY))


BUSY = Retryable("busy")
LOST = OutcomeUnknown("no answer")


async def test_writes_are_repeated_until_they_succeed() -> None:
    setting = Setting(BUSY, LOST, None)
    await setting.store.put(KEY, [b"x"])
    assert (setting.inner.calls, await setting.content()) == (3, b"x")


async def test_reads_and_deletes_are_repeated() -> None:
    setting = Setting(BUSY, None, BUSY, None, BUSY, LOST, None)
    await setting.place(b"abc")
    assert bytes(await setting.store.get(KEY)) == b"abc"
    [piece] = await setting.store.get_ranges(KEY, [ByteRange(start_byte=1, size_bytes=1)])
    assert bytes(piece) == b"b"
    await setting.store.delete(iter([KEY]))
    with pytest.raises(Missing):
        await setting.content()


@pytest.mark.parametrize("final", [Missing("m"), Invalid("i"), Corrupt("c"), Exists("e")])
async def test_what_stays_wrong_is_not_repeated(final: HeadraceError) -> None:
    setting = Setting(final)
    with pytest.raises(type(final)):
        await setting.store.get(KEY)
    assert setting.inner.calls == 1


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        ([BUSY] * 4, Retryable),
        ([Throttled("slow down")] * 4, Throttled),
        ([LOST] * 4, OutcomeUnknown),
        ([LOST, BUSY, BUSY, BUSY], OutcomeUnknown),
        ([BUSY, BUSY, BUSY, LOST], OutcomeUnknown),
    ],
)
async def test_giving_up_tells_whether_the_outcome_is_known(
    plan: list[HeadraceError | None], expected: type[HeadraceError]
) -> None:
    for write in ("put", "put_if_absent"):
        setting = Setting(*plan)
        with pytest.raises(expected):
            await getattr(setting.store, write)(KEY, [b"x"])
        assert setting.inner.calls == POLICY.attempts


@pytest.mark.parametrize("final", [Invalid("the credentials have run out"), Unsupported("u")])
async def test_a_clear_refusal_after_an_unknown_outcome_does_not_make_it_known(final: HeadraceError) -> None:
    for write in ("put", "put_if_absent"):
        setting = Setting(LOST, final)
        with pytest.raises(OutcomeUnknown, match="one without an answer"):
            await getattr(setting.store, write)(KEY, [b"x"])
        assert setting.inner.calls == 2
    setting = Setting(LOST, final)
    with pytest.raises(OutcomeUnknown):
        await setting.store.delete([KEY])


@pytest.mark.parametrize("failure", [LOST, BUSY, Throttled("slow down")])
async def test_exists_after_an_own_try_that_landed_is_success(failure: HeadraceError) -> None:
    setting = Setting(failure, landed=True)
    await setting.store.put_if_absent(KEY, [b"ab", b"", b"c"])
    assert await setting.content() == b"abc"


@pytest.mark.parametrize("foreign", [b"xyz", b"abcd", b"ab", b""])
async def test_exists_after_an_own_try_is_believed_if_the_bytes_are_anothers(foreign: bytes) -> None:
    setting = Setting(LOST)
    await setting.place(foreign)
    with pytest.raises(Exists):
        await setting.store.put_if_absent(KEY, [b"ab", b"c"])
    assert await setting.content() == foreign


async def test_exists_at_the_first_try_is_believed_even_if_the_bytes_are_the_same() -> None:
    setting = Setting()
    await setting.place(b"abc")
    with pytest.raises(Exists):
        await setting.store.put_if_absent(KEY, [b"abc"])


@pytest.mark.parametrize("refusals", [[BUSY] * 4, [Invalid("reading is not allowed")]])
async def test_an_object_that_cannot_be_read_back_leaves_the_outcome_unknown(refusals: list[HeadraceError]) -> None:
    setting = Setting(LOST, None, *refusals, landed=True)
    with pytest.raises(OutcomeUnknown, match="cannot be read"):
        await setting.store.put_if_absent(KEY, [b"abc"])


async def test_waits_double_vary_and_have_an_upper_limit() -> None:
    policy = RetryPolicy(attempts=9, initial_backoff_ms=100, max_backoff_ms=1_000)
    setting = Setting(*[BUSY] * 8, policy=policy)
    await setting.store.put(KEY, [b"x"])
    longest = [0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0, 1.0]
    assert all(most / 2 <= wait <= most for wait, most in zip(setting.clock.sleeps, longest, strict=True))
    assert len({wait / most for wait, most in zip(setting.clock.sleeps, longest, strict=True)}) > 1


async def test_a_store_that_asks_for_fewer_calls_gets_a_longer_wait() -> None:
    setting = Setting(Throttled("slow down"))
    await setting.store.put(KEY, [b"x"])
    [wait] = setting.clock.sleeps
    assert 0.5 <= wait <= 1.0


async def test_no_try_begins_after_the_deadline() -> None:
    policy = RetryPolicy(attempts=1_000, initial_backoff_ms=1_000, max_backoff_ms=1_000, deadline_ms=10_000)
    setting = Setting(*[BUSY] * 1_000, policy=policy)
    with pytest.raises(Retryable):
        await setting.store.put(KEY, [b"x"])
    assert 10 <= setting.inner.calls <= 21
    assert setting.clock.monotonic() <= 10


async def test_a_listing_goes_on_where_it_broke() -> None:
    setting = Setting(None, None, BUSY, BUSY, BUSY, None, BUSY, BUSY, BUSY)
    names = [f"k{n}" for n in range(6)]
    for name in names:
        await MemoryObjects.put(setting.inner, object_key(name), [b"x"])
    assert [info.key async for info in setting.store.list("k")] == names


async def test_a_listing_gives_up_too() -> None:
    setting = Setting(*[BUSY] * 4)
    await setting.place(b"x")
    with pytest.raises(Retryable):
        [info async for info in setting.store.list("")]


def test_segments_pass_through_untouched() -> None:
    setting = Setting()
    assert setting.store.segments is setting.inner
