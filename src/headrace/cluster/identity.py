"""The id of a cluster, in both of its stores: facts and bytes that do not belong together are never mixed.

1. The first broker writes the id into the metadata store.
2. It writes a marker object with the same id into the object store.
3. It notes in the metadata store that the marker is there.
Every broker walks this path at start and does what is left of it, so a crash between two steps does no harm.

Must stay true: a marker is written only by a process whose metadata store holds its id already. So a marker whose id
the metadata store does not hold belongs to another cluster, and a marker that was there once and is missing means
that this is another object store. Both are refused before anything else is written.
"""

import base64

import msgspec

from headrace.errors import Corrupt, Exists, Invalid, Missing
from headrace.metadata.keys import CLUSTER, REGISTRY
from headrace.metadata.port import Decision, MetadataStore, Reads, Seen
from headrace.metadata.values import ValueCodec
from headrace.objects.port import ObjectStore, object_key
from headrace.runtime.rng import Rng
from headrace.runtime.text import one_line

MARKER = object_key("cluster.json")
MAX_SHOWN_ID_CHARS = 64


class ClusterRecord(msgspec.Struct, frozen=True, array_like=True):
    """What lies at the key `cluster`. `is_marked`: the object store holds the marker, for good."""

    cluster_id: str
    is_marked: bool


class Marker(msgspec.Struct, frozen=True):
    """What lies in the marker object; later releases may add to it."""

    cluster_id: str


CLUSTER_CODEC = ValueCodec(ClusterRecord)


def new_cluster_id(rng: Rng) -> str:
    """Return a random id as Kafka writes them: 22 characters of URL-safe base64."""
    while True:
        made = base64.urlsafe_b64encode(rng.getrandbits(128).to_bytes(16, "big")).rstrip(b"=").decode("ascii")
        # A command line would take it for an option; Kafka leaves these out, too.
        if not made.startswith("-"):
            return made


async def require_identity(metadata: MetadataStore, objects: ObjectStore, *, rng: Rng) -> str:
    """Return the id that both stores agree on; give two new stores one.

    Raises `Invalid` if the stores do not belong together, `Corrupt` if the marker cannot be read. Safe to
    call from any number of brokers at once, and again after a crash at any point.
    """
    # The marker is read first: whoever wrote it had written the metadata before, so a marker without them is foreign.
    marked_as = await _read_marker(objects)
    record = await _read_or_create(metadata, new_cluster_id(rng), marked_as)
    if marked_as is None:
        if record.is_marked:
            raise Invalid(
                f"the object store does not hold {MARKER}, though the metadata store belongs to cluster"
                f" {record.cluster_id}, which has written it: this is another, or an emptied, object store. Give"
                " the --objects that belong to this --metadata"
            )
        marked_as = await _write_marker(objects, record.cluster_id)
    if marked_as != record.cluster_id:
        raise _strangers(marked_as, record.cluster_id)
    if not record.is_marked:
        await _note_marked(metadata, record.cluster_id)
    return record.cluster_id


async def _read_or_create(metadata: MetadataStore, fresh_id: str, marked_as: str | None) -> ClusterRecord:
    """Return the metadata store's record; write one if there is none, unless the objects have an owner already."""

    def decide(seen: Seen) -> Decision[ClusterRecord]:
        found = CLUSTER_CODEC.seen(seen, CLUSTER)
        if found is not None:
            return Decision(result=found)
        if marked_as is not None:
            raise _strangers(marked_as, None)
        record = ClusterRecord(fresh_id, False)
        return Decision(result=record, puts={CLUSTER: CLUSTER_CODEC.encode(record)})

    return (await metadata.transact([REGISTRY], Reads(keys=[CLUSTER]), decide)).result


async def _note_marked(metadata: MetadataStore, cluster_id: str) -> None:
    record = ClusterRecord(cluster_id, True)

    def decide(seen: Seen) -> Decision[None]:
        return Decision(result=None, puts={CLUSTER: CLUSTER_CODEC.encode(record)})

    await metadata.transact([REGISTRY], Reads(), decide)


async def _read_marker(objects: ObjectStore) -> str | None:
    try:
        raw = bytes(await objects.get(MARKER))
    except Missing:
        return None
    try:
        return msgspec.json.decode(raw, type=Marker).cluster_id
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Corrupt(
            f"the object {MARKER} does not name a cluster ({error}): if nothing else lies in this --objects prefix,"
            " delete it, else restore it from a backup"
        ) from error


async def _write_marker(objects: ObjectStore, cluster_id: str) -> str:
    """Write the marker and return the id that it then holds: ours, or that of whoever was faster."""
    try:
        await objects.put_if_absent(MARKER, [msgspec.json.encode(Marker(cluster_id))])
    except Exists:
        found = await _read_marker(objects)
        if found is None:
            raise Invalid(f"the object {MARKER} comes and goes: somebody else uses this --objects prefix") from None
        return found
    return cluster_id


def _strangers(marked_as: str, cluster_id: str | None) -> Invalid:
    shown = one_line(marked_as, max_chars=MAX_SHOWN_ID_CHARS)
    own = "is empty" if cluster_id is None else f"belongs to cluster {cluster_id}"
    return Invalid(
        f"these objects belong to cluster {shown}, but the metadata store {own}: two clusters must not share one"
        " bucket prefix. Give another --objects prefix, or the --metadata that belongs to these objects"
    )
