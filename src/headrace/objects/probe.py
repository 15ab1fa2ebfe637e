"""Prove at start that this very store keeps the promises that everything above builds on.

Some S3 look-alikes accept `If-None-Match` and ignore it, or list directory by directory instead of key by key, and
answer no call with an error. Data would be lost later and quietly; so a store that fails here is not used at all.
"""

import contextlib

from headrace.errors import Corrupt, Exists, HeadraceError, Unsupported
from headrace.model.ids import ObjectKey
from headrace.objects.port import ByteRange, ObjectStore, object_key
from headrace.runtime.rng import Rng

PREFIX = "probe/"

_FIRST = b"the first bytes stay"
_SECOND = b"the second are refused"
# `-` and `.` sort before `/`: a store that lists directories first gives another order.
_IN_KEY_ORDER = ("a-c", "a.b", "a/b", "a0")


async def probe(store: ObjectStore, *, rng: Rng) -> None:
    """Raise `Unsupported` if put-if-absent, ranged reads or listing do not work here as the port promises."""
    prefix = f"{PREFIX}{rng.getrandbits(128):032x}/"
    keys = [object_key(prefix + name) for name in _IN_KEY_ORDER]
    try:
        await _check_put_if_absent(store, keys[0])
        await _check_ranges(store, keys[0])
        await _check_list(store, prefix, keys)
        await _check_delete(store, prefix, keys)
    except BaseException:
        # What went wrong matters more than what is left under the probe's own prefix.
        with contextlib.suppress(HeadraceError):
            await store.delete(keys)
        raise


async def _check_put_if_absent(store: ObjectStore, key: ObjectKey) -> None:
    await store.put_if_absent(key, [_FIRST[:9], _FIRST[9:]])
    refused = False
    try:
        await store.put_if_absent(key, [_SECOND])
    except Exists:
        refused = True
    if not refused or bytes(await store.get(key)) != _FIRST:
        raise Unsupported(
            "this object store does not honour put-if-absent: a second write to the same key was"
            f" {'refused but changed the object' if refused else 'accepted'}. Two brokers could overwrite each"
            " other's data. Use a store with conditional writes (S3, GCS, Azure, SeaweedFS, MinIO, local disk)"
        )


async def _check_ranges(store: ObjectStore, key: ObjectKey) -> None:
    try:
        found = await store.get_ranges(
            key, [ByteRange(start_byte=10, size_bytes=5), ByteRange(start_byte=0, size_bytes=3)]
        )
    except Corrupt as error:
        raise Unsupported(f"this object store does not answer ranged reads: {error}") from error
    if [bytes(piece) for piece in found] != [_FIRST[10:15], _FIRST[:3]]:
        raise Unsupported("this object store answers ranged reads with other bytes than those asked for")


async def _check_list(store: ObjectStore, prefix: str, keys: list[ObjectKey]) -> None:
    for key in keys[1:]:
        await store.put(key, [_FIRST])
    for start_after, expected in (("", keys), (keys[1], keys[2:])):
        found = [info.key async for info in store.list(prefix, start_after=start_after)]
        if found != expected:
            raise Unsupported(
                f"this object store does not list in key order: {found} instead of {expected}."
                " If it lists directory by directory, add ?listing=levels to its URL"
            )


async def _check_delete(store: ObjectStore, prefix: str, keys: list[ObjectKey]) -> None:
    await store.delete([*keys, object_key(prefix + "never-there")])
    if left := [info.key async for info in store.list(prefix)]:
        raise Unsupported(f"this object store still lists what was deleted: {left}")
