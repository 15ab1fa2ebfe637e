"""The Iceberg catalog that the settings name."""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from headrace.broker.storage import Runtime
from headrace.runtime.executor import ThreadExecutor
from headrace.settings import Settings
from headrace.tables.iceberg.catalog import IcebergCatalog
from headrace.tables.iceberg.open import open_catalog
from headrace.tables.names import NameStyle
from headrace.tables.port import ExpiryRule

CATALOG_THREADS = 4
"""Calls to the catalog under way at once: each holds a thread while it waits for the answer."""


@asynccontextmanager
async def open_table_catalog(
    settings: Settings, runtime: Runtime, *, environment: Mapping[str, str] | None = None
) -> AsyncIterator[IcebergCatalog]:
    """Open the catalog, close it in the end. It connects when it is first asked for something. Raises `Invalid`."""
    executor = ThreadExecutor("catalog", threads=CATALOG_THREADS)
    try:
        catalog = open_catalog(
            settings.catalog.url,
            objects_url=settings.objects.url,
            executor=executor,
            rng=runtime.rng,
            log=runtime.log,
            environment=os.environ if environment is None else environment,
            warehouse=settings.catalog.warehouse,
            properties=dict(settings.catalog.properties),
            style=NameStyle(settings.catalog.table_names),
            crash_points=runtime.crash_points,
        )
        try:
            yield catalog
        finally:
            await catalog.close()
    finally:
        executor.close()


def expiry_rule(settings: Settings) -> ExpiryRule:
    """Return how long a table's snapshots are kept."""
    return ExpiryRule(
        max_snapshots=settings.pipeline.snapshots_max, max_age_ms=settings.pipeline.snapshots_max_age_ms
    )
