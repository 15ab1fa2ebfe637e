"""Every option of a write is understood, or refused with what there is instead."""

import pytest

from headrace.errors import Invalid
from headrace.pipeline.sink.options import parse_options
from headrace.records.batch import Codec


def test_options_are_found_in_any_case_and_settings_by_their_prefix() -> None:
    told = parse_options(
        {
            "TOPIC": "orders",
            "sinkid": "copy",
            "batchId": "7",
            "compression": "ZSTD",
            "includeHeaders": "false",
            "datadir": "/data",
            "headrace.message.max.bytes": "2000",
        },
        is_stream=False,
    )
    assert (told.topic, told.sink_id, told.batch_id, told.codec) == ("orders", "copy", 7, Codec.ZSTD)
    assert told.includes_headers is False
    assert told.storage.data_dir == "/data"
    assert told.storage.settings == (("message.max.bytes", "2000"),)


def test_a_stream_brings_options_of_sparks_own() -> None:
    told = parse_options({"checkpointlocation": "/c", "topic": "t"}, is_stream=True)
    assert (told.sink_id, told.batch_id) == (None, None)


@pytest.mark.parametrize(
    ("given", "is_stream", "why"),
    [
        ({"topik": "t"}, False, "there is no option topik; there are topic, sinkId"),
        ({"kafka.acks": "1"}, False, "no broker is asked here"),
        ({"path": "/x"}, False, r"say save\(\) or start\(\) without a path"),
        ({"sinkId": "s"}, False, "go together"),
        ({"batchId": "1"}, False, "go together"),
        ({"sinkId": "s", "batchId": "-1"}, False, "batchId is '-1'"),
        ({"sinkId": "s", "batchId": "9223372036854775808"}, False, "from 0 to"),
        ({"sinkId": "s", "batchId": "1"}, True, "numbered by Spark"),
        ({"sinkId": "s" * 501, "batchId": "1"}, False, "501 characters"),
        ({"topic": " "}, False, "topic is empty"),
        ({"compression": "brotli"}, False, "it takes none, gzip, snappy, lz4, zstd"),
        ({"includeHeaders": "maybe"}, False, "true or false"),
    ],
)
def test_what_is_not_understood_is_refused(given: dict[str, str], is_stream: bool, why: str) -> None:
    with pytest.raises(Invalid, match=why):
        parse_options(given, is_stream=is_stream)
