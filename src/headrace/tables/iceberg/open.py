"""Find the Iceberg catalog that a URL names."""

from collections.abc import Mapping

from headrace.runtime.crash_points import CrashPoints, NoCrashes
from headrace.runtime.executor import Executor
from headrace.runtime.logs import Log
from headrace.runtime.rng import Rng
from headrace.tables.iceberg.catalog import IcebergCatalog
from headrace.tables.iceberg.connections import connector
from headrace.tables.iceberg.locations import objects_root, storage_properties
from headrace.tables.names import NameStyle


def open_catalog(
    url: str,
    *,
    objects_url: str,
    executor: Executor,
    rng: Rng,
    log: Log,
    environment: Mapping[str, str] | None = None,
    warehouse: str | None = None,
    properties: Mapping[str, str] | None = None,
    style: NameStyle = NameStyle.EXACT,
    crash_points: CrashPoints | None = None,
) -> IcebergCatalog:
    """Return the catalog at `url` for tables in the object store at `objects_url`; it connects when it is first used.

    `environment` tells those who scan data files where S3 is, in the variables that the object store goes by;
    `properties` are what PyIceberg is to be told besides. Raises `Invalid` for a URL of no kind, `Unsupported` for an
    object store in which tables cannot lie.
    """
    root = objects_root(objects_url)
    connect = connector(
        url,
        objects_url=objects_url,
        root=root,
        properties={**storage_properties(root, environment or {}), **(properties or {})},
        warehouse=warehouse,
        crash_points=crash_points or NoCrashes(),
    )
    return IcebergCatalog(connect=connect, root=root, style=style, executor=executor, rng=rng, log=log)
