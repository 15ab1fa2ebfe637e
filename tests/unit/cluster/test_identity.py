"""The id of a cluster in both stores: races, crashes between the steps, and stores that do not belong together."""

import asyncio
import base64

import pytest

from headrace.cluster.identity import CLUSTER_CODEC, MARKER, new_cluster_id, require_identity
from headrace.errors import Corrupt, Exists, Invalid, OutcomeUnknown, Retryable
from headrace.metadata.keys import CLUSTER
from headrace.metadata.memory import MemoryMetadata
from headrace.model.ids import ObjectKey
from headrace.objects.memory import MemoryObjects
from headrace.objects.port import Buffer
from headrace.runtime.rng import seeded_rng
from headrace.testing.clock import ManualClock


class FailingObjects(MemoryObjects):
    """A store whose next put-if-absent fails, before or after it has landed."""

    def __init__(self) -> None:
        super().__init__(ManualClock())
        self.error: Exception | None = None

    async def put_if_absent(self, key: ObjectKey, data: "list[Buffer]") -> None:  # type: ignore[override]
        error, self.error = self.error, None
        if not isinstance(error, Retryable):
            await super().put_if_absent(key, data)
        await asyncio.sleep(0)
        if error is not None:
            raise error


class Starting:
    """Brokers that start on the same or on other stores."""

    def __init__(self) -> None:
        self.rng = seeded_rng(7)
        self.metadata = MemoryMetadata(self.rng)
        self.objects = FailingObjects()

    async def start(self, metadata: MemoryMetadata | None = None, objects: MemoryObjects | None = None) -> str:
        return await require_identity(metadata or self.metadata, objects or self.objects, rng=self.rng)

    def other_metadata(self) -> MemoryMetadata:
        return MemoryMetadata(self.rng)


@pytest.fixture
def starting() -> Starting:
    return Starting()


def test_an_id_looks_like_kafkas_and_never_like_an_option() -> None:
    rng = seeded_rng(1)
    made = [new_cluster_id(rng) for _ in range(500)]
    assert len(set(made)) == 500
    for one in made:
        assert len(one) == 22 and not one.startswith("-")
        assert len(base64.urlsafe_b64decode(one + "==")) == 16


async def test_the_first_start_gives_an_id_and_every_later_one_finds_it(starting: Starting) -> None:
    first = await starting.start()
    assert await starting.start() == first
    assert first.encode() in bytes(await starting.objects.get(MARKER))


async def test_brokers_that_start_together_agree(starting: Starting) -> None:
    ids = await asyncio.gather(*(starting.start() for _ in range(5)))
    assert len(set(ids)) == 1


@pytest.mark.parametrize("error", [Retryable("busy"), OutcomeUnknown("reset")])
async def test_a_start_that_broke_off_at_the_marker_is_finished_by_the_next(
    starting: Starting, error: Exception
) -> None:
    starting.objects.error = error
    with pytest.raises(type(error)):
        await starting.start()
    row = await starting.metadata.get(CLUSTER)
    assert row is not None
    assert await starting.start() == CLUSTER_CODEC.decode(row.value, CLUSTER).cluster_id


async def test_two_clusters_on_one_prefix_are_refused(starting: Starting) -> None:
    owner = await starting.start()
    other = starting.other_metadata()
    with pytest.raises(Invalid, match=rf"belong to cluster {owner}.*is empty.*another --objects prefix"):
        await starting.start(metadata=other)
    assert await other.get(CLUSTER) is None, "a refused start leaves nothing behind"


async def test_an_established_cluster_is_refused_on_anothers_objects(starting: Starting) -> None:
    owner = await starting.start()
    other = starting.other_metadata()
    stranger = await starting.start(metadata=other, objects=FailingObjects())
    with pytest.raises(Invalid, match=rf"belong to cluster {owner}.*belongs to cluster {stranger}"):
        await starting.start(metadata=other)


async def test_of_two_first_clusters_that_race_for_one_prefix_one_wins(starting: Starting) -> None:
    tries = [starting.start(metadata=starting.other_metadata()) for _ in range(3)]
    ended = await asyncio.gather(*tries, return_exceptions=True)
    winners = [one for one in ended if isinstance(one, str)]
    assert len(winners) == 1
    assert all(isinstance(one, Invalid) and winners[0] in str(one) for one in ended if one not in winners)


async def test_an_emptied_or_other_object_store_is_noticed(starting: Starting) -> None:
    await starting.start()
    with pytest.raises(Invalid, match=r"does not hold cluster\.json.*the --objects that belong"):
        await starting.start(objects=FailingObjects())


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"cluster_id": 3}', b'{"cluster_id": "\xff"}'])
async def test_a_marker_that_names_no_cluster_is_damage(starting: Starting, content: bytes) -> None:
    await starting.objects.put(MARKER, [content])
    with pytest.raises(Corrupt, match=r"cluster\.json"):
        await starting.start()


async def test_a_hostile_marker_stays_one_line(starting: Starting) -> None:
    await starting.objects.put(MARKER, [b'{"cluster_id": "a\\nb' + b"c" * 10_000 + b'"}'])
    with pytest.raises(Invalid) as refused:
        await starting.start()
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 500


async def test_what_a_later_release_adds_to_the_marker_is_no_damage(starting: Starting) -> None:
    owner = await starting.start()
    await starting.objects.put(MARKER, [b'{"cluster_id": "' + owner.encode() + b'", "format": 2}'])
    assert await starting.start() == owner


async def test_a_marker_that_vanishes_while_we_look_is_refused(starting: Starting) -> None:
    class Fleeting(FailingObjects):
        async def put_if_absent(self, key: ObjectKey, data: "list[Buffer]") -> None:  # type: ignore[override]
            raise Exists("there")

    with pytest.raises(Invalid, match="comes and goes"):
        await starting.start(objects=Fleeting())
