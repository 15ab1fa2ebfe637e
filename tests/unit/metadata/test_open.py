from pathlib import Path

import pytest

from headrace.errors import Invalid
from headrace.metadata.memory import MemoryMetadata
from headrace.metadata.open import open_metadata, sqlite_path
from headrace.metadata.sqlite.store import SqliteMetadata
from headrace.runtime.clock import SystemClock
from headrace.runtime.executor import InlineExecutor
from headrace.runtime.rng import seeded_rng

CLOCK, RNG = SystemClock(), seeded_rng(1)


async def test_memory_is_opened_by_its_name() -> None:
    assert isinstance(await open_metadata("memory:", clock=CLOCK, rng=RNG), MemoryMetadata)


async def test_sqlite_is_opened_by_its_path_and_runs_inline_too(tmp_path: Path) -> None:
    store = await open_metadata(
        f"sqlite:{tmp_path}/meta.db",
        clock=CLOCK,
        rng=RNG,
        make_executor=lambda name, threads: InlineExecutor(),
        writer_linger_s=0,
    )
    assert isinstance(store, SqliteMetadata)
    session = await store.open_session(timeout_ms=1000)
    assert [state.id for state in await store.sessions()] == [session]
    await store.close()
    assert (tmp_path / "meta.db").exists()


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:data/meta.db", "data/meta.db"),
        ("sqlite:/var/meta.db", "/var/meta.db"),
        ("sqlite:///var/meta.db", "/var/meta.db"),
        ("sqlite:///var/my%20data/meta.db", "/var/my data/meta.db"),
    ],
)
def test_paths_are_relative_or_absolute(url: str, path: str) -> None:
    assert sqlite_path(url) == path


@pytest.mark.parametrize("url", ["", "mysql://x", "sqlite:", "sqlite:///", "meta.db"])
async def test_an_unknown_url_is_refused_with_a_list_of_the_known(url: str) -> None:
    with pytest.raises(Invalid, match=r"memory:, sqlite:PATH, sqlite:///PATH or postgres://"):
        await open_metadata(url, clock=CLOCK, rng=RNG)


async def test_a_bad_schema_name_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(Invalid, match="schema"):
        await open_metadata("postgres://nobody@127.0.0.1:1/x?schema=a;drop", clock=CLOCK, rng=RNG)
