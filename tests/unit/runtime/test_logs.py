"""One event, one line: with values that try to make it more."""

import io
import json
import logging
from collections.abc import Iterator
from typing import Any, TextIO

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.errors import Invalid, Retryable
from headrace.runtime.logs import MAX_TRACEBACK_CHARS, MAX_VALUE_CHARS, MAX_VALUES, LogHandler, open_log
from headrace.testing.clock import ManualClock

HOSTILE = (
    'x\r\n{"event": "forged"}\x1b[2J\x1b]0;title\x07\u2028\u2029\x85\x0b\x0c\u202e\ud800\0%s %(a)s {} {0.__class__}'
)
MAX_LINE_CHARS = 100_000

values = st.one_of(
    st.text(alphabet=st.characters()),
    st.binary(),
    st.integers(),
    st.just(10**5000),
    st.floats(),
    st.none(),
    st.booleans(),
    st.lists(st.text(), max_size=3),
    st.dictionaries(st.text(), st.text(), max_size=3),
    st.text().map(Retryable),
)


class _Terminal(io.StringIO):
    encoding = "ascii"

    def isatty(self) -> bool:
        return True


def _lines(stream: io.StringIO) -> list[str]:
    text = stream.getvalue()
    assert text.endswith("\n")
    assert len(text.splitlines()) == text.count("\n"), "something else than a line feed breaks lines"
    return text.splitlines()


def _log(stream: TextIO, **options: Any) -> Any:
    return open_log(stream, clock=ManualClock(now_ms=1_700_000_000_123), **options)


def test_json_line_has_time_level_event_and_values() -> None:
    stream = io.StringIO()
    _log(stream).bind(node=3).info("segment sealed", size_bytes=7, note="größe")
    [line] = _lines(stream)
    assert json.loads(line) == {
        "at": "2023-11-14T22:13:20.123Z",
        "level": "info",
        "event": "segment sealed",
        "node": 3,
        "size_bytes": 7,
        "note": "größe",
    }


@given(st.text(alphabet=st.characters()), st.dictionaries(st.text(alphabet=st.characters()), values, max_size=5))
@example(HOSTILE, {HOSTILE: HOSTILE, "event": 1, "at": 2, "level": 3, "exc_info": 4})
def test_any_event_is_one_json_line(event: str, given_values: dict[str, object]) -> None:
    stream = io.StringIO()
    _log(stream).bind(**{k: v for k, v in given_values.items() if k != "event"}).info(event)
    [line] = _lines(stream)
    assert line.isascii() and line.isprintable()
    assert list(json.loads(line))[:3] == ["at", "level", "event"]
    assert json.loads(line)["level"] == "info"


@given(st.text(alphabet=st.characters()), values)
@example(HOSTILE, HOSTILE)
def test_any_event_is_one_console_line_with_no_escapes_but_our_own(event: str, value: object) -> None:
    plain, terminal = io.StringIO(), _Terminal()
    _log(plain, format="console").warning(event, client=value)
    _log(terminal).warning(event, client=value)
    [line] = _lines(plain)
    assert line.isprintable()
    [line] = _lines(terminal)
    assert line.isascii() and "\x1b[2J" not in line and "\x1b]" not in line


def test_huge_values_and_many_values_are_cut() -> None:
    stream = io.StringIO()
    _log(stream).error("x" * 10**6, **{f"v{n}": "\n" * 10**5 for n in range(100)})
    [line] = _lines(stream)
    assert len(line) < MAX_LINE_CHARS
    shown = json.loads(line)
    assert len(shown) == MAX_VALUES + 3
    assert len(shown["v0"]) < MAX_VALUE_CHARS + 30


def _fail(depth: int) -> None:
    if depth == 0:
        raise Retryable("the store\nis away")
    _fail(depth - 1)


@pytest.mark.parametrize("depth", [1, 800])
def test_a_traceback_stays_on_the_line_and_keeps_its_end(depth: int) -> None:
    stream = io.StringIO()
    try:
        _fail(depth)
    except Retryable as error:
        _log(stream).error("tick failed", exc_info=error)
        _log(stream).error("tick failed", exc_info=True)
    first, second = _lines(stream)
    assert first == second
    shown = json.loads(first)
    assert shown["error"] == "Retryable: the store\\nis away"
    assert "Retryable" in shown["traceback"]
    assert len(shown["traceback"]) < MAX_TRACEBACK_CHARS + 40


@pytest.mark.parametrize(("level", "written"), [("debug", 4), ("info", 3), ("warning", 2), ("error", 1)])
def test_level_is_the_least_that_is_written(level: str, written: int) -> None:
    stream = io.StringIO()
    log = _log(stream, level=level)
    for write in (log.debug, log.info, log.warning, log.error):
        write("event")
    assert len(_lines(stream)) == written


def test_auto_is_json_outside_a_terminal_and_console_inside() -> None:
    file, terminal = io.StringIO(), _Terminal()
    _log(file).info("event")
    _log(terminal).info("event")
    assert file.getvalue().startswith("{")
    assert not terminal.getvalue().startswith("{")


@pytest.mark.parametrize("options", [{"level": "loud"}, {"format": "xml"}])
def test_unknown_level_or_format_is_refused(options: dict[str, str]) -> None:
    with pytest.raises(Invalid):
        _log(io.StringIO(), **options)


@pytest.fixture
def library() -> Iterator[logging.Logger]:
    logger = logging.Logger("some.library", logging.DEBUG)
    yield logger
    logger.handlers.clear()


def test_what_libraries_log_comes_on_the_same_lines(library: logging.Logger) -> None:
    stream = io.StringIO()
    library.addHandler(LogHandler(_log(stream, level="debug")))
    library.debug("one")
    library.info("peer %s", "a\nb")
    library.warning("three")
    try:
        _fail(0)
    except Retryable:
        library.exception("four")
    shown = [json.loads(line) for line in _lines(stream)]
    assert [line["level"] for line in shown] == ["debug", "info", "warning", "error"]
    assert shown[1]["event"] == "peer a\\nb" and shown[1]["logger"] == "some.library"
    assert "Retryable" in shown[3]["traceback"]


def test_warning_of_a_library_names_its_error_without_a_traceback(library: logging.Logger) -> None:
    stream = io.StringIO()
    library.addHandler(LogHandler(_log(stream)))
    try:
        _fail(0)
    except Retryable:
        library.warning("the server is away; retrying", exc_info=True)
    (line,) = [json.loads(line) for line in _lines(stream)]
    assert line["error"].startswith("Retryable: ") and "traceback" not in line
