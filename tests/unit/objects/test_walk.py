from hypothesis import given
from hypothesis import strategies as st

from headrace.model.ids import ObjectKey
from headrace.objects.port import ObjectInfo
from headrace.objects.walk import Level, walk

KEYS = st.lists(st.text(alphabet="-.0aA_", min_size=1, max_size=3), min_size=1, max_size=4).map("/".join)


def info(key: str) -> ObjectInfo:
    return ObjectInfo(key=ObjectKey(key), size_bytes=0, modified_at_ms=0)


class Tree:
    """The levels of a set of keys, and which of them were asked for."""

    def __init__(self, keys: set[str]) -> None:
        self.keys = keys
        self.read: list[str] = []

    async def level(self, directory: str) -> Level:
        self.read.append(directory)
        below = [key[len(directory) :] for key in self.keys if key.startswith(directory)]
        return Level(
            directories={directory + name.split("/")[0] + "/" for name in below if "/" in name},
            objects=[info(directory + name) for name in below if "/" not in name],
        )


@given(
    keys=st.sets(KEYS, max_size=30),
    prefix=st.one_of(st.just(""), KEYS, KEYS.map(lambda key: key + "/")),
    start_after=st.one_of(st.just(""), KEYS, KEYS.map(lambda key: key + "/")),
)
async def test_walking_gives_what_sorting_all_keys_would(keys: set[str], prefix: str, start_after: str) -> None:
    if any(part in (".", "..") for part in prefix.split("/")):
        return
    found = [each.key async for each in walk(Tree(keys).level, prefix, start_after)]
    assert found == sorted(key for key in keys if key.startswith(prefix) and key > start_after)


async def test_directories_that_cannot_matter_are_not_read() -> None:
    tree = Tree({f"{a}/{b}/{c}" for a in "abc" for b in "abc" for c in "abc"})
    found = [each.key async for each in walk(tree.level, "b/", start_after="b/b/b")]
    assert found == ["b/b/c", "b/c/a", "b/c/b", "b/c/c"]
    assert tree.read == ["b/", "b/b/", "b/c/"]
