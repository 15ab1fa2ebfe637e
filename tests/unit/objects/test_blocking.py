"""Whole objects for code that blocks: the same files and the same promises as the store's own."""

from pathlib import Path

import pytest

from headrace.errors import Exists, Missing, Unsupported
from headrace.model.ids import ObjectKey
from headrace.objects.blocking import open_blocking_objects
from headrace.objects.local import LocalObjects
from headrace.runtime.crash_points import NoCrashes
from headrace.runtime.executor import InlineExecutor

KEY = ObjectKey("tables/a/metadata/m-1.avro")


async def test_what_one_side_writes_the_other_reads(tmp_path: Path) -> None:
    objects = open_blocking_objects(f"file:{tmp_path}", crash_points=NoCrashes())
    store = LocalObjects(tmp_path, executor=InlineExecutor())
    try:
        objects.write_new(KEY, b"bytes")
        assert bytes(await store.get(KEY)) == objects.read(KEY) == b"bytes"
        assert objects.size_bytes(KEY) == 5
        with pytest.raises(Exists):
            objects.write_new(KEY, b"others")
        assert objects.read(KEY) == b"bytes"
        objects.delete(KEY)
        objects.delete(KEY)
        with pytest.raises(Missing):
            objects.read(KEY)
        with pytest.raises(Missing):
            objects.size_bytes(KEY)
    finally:
        objects.close()
        await store.close()


def test_memory_belongs_to_one_process() -> None:
    with pytest.raises(Unsupported):
        open_blocking_objects("memory:", crash_points=NoCrashes())
