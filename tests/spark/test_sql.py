"""`headrace sql` as users run it: answers in three forms, and one clear line for what is wrong."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.cli.sql import SqlOutput, print_answer
from headrace.errors import Invalid
from headrace.pipeline.spark.querying import Answer, ask, table_names
from headrace.pipeline.spark.sql import CatalogAccess, SqlHandle, sql_session
from headrace.records.batch import Codec
from headrace.records.record import Record
from tests.integration.clients.librdkafka import create_topic
from tests.servers.headrace import running_headrace
from tests.servers.spark_sessions import SOCKETS_ARE_COLLECTED, end_gateway
from tests.spark.table_cluster import plain_records, put, run_headrace, run_pipeline_here

pytestmark = [SOCKETS_ARE_COLLECTED, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a broker and a pipeline have left behind: SQL needs neither of them any more."""
    made = tmp_path_factory.mktemp("sql") / "data"
    with running_headrace(made) as broker:
        create_topic(broker.bootstrap, "orders", 1)
        create_topic(broker.bootstrap, "odd-name.v1", 1, **{"message.timestamp.after.max.ms": str(2**63 - 1)})
        put(broker, "orders", 0, plain_records(3), Codec.NONE)
        odd = Record(offset=0, timestamp_ms=2**62, value=b"\xff\x00", headers=((b"h", b"v"),))
        put(broker, "odd-name.v1", 0, [odd], Codec.NONE)
        assert run_pipeline_here(made).problems == {}
    return made


@pytest.fixture(scope="module")
def handle(data_dir: Path) -> Iterator[SqlHandle]:
    end_gateway()
    opened = sql_session(CatalogAccess(url=f"sqlite:{data_dir}/catalog.db", objects_url=f"file:{data_dir}/objects"))
    yield opened
    opened.close()


def test_a_table_goes_by_its_full_name_and_by_its_own(handle: SqlHandle) -> None:
    for name in ("orders", "topics.orders", "headrace.topics.orders"):
        answer = ask(handle, f"select `offset`, value from {name} order by 1", max_rows=10)
        assert answer.columns == ["offset", "value"] and not answer.has_more
        assert answer.rows == [[0, b"value 0"], [1, b"value 1"], [2, b"value 2"]]
    assert table_names(handle) == ["odd-name.v1", "orders"]


def test_no_more_rows_are_taken_than_asked_for_and_that_is_said(handle: SqlHandle) -> None:
    answer = ask(handle, "select * from orders", max_rows=2)
    assert len(answer.rows) == 2 and answer.has_more
    assert ask(handle, "select * from orders where false", max_rows=2).rows == []


def test_columns_may_share_a_name_and_years_may_be_beyond_python(handle: SqlHandle) -> None:
    answer = ask(handle, "select timestamp, 1 as timestamp, headers from `odd-name.v1`", max_rows=2)
    [[late, one, headers]] = answer.rows
    assert answer.columns == ["timestamp", "timestamp", "headers"] and one == 1
    assert str(late).startswith("+294247-01-10 04:00:54")
    assert len(list(headers)) == 1  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("question", "told"),
    [
        ("selec 1", "this is not SQL that Spark understands: Syntax error at or near 'selec'"),
        ("select * from nowhere", "The table or view `nowhere` cannot be found; there are: `odd-name.v1`, orders"),
        ("select nothing from orders", "A column, variable, or function parameter with name `nothing` cannot"),
    ],
)
def test_a_wrong_question_is_answered_with_one_clear_line(handle: SqlHandle, question: str, told: str) -> None:
    with pytest.raises(Invalid) as error:
        ask(handle, question, max_rows=1)
    assert str(error.value).startswith(told) and "\n" not in str(error.value)


CHANGES = [
    "drop table orders",
    "drop table orders purge",
    "truncate table orders",
    "delete from orders",
    "update orders set value = null",
    "insert into orders select * from orders",
    "with t as (select * from orders) insert overwrite orders select * from t",
    "create or replace table orders as select 1",
    "alter table orders rename to gone",
    "alter table orders drop branch headrace_log",
    "alter table orders drop column value",
    "call headrace.system.expire_snapshots('topics.orders')",
    "begin drop table orders; end",
    "execute immediate 'drop table orders'",
    "drop namespace headrace.topics cascade",
    "create table mine (n int)",
]

