"""Open PyIceberg's catalogs the way we need them: nothing repeated by itself, nothing waiting for ever.

sqlite:data/catalog.db, sqlite:/var/lib/headrace/catalog.db     a SQLite file
http://host:port/path, https://…                                a REST catalog
"""

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from requests import Session

from headrace.errors import Invalid, Unsupported
from headrace.objects.blocking import open_blocking_objects
from headrace.runtime.crash_points import CrashPoints
from headrace.tables.iceberg.file_io import CLASS_NAME, OBJECTS, ROOT
from headrace.tables.iceberg.locations import ObjectsRoot

CATALOG_NAME = "headrace"
"""Under this name the tables stand in a SQL catalog: Spark must call its catalog the same."""

CONNECT_TIMEOUT_S = 5
REQUEST_TIMEOUT_S = 30
BUSY_TIMEOUT_S = 5
"""How long a SQLite catalog waits for another process's transaction."""

_SQLITE = "sqlite:"
_NESTED = ("auth.", "ssl.")


class PatientRestCatalog(RestCatalog):
    """A REST catalog whose requests have a time limit."""

    def _create_session(self) -> Session:
        session = super()._create_session()
        session.request = functools.partial(  # type: ignore[method-assign]
            session.request, timeout=(CONNECT_TIMEOUT_S, REQUEST_TIMEOUT_S)
        )
        return session


def sqlite_path(url: str) -> Path | None:
    """Return the file that a catalog's URL names, or `None` if it is not SQLite's. Raises `Invalid`."""
    if not url.startswith(_SQLITE):
        return None
    path = url.removeprefix(_SQLITE)
    if path.startswith("//"):
        path = "/" + path.lstrip("/")
    if not path or path == "/" or "?" in path:
        raise Invalid(f"{url}: name a file, as in sqlite:data/catalog.db or sqlite:/var/lib/headrace/catalog.db")
    return Path(path).absolute()


def connector(
    url: str,
    *,
    objects_url: str,
    root: ObjectsRoot,
    properties: Mapping[str, str],
    warehouse: str | None,
    crash_points: CrashPoints,
) -> Callable[[], tuple[Catalog, Callable[[], None]]]:
    """Return a function that opens the catalog and says how to close it. Raises `Invalid` for a URL of no kind."""
    path = sqlite_path(url)
    if path is None and not url.startswith(("http://", "https://")):
        raise Invalid("unknown catalog: catalog.url begins with sqlite:, http:// or https://")

    def connect() -> tuple[Catalog, Callable[[], None]]:
        objects = open_blocking_objects(objects_url, crash_points=crash_points)
        given: dict[str, Any] = {**properties, "py-io-impl": CLASS_NAME, OBJECTS: objects, ROOT: root}
        try:
            catalog = _open(url, path, given, warehouse)
        except BaseException:
            objects.close()
            raise

        def close() -> None:
            catalog.close()
            objects.close()

        return catalog, close

    return connect


def _open(url: str, path: Path | None, properties: dict[str, Any], warehouse: str | None) -> Catalog:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        return SqlCatalog(CATALOG_NAME, **{**properties, "uri": f"sqlite:///{path}?timeout={BUSY_TIMEOUT_S}"})
    # The signing adapter repeats requests ten times unless it is told not to.
    given: dict[str, Any] = {"rest.sigv4.max-retries": "0", **_nested(properties), "uri": url}
    if warehouse is not None:
        given["warehouse"] = warehouse
    if not {"auth", "token", "credential"} & set(given):
        # Otherwise PyIceberg sends the name of a token without the token, which some servers refuse.
        given["auth"] = {"type": "noop"}
    try:
        return PatientRestCatalog(CATALOG_NAME, **given)
    except ModuleNotFoundError as error:
        raise Unsupported(
            f"catalog.properties ask for something that needs the Python package {error.name}: install it"
        ) from error


def _nested(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return properties as PyIceberg wants them: `auth.basic.username` and `ssl.cabundle` stand in dicts of dicts."""
    found: dict[str, Any] = {}
    for name, value in properties.items():
        *path, last = name.split(".") if name.startswith(_NESTED) else [name]
        inside = found
        for step in path:
            inside = inside.setdefault(step, {})
        inside[last] = value
    return found
