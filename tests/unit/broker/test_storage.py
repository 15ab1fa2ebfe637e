"""The composition root: real parts, put together as the settings say."""

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.broker.storage import assemble_runtime, opened_storage
from headrace.errors import Invalid, Unusable
from headrace.objects.port import object_key
from headrace.runtime.crash_points import KillAt, NoCrashes
from headrace.settings import load_settings


@pytest.fixture(autouse=True)
def restored_root_logger() -> Iterator[None]:
    """Give the test process its own log handlers back."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers = []
    yield
    root.handlers = handlers
    root.setLevel(level)


def test_the_log_follows_the_settings_and_takes_in_what_libraries_say() -> None:
    stream = io.StringIO()
    settings = load_settings(pairs=["logging.level=warning", "logging.format=json"]).tree
    runtime = assemble_runtime(settings, environment={}, log_to=stream)
    runtime.log.info("not written")
    runtime.log.warning("written")
    logging.getLogger("some.library").warning("said by a library")
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["written", "said by a library"]


def test_crash_points_come_from_the_environment() -> None:
    settings = load_settings().tree
    assert isinstance(assemble_runtime(settings, environment={}, log_to=io.StringIO()).crash_points, NoCrashes)
    told = {"HEADRACE_CRASH_AT": "writer.after-write"}
    assert isinstance(assemble_runtime(settings, environment=told, log_to=io.StringIO()).crash_points, KillAt)
    with pytest.raises(Invalid, match="HEADRACE_CRASH_AT"):
        assemble_runtime(settings, environment={"HEADRACE_CRASH_AT": "nowhere"}, log_to=io.StringIO())


def test_two_runtimes_share_no_metrics() -> None:
    settings = load_settings().tree
    first, second = (assemble_runtime(settings, environment={}, log_to=io.StringIO()) for _ in range(2))
    first.metrics.counters("flushes", "Flushes.").of().inc()
    assert b"flushes" in first.metrics.render() and b"flushes" not in second.metrics.render()


async def test_both_stores_are_opened_and_proved_as_the_settings_say(tmp_path: Path) -> None:
    settings = load_settings(pairs=[f"data.dir={tmp_path / 'new' / 'data'}"]).tree
    runtime = assemble_runtime(settings, environment={}, log_to=io.StringIO())
    key = object_key("wal/x")
    async with opened_storage(settings, runtime) as storage:
        await storage.objects.put(key, [b"bytes"])
        session = await storage.metadata.open_session(timeout_ms=1000)
    async with opened_storage(settings, runtime) as storage:
        assert bytes(await storage.objects.get(key)) == b"bytes"
        assert [state.id for state in await storage.metadata.sessions()] == [session]


async def test_data_directory_that_cannot_be_made_is_said_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    settings = load_settings(pairs=[f"data.dir={tmp_path / 'file' / 'data'}"]).tree
    runtime = assemble_runtime(settings, environment={}, log_to=io.StringIO())
    with pytest.raises(Unusable, match="choose another --data-dir"):
        async with opened_storage(settings, runtime):
            pass
