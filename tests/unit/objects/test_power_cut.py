"""Cut the power between any two steps of the local store and look at what a restart finds."""

import random
from pathlib import Path
from random import Random

import pytest

from headrace.errors import Missing
from headrace.model.ids import ObjectKey
from headrace.objects import segments
from headrace.objects.local import LocalObjects
from headrace.objects.port import object_key
from headrace.runtime.executor import InlineExecutor
from tests.unit.objects.power_cut import PowerCut, PowerCutDisk

SEGMENT = object_key("wal/segment")
CHANCES_PER_CUT = 6


class History:
    """What may be found under each key (`None`: nothing), and what the segment must begin with."""

    def __init__(self) -> None:
        self.possible: dict[ObjectKey, set[bytes | None]] = {}
        self.appended = b""
        self.sealed = False

    def begin(self, key: ObjectKey, outcome: bytes | None) -> None:
        self.possible[key] = self.possible.get(key, {None}) | {outcome}

    def acknowledge(self, key: ObjectKey, outcome: bytes | None) -> None:
        self.possible[key] = {outcome}


async def live(store: LocalObjects, history: History) -> None:
    """Write, overwrite, delete, upload and append, noting before and after each call what it may and must do."""
    for name, content in (("a/b/one", b"first" * 9), ("a/b/two", b"second"), ("a/b/one", b"overwritten"), ("c", b"")):
        key = object_key(name)
        history.begin(key, content)
        await store.put(key, [content[:3], content[3:]])
        history.acknowledge(key, content)
    for name in ("a/x/three", "a/four"):
        key = object_key(name)
        history.begin(key, b"exclusive")
        await store.put_if_absent(key, [b"exclusive"])
        history.acknowledge(key, b"exclusive")
    key = object_key("a/b/two")
    history.begin(key, None)
    await store.delete([key])
    history.acknowledge(key, None)
    for name, if_absent in (("up/load", False), ("up/load-if-absent", True)):
        key = object_key(name)
        history.begin(key, b"piece" * 2)
        upload = await store.upload(key, if_absent=if_absent)
        await upload.write(b"piece")
        await upload.write(b"piece")
        await upload.complete()
        history.acknowledge(key, b"piece" * 2)
    segment = await store.segments.create_segment(SEGMENT, capacity_bytes=1000)
    for n in range(1, 9):
        frame = bytes([n]) * 20
        await segment.append([frame])
        history.appended += frame
    await segment.seal()
    history.sealed = True


async def violations(root: Path, history: History) -> list[str]:
    """Open what has survived and compare it with what was promised."""
    store = LocalObjects(root, executor=InlineExecutor(), disk=PowerCutDisk())
    found = {info.key: bytes(await store.get(info.key)) async for info in store.list("")}
    await store.close()
    segment = found.pop(SEGMENT, None)
    wrong = [
        f"{key} is {found.get(key)!r}" for key, allowed in history.possible.items() if found.get(key) not in allowed
    ]
    wrong += [f"{key} came from nowhere" for key in found.keys() - history.possible.keys()]
    if history.appended and (segment is None or not segment.startswith(history.appended)):
        wrong.append(f"the segment lost an append: {segment!r}")
    if history.sealed and segment != history.appended:
        wrong.append(f"the sealed segment is {segment!r}")
    return wrong


async def cut_after(steps: int, directory: Path, seed: int, skipping: str) -> tuple[list[str], bool]:
    """Live until the power goes; return what is wrong afterwards and whether life went on to its end."""
    history, disk, finished = History(), PowerCutDisk(steps=steps, skipping=skipping), False
    root = directory / "root"
    try:
        store = LocalObjects(root, executor=InlineExecutor(), disk=disk)
        await live(store, history)
        await store.close()
        finished = True
    except PowerCut:
        pass
    if not root.exists():
        return [], finished
    wrong: list[str] = []
    for chance in range(CHANCES_PER_CUT):
        survivor = directory / f"survivor-{chance}"
        disk.survive(root, survivor, Random(seed * 1000 + chance))
        wrong += await violations(survivor, history)
    return wrong, finished


@pytest.fixture(autouse=True)
def small_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "PREPARED_WINDOW_BYTES", 64)


async def first_violation(directory: Path, seed: int, skipping: str = "") -> tuple[list[str], int]:
    """Cut the power after no step, one step, two steps…, until something is wrong or life goes to its end."""
    cuts, wrong, finished = 0, list[str](), False
    while not finished and not wrong:
        (directory / str(cuts)).mkdir()
        wrong, finished = await cut_after(cuts, directory / str(cuts), seed, skipping)
        cuts += 1
    return wrong, cuts


async def test_nothing_acknowledged_is_lost_whenever_the_power_goes(tmp_path: Path) -> None:
    seed = random.getrandbits(32)
    wrong, cuts = await first_violation(tmp_path, seed)
    assert wrong == [], f"power cut after step {cuts - 1}, seed {seed}"
    assert cuts > 80


@pytest.mark.parametrize("skipping", ["sync", "sync_data", "sync_directory"])
async def test_a_forgotten_sync_would_be_noticed(tmp_path: Path, skipping: str) -> None:
    wrong, _ = await first_violation(tmp_path, seed=1, skipping=skipping)
    assert wrong != []


async def test_an_object_is_missing_or_whole_after_the_power_went_in_the_middle_of_its_put(tmp_path: Path) -> None:
    for steps in range(12):
        directory = tmp_path / str(steps)
        directory.mkdir()
        disk = PowerCutDisk(steps=steps)
        key = object_key("deep/er/object")
        with pytest.raises(PowerCut):
            store = LocalObjects(directory / "root", executor=InlineExecutor(), disk=disk)
            for n in range(99):
                await store.put(key, [bytes([n]) * 100])
        if not (directory / "root").exists():
            continue
        disk.survive(directory / "root", directory / "survivor", Random(steps))
        reopened = LocalObjects(directory / "survivor", executor=InlineExecutor(), disk=PowerCutDisk())
        try:
            content = bytes(await reopened.get(key))
        except Missing:
            continue
        assert len(content) == 100
        assert len(set(content)) == 1
