"""Count what lies in the stores: what it costs to keep what retention keeps."""

import asyncio
import io
import re
from dataclasses import dataclass
from pathlib import Path

from headrace.broker.storage import Runtime, opened_storage
from headrace.metadata.keys import ROOT
from headrace.metadata.paging import read_prefix
from headrace.runtime.clock import SystemClock
from headrace.runtime.crash_points import NoCrashes
from headrace.runtime.logs import open_log
from headrace.runtime.metrics import Metrics
from headrace.runtime.rng import system_rng
from headrace.settings import load_settings

KEYS_PER_READ = 1000
_ENTRY = re.compile(r"/streams/\d+/index/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stock:
    """What there is at one moment."""

    stored_bytes: int
    objects: int
    entries: int
    metadata_keys: int
    by_kind: dict[str, int]
    """Bytes of objects by the first segment of their keys: `wal`, `tables`, …"""


def take_stock(data_dir: Path) -> Stock:
    """Count everything below a data directory."""
    settings = load_settings(pairs=[f"data.dir={data_dir}"], environment={}).tree
    clock = SystemClock()
    log = open_log(io.StringIO(), clock=clock)
    runtime = Runtime(clock=clock, rng=system_rng(), crash_points=NoCrashes(), metrics=Metrics(), log=log)

    async def count() -> Stock:
        async with opened_storage(settings, runtime) as storage:
            infos = [info async for info in storage.objects.list("")]
            found = await read_prefix(storage.metadata, ROOT, keys_per_read=KEYS_PER_READ)
        by_kind: dict[str, int] = {}
        for info in infos:
            kind = info.key.partition("/")[0]
            by_kind[kind] = by_kind.get(kind, 0) + info.size_bytes
        return Stock(
            stored_bytes=sum(by_kind.values()),
            objects=len(infos),
            entries=sum(1 for item in found if _ENTRY.search(item.key)),
            metadata_keys=len(found),
            by_kind=by_kind,
        )

    return asyncio.run(count())


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What the stores may hold at most for so many bytes that readers can still get."""

    stored_bytes: int
    objects: int
    entries: int
    metadata_keys: int

    def exceeded_by(self, stock: Stock) -> list[str]:
        """Say what is more than it may be."""
        pairs = [
            ("bytes stored", stock.stored_bytes, self.stored_bytes),
            ("objects", stock.objects, self.objects),
            ("index entries", stock.entries, self.entries),
            ("metadata keys", stock.metadata_keys, self.metadata_keys),
        ]
        return [f"{what}: {found:,}, at most {most:,} were to be left" for what, found, most in pairs if found > most]
