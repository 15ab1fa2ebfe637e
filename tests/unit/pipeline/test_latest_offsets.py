"""The map of keys tells what a dictionary would, and takes no more than it has room for."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline import latest_offsets
from headrace.pipeline.latest_offsets import ENTRY_BYTES, LatestOffsets


def add(latest: LatestOffsets, keys: list[bytes], first_offset: int) -> bool:
    offsets = range(first_offset, first_offset + len(keys))
    return latest.add(pa.array(keys, pa.binary()), pa.array(offsets, pa.int64()))


@given(rounds=st.lists(st.lists(st.binary(max_size=2), max_size=20), max_size=10), pending_rows=st.integers(0, 40))
def test_map_is_what_a_dictionary_would_be(rounds: list[list[bytes]], pending_rows: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(latest_offsets, "MIN_PENDING_ROWS", pending_rows)
        latest, model, offset = LatestOffsets(max_bytes=10**6), dict[bytes, int](), 0
        for keys in rounds:
            assert add(latest, keys, offset)
            model.update((key, offset + number) for number, key in enumerate(keys))
            offset += len(keys)
        asked = [*model, b"not there", None]
        assert latest.latest(pa.array(asked, pa.binary())).to_pylist() == [*model.values(), None, None]
        assert latest.key_count == len(model)
        assert latest.size_bytes == sum(len(key) + ENTRY_BYTES for key in model)


def test_full_map_takes_nothing_of_what_does_not_fit() -> None:
    latest = LatestOffsets(max_bytes=3 * (1 + ENTRY_BYTES))
    assert add(latest, [b"a", b"b"], 0)
    assert add(latest, [b"a", b"b"], 2), "the same keys take no more room"
    assert not add(latest, [b"c", b"d"], 4)
    assert latest.latest(pa.array([b"a", b"b", b"c"])).to_pylist() == [2, 3, None]
    assert add(latest, [b"c"], 4)
    assert not add(latest, [b"d"], 5)


def test_first_keys_are_taken_whatever_their_size() -> None:
    latest = LatestOffsets(max_bytes=10)
    assert add(latest, [b"x" * 100, b"y" * 100], 0)
    assert not add(latest, [b"z"], 2)
    assert latest.key_count == 2
