"""Keys and small *decide* functions that the tests of the suite share."""

from headrace.metadata import keys
from headrace.metadata.keys import DomainKeys
from headrace.metadata.port import Decision, Key, MetadataStore, Reads, Seen
from headrace.model.ids import DomainId, SessionId

DOMAIN = DomainKeys(DomainId(0))
OTHER_DOMAIN = DomainKeys(DomainId(1))
COUNTER = Key(DOMAIN.unit + "counter")


def decided(decision: Decision[None], seen: Seen) -> Decision[None]:
    """Decide what was decided before, whatever is seen."""
    return decision


async def put(store: MetadataStore, **values: bytes) -> int:
    """Put keys of the domain, by their last segment, and return the revision."""
    puts = {Key(DOMAIN.unit + name): value for name, value in values.items()}
    return (await store.transact([DOMAIN.unit], Reads(), lambda _: Decision(result=None, puts=puts))).revision


async def put_ephemeral(store: MetadataStore, session: SessionId, *names: Key) -> None:
    """Put ephemeral keys, each with the value `here`."""
    decision = Decision(result=None, ephemerals=dict.fromkeys(names, b"here"))
    units = sorted({keys.unit_of(name) for name in names})
    await store.transact(units, Reads(), lambda _: decision, session=session)


async def delete(store: MetadataStore, *names: Key) -> int:
    """Delete keys of the domain and return the revision."""
    decision = Decision(result=None, deletes=names)
    return (await store.transact([DOMAIN.unit], Reads(), lambda _: decision)).revision


async def increment(store: MetadataStore, key: Key = COUNTER) -> int:
    """Add one to a counter, which need not exist, and return what it was."""

    def decide(seen: Seen) -> Decision[int]:
        before = int(seen.get(key) or b"0")
        return Decision(result=before, puts={key: str(before + 1).encode()})

    return (await store.transact([keys.unit_of(key)], Reads(keys=[key]), decide)).result


async def value(store: MetadataStore, key: Key) -> bytes | None:
    """Return the value of a key, or `None`."""
    row = await store.get(key)
    return None if row is None else row.value
