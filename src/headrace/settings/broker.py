"""Who a broker is, and how it talks about itself."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from headrace.runtime.configuration import Setting
from headrace.runtime.setting_kinds import MAX_INT32, Directory, OneOf, OptionalText, Whole
from headrace.settings.units import MINUTE_MS, SECOND_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """Who this broker is and where its data lies."""

    data_dir: Annotated[
        Path,
        Setting(
            "data.dir",
            "data",
            Directory(),
            "Where the embedded stores keep everything; put it on a disk that you trust.",
        ),
    ]
    node_id: Annotated[
        int,
        Setting("node.id", 1, Whole(maximum=MAX_INT32), "Give each broker of a cluster its own number."),
    ]
    rack: Annotated[
        str | None,
        Setting(
            "broker.rack",
            "",
            OptionalText(),
            "The zone this broker stands in: clients that name the same one are sent here and cross no zone border.",
        ),
    ]
    session_timeout_ms: Annotated[
        int,
        Setting(
            "broker.session.timeout.ms",
            5 * SECOND_MS,
            Whole(minimum=500, maximum=10 * MINUTE_MS),
            "How long a silent broker counts as alive: lower for a faster take-over, higher where pauses are common.",
            unit="ms",
        ),
    ]
    drain_timeout_ms: Annotated[
        int,
        Setting(
            "shutdown.drain.timeout.ms",
            20 * SECOND_MS,
            Whole(maximum=10 * MINUTE_MS),
            "How long a broker that was told to stop finishes what is under way before it cuts connections off.",
            unit="ms",
        ),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggingSettings:
    """What the process says about itself."""

    level: Annotated[
        str,
        Setting(
            "logging.level",
            "info",
            OneOf(("debug", "info", "warning", "error")),
            "The least important lines that are written; `debug` to look for a cause.",
        ),
    ]
    format: Annotated[
        str,
        Setting(
            "logging.format",
            "auto",
            OneOf(("auto", "console", "json")),
            "How lines look: `console` for people, `json` for machines, `auto` chooses by whether it is a terminal.",
        ),
    ]
