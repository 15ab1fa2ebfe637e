"""Read everything under a prefix, a page at a time: no engine is asked for more than it likes to answer at once."""

from headrace.metadata.keys import prefix_range
from headrace.metadata.port import MetadataStore, Versioned


async def read_prefix(store: MetadataStore, prefix: str, *, keys_per_read: int) -> list[Versioned]:
    """Return all keys under a prefix that ends in `/`, in order. Each page is consistent, the whole need not be."""
    page = await store.range(prefix_range(prefix, limit=keys_per_read))
    found = page
    while len(page) == keys_per_read:
        page = await store.range(prefix_range(prefix, limit=keys_per_read, after=page[-1].key))
        found = found + page
    return found
