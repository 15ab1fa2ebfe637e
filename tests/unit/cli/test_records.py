"""Records as JSON: what one command prints, the other takes."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.records import Incoming, Outgoing, from_json, to_json
from headrace.errors import Invalid

PAYLOADS = st.none() | st.binary(max_size=20) | st.text(max_size=20).map(str.encode)
NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=5)


@given(
    key=PAYLOADS,
    value=PAYLOADS,
    headers=st.lists(st.tuples(NAMES, PAYLOADS), max_size=3),
    partition=st.integers(0, 2**31 - 1),
    timestamp_ms=st.none() | st.integers(0, 2**63 - 1),
)
def test_what_consume_prints_produce_takes(
    key: bytes | None,
    value: bytes | None,
    headers: list[tuple[str, bytes | None]],
    partition: int,
    timestamp_ms: int | None,
) -> None:
    line = to_json(
        Incoming(
            topic="t",
            partition=partition,
            offset=7,
            key=key,
            value=value,
            headers=tuple(headers),
            timestamp_ms=timestamp_ms,
            timestamp_type="create",
        )
    )
    assert b"\n" not in line
    assert from_json(line) == Outgoing(
        key=key, value=value, headers=tuple(headers), partition=partition, timestamp_ms=timestamp_ms
    )


def test_text_is_text_and_other_bytes_are_marked_base64() -> None:
    printed = json.loads(to_json(Incoming(topic="t", partition=1, offset=2, key="kä".encode(), value=b"\xff\x00")))
    assert printed["key"] == "kä" and "key_encoding" not in printed
    assert printed["value"] == "/wA=" and printed["value_encoding"] == "base64"
    assert (printed["topic"], printed["partition"], printed["offset"]) == ("t", 1, 2)


def test_a_value_that_is_json_is_sent_as_its_text() -> None:
    assert from_json(b'{"value": {"a": [1, "\xc3\xa4"]}, "key": 5}') == Outgoing(
        value='{"a":[1,"ä"]}'.encode(), key=b"5"
    )


def test_headers_are_an_object_or_a_list_that_keeps_doubles() -> None:
    assert from_json(b'{"value": null, "headers": {"a": "1", "b": null}}').headers == (("a", b"1"), ("b", None))
    doubled = b'{"value": null, "headers": [{"key": "a", "value": "1"}, {"key": "a", "value": "2"}]}'
    assert from_json(doubled).headers == (("a", b"1"), ("a", b"2"))


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"value", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[1]", "not a JSON object"),
        (b"{}", 'no "value"'),
        (b'{"value": 1, "valu": 2}', 'no field "valu"'),
        (b'{"value": "x", "partition": -1}', '"partition" is -1'),
        (b'{"value": "x", "partition": true}', '"partition" is true'),
        (b'{"value": "x", "timestamp": 1.5}', '"timestamp" is 1.5'),
        (b'{"value": "x", "value_encoding": "hex"}', 'only "base64" is known'),
        (b'{"value": "%%", "value_encoding": "base64"}', "is not base64"),
        (b'{"value": 5, "value_encoding": "base64"}', "is not base64"),
        (b'{"value": "\\ud800"}', "half of a surrogate pair"),
        (b'{"value": "x", "headers": 5}', '"headers" is 5'),
        (b'{"value": "x", "headers": [["a", "b"]]}', "a header is"),
        (b'{"value": "x", "headers": [{"key": 1}]}', "1 cannot name a header"),
        (b'{"value": "x", "headers": {"a\\u0000b": "1"}}', "cannot name a header"),
    ],
)
def test_a_line_that_is_no_record_is_refused_with_the_reason(line: bytes, complaint: str) -> None:
    with pytest.raises(Invalid) as caught:
        from_json(line)
    assert complaint in str(caught.value)
