import pytest

from headrace.errors import Unsupported
from headrace.metadata.format import FORMAT_CODEC, KNOWN_FORMAT, ClusterFormat, require_format
from headrace.metadata.keys import FORMAT, REGISTRY
from headrace.metadata.memory import MemoryMetadata
from headrace.metadata.port import Decision, Reads
from headrace.runtime.rng import seeded_rng


async def test_new_store_gets_the_format_and_keeps_it() -> None:
    store = MemoryMetadata(seeded_rng(1))
    await require_format(store)
    first = await store.get(FORMAT)
    await require_format(store)
    assert first is not None and await store.get(FORMAT) == first


async def test_other_format_is_refused_and_left_alone() -> None:
    store = MemoryMetadata(seeded_rng(1))
    newer = FORMAT_CODEC.encode(ClusterFormat(KNOWN_FORMAT + 1))
    await store.transact([REGISTRY], Reads(), lambda seen: Decision(result=None, puts={FORMAT: newer}))
    with pytest.raises(Unsupported, match="upgrade"):
        await require_format(store)
    kept = await store.get(FORMAT)
    assert kept is not None and kept.value == newer
