"""Rows that are read together and cut apart come back as they were written."""

from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.errors import Corrupt
from headrace.metadata.port import Key, Range, Versioned
from headrace.metadata.sqlite import rows
from headrace.model.ids import SessionId
from tests.unit.metadata.sqlite.conftest import foreign_connection

some_key = st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=8).map(Key)
LOW, HIGH = Key(" "), Key("\x7f")


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[apsw.Connection]:
    with foreign_connection(str(tmp_path / "a.db")) as opened:
        opened.execute(rows.SCHEMA)
        yield opened


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(puts=st.dictionaries(some_key, st.binary(max_size=40), max_size=150), absent=some_key)
def test_any_bytes_under_any_keys_are_read_back(
    connection: apsw.Connection, puts: dict[Key, bytes], absent: Key
) -> None:
    connection.execute("DELETE FROM kv")
    rows.put(connection, puts, 7, None)
    expected = {key: Versioned(key, value, 7) for key, value in puts.items()}
    assert rows.read_keys(connection, [*puts, absent]) == expected
    in_order = [expected[key] for key in sorted(expected)]
    assert rows.read_range(connection, Range(LOW, HIGH)) == in_order
    assert rows.read_range(connection, Range(LOW, HIGH, reverse=True)) == in_order[::-1]
    assert rows.read_range(connection, Range(LOW, HIGH, limit=3)) == in_order[:3]


def test_a_put_over_a_row_keeps_its_place_and_changes_the_rest(connection: apsw.Connection) -> None:
    rows.put(connection, {Key("a"): b"1"}, 1, SessionId("s"))
    [before] = connection.execute("SELECT id FROM kv")
    assert rows.read_session_keys(connection, SessionId("s")) == ["a"]
    rows.put(connection, {Key("a"): b"2"}, 2, None)
    assert rows.read_session_keys(connection, SessionId("s")) == []
    assert [before] == list(connection.execute("SELECT id FROM kv")), "commits rewrite as few pages as they can"
    assert rows.read_keys(connection, [Key("a")]) == {"a": Versioned(Key("a"), b"2", 2)}


def test_the_revision_is_that_of_the_unit_that_changed_last(connection: apsw.Connection) -> None:
    assert rows.last_revision(connection) == 0
    rows.put_units(connection, [("/a/", 1), ("/b/", 2)])
    rows.put_units(connection, [("/a/", 3)])
    assert rows.last_revision(connection) == 3
    assert rows.changed_since(connection, 1) == [("/b/", 2), ("/a/", 3)]
    assert rows.changed_since(connection, 3) == []


def test_a_table_refuses_what_is_not_bytes(connection: apsw.Connection) -> None:
    with pytest.raises(apsw.ConstraintError):
        connection.execute("INSERT INTO kv (key, value, version) VALUES ('a', 'text', 1)")


def test_rows_whose_sizes_do_not_add_up_are_damage() -> None:
    with pytest.raises(Corrupt, match="5 bytes"):
        rows._cut(("a\nb", "[1,1]", "[2,2]", b"12345"))
