"""What Spark writes: how long a write may take, and how long a sink is remembered."""

from dataclasses import dataclass
from typing import Annotated

from headrace.runtime.configuration import Setting
from headrace.runtime.setting_kinds import Whole
from headrace.settings.units import DAY_MS, MINUTE_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSettings:
    """How the writes of Spark's sink end, and what is remembered of them."""

    write_max_age_ms: Annotated[
        int,
        Setting(
            "sink.write.max.age.ms",
            DAY_MS,
            Whole(minimum=MINUTE_MS, maximum=30 * DAY_MS),
            "How long a write of Spark's sink may take from its plan to its commit; what one that failed has left is "
            "collected after that, so keep it above the slowest job.",
            unit="ms",
        ),
    ]
    id_expiration_ms: Annotated[
        int,
        Setting(
            "sink.id.expiration.ms",
            7 * DAY_MS,
            Whole(minimum=MINUTE_MS, maximum=365 * DAY_MS),
            "How long the last batch of an idle sink is recognised when it comes again; keep it above the longest "
            "rest of a stream before a restart.",
            unit="ms",
        ),
    ]
