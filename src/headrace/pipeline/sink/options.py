"""What a person may say to `df.write.format("headrace")`: the options of Spark's Kafka sink, and ours.

Spark hands options over as text, with names in lower case. Every one of them is understood, or refused with what
there is instead: an option that is passed over in silence would write something else than what was asked for.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from headrace.errors import Invalid
from headrace.pipeline.scan.options import SETTING_PREFIX, STORAGE, StorageOptions
from headrace.records.batch import Codec

KNOWN: Final = ("topic", "sinkId", "batchId", "compression", "includeHeaders", *STORAGE)
"""Every option, as it is written; beside them `headrace.<setting>`, and what belongs to Spark itself."""

SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname", "path"})
CODECS: Final = {codec.name.lower(): codec for codec in Codec}
MAX_SINK_ID_CHARS: Final = 500

_NAMES: Final = frozenset(name.lower() for name in KNOWN) | SPARKS_OWN


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """One sink, as it was asked for.

    Without a `sink_id` a stream's is its query's, and a single job has one of its own that is never used again.
    Without a `topic` every row names its own. `includes_headers` is `None` where nothing was said. `checkpoint` is
    that of a stream, where it was told as an option.
    """

    topic: str | None
    sink_id: str | None
    batch_id: int | None
    codec: Codec | None
    includes_headers: bool | None
    storage: StorageOptions
    checkpoint: str | None = None


def parse_options(given: Mapping[str, str], *, is_stream: bool) -> SinkOptions:
    """Understand the options of a write. Raises `Invalid`, with what to say instead."""
    told = {name.lower(): value for name, value in given.items()}
    _refuse_unknown(told)
    sink_id, batch_id = _text(told, "sinkId"), _batch_id(told)
    if is_stream and batch_id is not None:
        raise Invalid("batchId is for single writes: the batches of a stream are numbered by Spark")
    if not is_stream and (sink_id is None) != (batch_id is None):
        raise Invalid("sinkId and batchId go together: a repeated write is recognised by both")
    if sink_id is not None and len(sink_id) > MAX_SINK_ID_CHARS:
        raise Invalid(f"sinkId has {len(sink_id)} characters: {MAX_SINK_ID_CHARS} at most")
    return SinkOptions(
        topic=_text(told, "topic"),
        sink_id=sink_id,
        batch_id=batch_id,
        codec=_codec(told),
        includes_headers=_flag(told, "includeHeaders"),
        checkpoint=told.get("checkpointlocation") if is_stream else None,
        storage=StorageOptions(
            data_dir=_text(told, "dataDir"),
            metadata=_text(told, "metadata"),
            objects=_text(told, "objects"),
            config=_text(told, "config"),
            settings=tuple(
                (name.removeprefix(SETTING_PREFIX), value)
                for name, value in sorted(told.items())
                if name.startswith(SETTING_PREFIX)
            ),
        ),
    )


def _refuse_unknown(told: Mapping[str, str]) -> None:
    for name in sorted(told):
        if name in _NAMES or name.startswith(SETTING_PREFIX):
            continue
        if name.startswith("kafka."):
            raise Invalid(
                f"{name} is for clients of a broker, and no broker is asked here: storage is written directly. Say "
                "where it is with dataDir, or with metadata and objects, as headrace serve is told"
            )
        raise Invalid(f"there is no option {name}; there are {', '.join(KNOWN)} and {SETTING_PREFIX}<setting>")
    if told.get("path"):
        raise Invalid("say save() or start() without a path: the option topic names what is written to")


def _text(told: Mapping[str, str], name: str) -> str | None:
    value = told.get(name.lower())
    if value is not None and not value.strip():
        raise Invalid(f"{name} is empty: give it a value, or leave it away")
    return value


def _flag(told: Mapping[str, str], name: str) -> bool | None:
    value = _text(told, name)
    if value is None:
        return None
    if value.lower() not in ("true", "false"):
        raise Invalid(f"{name} is {value!r}: it takes true or false")
    return value.lower() == "true"


def _batch_id(told: Mapping[str, str]) -> int | None:
    value = _text(told, "batchId")
    if value is None:
        return None
    if not value.isascii() or not value.isdigit() or int(value) >= 2**63:
        raise Invalid(f"batchId is {value!r}: it takes a whole number from 0 to {2**63 - 1}")
    return int(value)


def _codec(told: Mapping[str, str]) -> Codec | None:
    value = _text(told, "compression")
    if value is None:
        return None
    codec = CODECS.get(value.lower())
    if codec is None:
        raise Invalid(f"compression is {value!r}: it takes {', '.join(CODECS)}")
    return codec
