"""`headrace.table.schema`: refused when it is set, as far as one can know then."""

import json

import pytest

from headrace.tables.typed.schemas import Framing, SchemaType
from headrace.topics.configs import MAX_VALUE_CHARS, TopicDefaults, check_change, check_configs, effective
from headrace.topics.problems import InvalidTopicConfig
from headrace.topics.table_schema import schema_of
from headrace.topics.tables import table_rules_of
from tests.typed_kit import CONFIGS, FRAMING, MESSAGE, ORDER_JSON, SCHEMA, TYPE


@pytest.mark.parametrize("language", sorted(CONFIGS))
def test_a_schema_of_each_language_is_taken(language: str) -> None:
    check_configs(CONFIGS[language])
    source = table_rules_of(CONFIGS[language]).schema
    assert source is not None
    assert source.type is SchemaType(language) and source.framing is Framing.NONE


def test_no_schema_is_the_default() -> None:
    assert table_rules_of({}).schema is None
    assert table_rules_of({SCHEMA: "  "}).schema is None
    check_configs({SCHEMA: "", TYPE: "avro", MESSAGE: "M", FRAMING: "confluent"})


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        ({SCHEMA: "{"}, "cannot be used as json: it is not JSON"),
        ({SCHEMA: json.dumps(ORDER_JSON), TYPE: "avro"}, "cannot be used as avro"),
        ({SCHEMA: json.dumps(ORDER_JSON), TYPE: "xml"}, "expected one of json, avro, protobuf"),
        ({SCHEMA: json.dumps(ORDER_JSON), FRAMING: "auto"}, "expected one of none, confluent"),
        ({SCHEMA: json.dumps(ORDER_JSON), MESSAGE: "M"}, "for protobuf"),
        ({SCHEMA: "message A {"[:-1], TYPE: "protobuf"}, "line 1"),
        ({SCHEMA: " " * (MAX_VALUE_CHARS + 1)}, "32767 are allowed"),
    ],
)
def test_what_cannot_be_used_is_refused(overrides: dict[str, str], problem: str) -> None:
    with pytest.raises(InvalidTopicConfig, match=problem):
        check_configs(overrides)


def test_a_schema_may_grow_and_is_refused_where_it_could_not_be_followed() -> None:
    grown = {**ORDER_JSON, "properties": {**ORDER_JSON["properties"], "new": {"type": "string"}}}
    check_change(CONFIGS["json"], {SCHEMA: json.dumps(grown)})
    changed = {SCHEMA: json.dumps({"type": "object", "properties": {"id": {"type": "string"}}})}
    with pytest.raises(InvalidTopicConfig, match=r"data\.id is long and would become string.*unset the config first"):
        check_change(CONFIGS["json"], changed)
    check_change(CONFIGS["json"], {})
    check_change({}, changed)
    check_change({SCHEMA: "what an older release took"}, changed)


def test_what_this_release_does_not_understand_counts_as_none() -> None:
    assert schema_of({SCHEMA: "x", TYPE: "thrift"}) is None


def test_the_text_is_shown_as_it_was_given() -> None:
    text = ' {"type": "object",\n "properties": {"a": {}}} '
    shown = {value.name: value.value for value in effective({SCHEMA: text}, TopicDefaults())}
    assert shown[SCHEMA] == text and shown[TYPE] == "json" and shown[FRAMING] == "none"
