"""Structured logs: one event, one line, whatever its values hold.

Must stay true: a line break, an escape sequence or a megabyte inside a value (a client's name, a topic, an
exception's message) changes neither the number of lines nor what a terminal does with them.

A log is handed over like a clock; there is no global one. `LogHandler` brings what libraries say through the
standard `logging` module onto the same lines.
"""

import datetime
import json
import logging
import math
import sys
import traceback
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, Protocol, TextIO

import structlog

from headrace.errors import Invalid
from headrace.runtime.clock import Clock
from headrace.runtime.text import one_line

MAX_EVENT_CHARS = 512
MAX_NAME_CHARS = 64
MAX_VALUE_CHARS = 1024
MAX_TRACEBACK_CHARS = 16_384
MAX_VALUES = 32
MAX_INT_BITS = 128

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

_RESERVED = frozenset({"at", "level", "event", "exc_info"})
_Event = MutableMapping[str, Any]


class Log(Protocol):
    """Takes events: a short constant phrase, and values by name.

    `exc_info=error` adds that error's traceback, `exc_info=True` the one of the error being handled.
    """

    def debug(self, event: str, **values: object) -> object: ...
    def info(self, event: str, **values: object) -> object: ...
    def warning(self, event: str, **values: object) -> object: ...
    def error(self, event: str, **values: object) -> object: ...

    def bind(self, **values: object) -> "Log":
        """Return a log that adds these values to every event."""
        ...


def open_log(stream: TextIO, *, clock: Clock, level: str = "info", format: str = "auto") -> Log:  # noqa: A002
    """Return a log that writes to `stream`: `console`, `json`, or `auto`, which is `console` in a terminal only."""
    if level not in LEVELS or format not in ("auto", "console", "json"):
        raise Invalid(f"no such log level or format: {level!r}, {format!r}")
    console = format == "console" or (format == "auto" and stream.isatty())
    log: Log = structlog.wrap_logger(
        structlog.WriteLogger(stream),
        processors=[
            structlog.processors.add_log_level,
            _clean,
            _stamp(clock),
            _console(stream) if console else _json,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        context_class=dict,
        cache_logger_on_first_use=True,
    )
    return log


class LogHandler(logging.Handler):
    """Passes on what libraries log through the standard module; only the composition root installs it."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        write = self._log.info
        if record.levelno >= logging.ERROR:
            write = self._log.error
        elif record.levelno >= logging.WARNING:
            write = self._log.warning
        elif record.levelno < logging.INFO:
            write = self._log.debug
        error = record.exc_info[1] if record.exc_info else None
        # A warning is about what the library deals with itself, a server that is away most of all: no traceback.
        name = "exc_info" if record.levelno >= logging.ERROR else "error"
        write(record.getMessage(), logger=record.name, **({} if error is None else {name: error}))


def _stamp(clock: Clock) -> Callable[[object, str, _Event], _Event]:
    def stamp(_logger: object, _method: str, event: _Event) -> _Event:
        at = datetime.datetime.fromtimestamp(clock.now_ms() / 1000, tz=datetime.UTC)
        return {"at": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"), **event}

    return stamp


def _clean(_logger: object, _method: str, event: _Event) -> _Event:
    """Return the event with every name and value made fit for one line, and a traceback as one more value."""
    clean: dict[str, Any] = {
        "level": event.pop("level"),
        "event": one_line(str(event.pop("event", "")), max_chars=MAX_EVENT_CHARS),
    }
    error = event.pop("exc_info", None)
    if error is True:
        error = sys.exception()
    for name in list(event)[:MAX_VALUES]:
        shown = one_line(str(name), max_chars=MAX_NAME_CHARS)
        clean[f"{shown}_" if shown in _RESERVED else shown] = _value(event[name])
    if isinstance(error, BaseException):
        clean["error"] = _value(error)
        lines = "".join(traceback.format_exception(error))
        # The end of a traceback is where the cause stands.
        clean["traceback"] = one_line(lines[-MAX_TRACEBACK_CHARS:], max_chars=MAX_TRACEBACK_CHARS)
    return clean


def _value(value: object) -> object:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        # Python refuses to print integers of thousands of digits, and nobody wants to read them.
        return int(value) if value.bit_length() <= MAX_INT_BITS else f"an integer of {value.bit_length()} bits"
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    if isinstance(value, BaseException):
        text = f"{type(value).__name__}: {value}"
    elif isinstance(value, bytes | bytearray | memoryview):
        text = f"{len(value)} bytes: {bytes(value[: MAX_VALUE_CHARS // 2]).hex()}"
    else:
        text = value if isinstance(value, str) else repr(value)
    return one_line(text, max_chars=MAX_VALUE_CHARS)


def _json(_logger: object, _method: str, event: Mapping[str, Any]) -> str:
    return json.dumps(event)


def _console(stream: TextIO) -> Callable[[Any, str, _Event], str]:
    render = structlog.dev.ConsoleRenderer(colors=stream.isatty(), timestamp_key="at", sort_keys=False)
    encoding = stream.encoding or "utf-8"

    def console(logger: Any, method: str, event: _Event) -> str:
        # A terminal that cannot show a letter gets its escape, instead of the process an exception.
        return render(logger, method, event).encode(encoding, "backslashreplace").decode(encoding)

    return console
