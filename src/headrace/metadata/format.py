"""The format of a whole cluster's data: written once, checked by every process before it reads anything else.

Must stay true: a release that does not know the format of a cluster touches nothing in it. The number is raised only
by an upgrade, when every broker knows the new one.
"""

import msgspec

from headrace.errors import Unsupported
from headrace.metadata.keys import FORMAT, REGISTRY
from headrace.metadata.port import Decision, MetadataStore, Reads, Seen
from headrace.metadata.values import ValueCodec

KNOWN_FORMAT = 1


class ClusterFormat(msgspec.Struct, frozen=True, array_like=True):
    """What lies at the key `format`."""

    number: int


FORMAT_CODEC = ValueCodec(ClusterFormat)


async def require_format(store: MetadataStore) -> None:
    """Write the format into a new store, or raise `Unsupported` if this release does not know the one there is."""

    def decide(seen: Seen) -> Decision[int]:
        found = FORMAT_CODEC.seen(seen, FORMAT)
        if found is not None:
            return Decision(result=found.number)
        return Decision(result=KNOWN_FORMAT, puts={FORMAT: FORMAT_CODEC.encode(ClusterFormat(KNOWN_FORMAT))})

    number = (await store.transact([REGISTRY], Reads(keys=[FORMAT]), decide)).result
    if number != KNOWN_FORMAT:
        raise Unsupported(f"this cluster's data has format {number}, this release knows {KNOWN_FORMAT}: upgrade it")