PROTECTED = {
    "drop table orders": "DROP TABLE is never done to a topic's table: its files hold the Kafka records",
    "drop table headrace.topics.`odd-name.v1` purge": "headrace topic delete odd-name.v1",
    "truncate table topics.orders": "TRUNCATE TABLE is never done to a topic's table",
    "insert overwrite orders select * from orders": "INSERT OVERWRITE is never done to a topic's table",
    "insert into orders replace where true select * from orders": "OVERWRITE BY EXPRESSION is never done",
    "replace table orders as select 1 as n": "REPLACE TABLE AS SELECT is never done to a topic's table",
    "alter table orders rename to gone": "--set headrace.table.enable=false",
    "alter table orders drop branch headrace_log": "DROP BRANCH is never done to a topic's table",
    "alter table orders set tblproperties ('headrace.topic-id' = 'x')": "SET TABLE PROPERTIES is never done",
    "call headrace.system.remove_orphan_files('topics.orders')": "CALL is not taken here",
    "begin drop table orders; end": "COMPOUND BODY is not taken here",
    "execute immediate 'drop table orders purge'": "EXECUTE IMMEDIATE is not taken here",
    "drop namespace headrace.topics cascade": "DROP NAMESPACE is not taken here",
}


def test_it_only_reads_unless_a_person_asks_for_more(handle: SqlHandle) -> None:
    for statement in CHANGES:
        with pytest.raises(Invalid, match=r"headrace sql only reads, and this is .*: give --write"):
            ask(handle, statement, max_rows=1)
    assert ask(handle, "select count(*) from orders", max_rows=1).rows == [[3]]


def test_no_topics_table_is_taken_away_even_by_who_may_write(handle: SqlHandle) -> None:
    for statement, told in PROTECTED.items():
        with pytest.raises(Invalid) as error:
            ask(handle, statement, max_rows=1, may_write=True)
        assert told in str(error.value) and "\n" not in str(error.value)
    assert ask(handle, "select count(*) from orders", max_rows=1).rows == [[3]]


def test_who_may_write_has_tables_of_his_own_and_may_drop_them(handle: SqlHandle) -> None:
    for statement in (
        "create table mine as select value from orders",
        "insert into mine select value from orders",
        "insert overwrite mine select value from orders limit 1",
        "alter table mine rename column value to data",
    ):
        ask(handle, statement, max_rows=1, may_write=True)
    assert ask(handle, "select count(data) from mine", max_rows=1).rows == [[1]]
    ask(handle, "drop table mine purge", max_rows=1, may_write=True)
    assert table_names(handle) == ["odd-name.v1", "orders"]


def test_what_reads_needs_no_leave(handle: SqlHandle) -> None:
    for statement in (
        "show create table orders",
        "describe extended orders",
        "explain select * from orders",
        "with t as (select * from orders) select * from t",
        "values (1)",
        "select * from headrace.topics.orders.snapshots",
    ):
        assert ask(handle, statement, max_rows=10).rows


def test_answers_are_printed_for_people_for_programs_and_for_spreadsheets(capsys: pytest.CaptureFixture[str]) -> None:
    answer = Answer(
        columns=["n", "value", "headers"],
        rows=[[1, bytearray(b"hello"), [{"key": "h", "value": b"\xff"}]], [None, 'a "b",c', []]],
        has_more=False,
    )
    print_answer(answer, SqlOutput.TEXT)
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["n", "value", "headers"],
        ["1", "hello", "h=0xff"],
        ["a", '"b",c'],
    ]
    print_answer(answer, SqlOutput.CSV)
    assert capsys.readouterr().out == 'n,value,headers\n1,hello,h=0xff\n,"a ""b"",c",\n'
    print_answer(answer, SqlOutput.JSON)
    assert json.loads(capsys.readouterr().out) == [
        {"n": 1, "value": "hello", "headers": [{"key": "h", "value": "0xff"}]},
        {"n": None, "value": 'a "b",c', "headers": []},
    ]
    print_answer(Answer(columns=["n"], rows=[], has_more=False), SqlOutput.TEXT)
    assert capsys.readouterr().out.splitlines() == ["n", "(no rows)"]


def test_the_command_reads_stdin_and_leaves_nothing_of_sparks_own_talk(data_dir: Path) -> None:
    asked = run_headrace(data_dir, "sql", "-", "--output", "json", stdin="select count(*) as c from orders;\n")
    assert (asked.returncode, asked.stderr) == (0, "")
    assert json.loads(asked.stdout) == [{"c": 3}]


def test_without_tables_it_says_so_at_once_and_makes_none(tmp_path: Path) -> None:
    asked: subprocess.CompletedProcess[str] = run_headrace(tmp_path / "data", "sql", "select 1")
    assert asked.returncode == 1
    assert "there are no tables yet" in asked.stderr and "pipeline run --once" in asked.stderr
    assert len(asked.stderr.splitlines()) == 1 and not (tmp_path / "data" / "catalog.db").exists()
