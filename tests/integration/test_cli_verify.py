"""`headrace verify --log` on the data of a real broker: clean, damaged in every way, and while brokers go on."""

import json
import subprocess
import sysconfig
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.integration.clients.librdkafka import create_topic, quiet
from tests.integration.clients.messages import CALL_LIMIT_SECONDS
from tests.integration.clients.test_damage import BATCHES, DAMAGED, PER_BATCH, TOPIC, flip_a_byte, produce, value_of
from tests.integration.clients.waiting import eventually
from tests.integration.tables.moving import move_to_table
from tests.servers.headrace import HeadraceProcess, running_headrace

HEADRACE = Path(sysconfig.get_path("scripts")) / "headrace"
END = BATCHES * PER_BATCH
VERIFY_LIMIT_SECONDS = 120
MOVING = {
    "wal.segment.max.age.ms": "1000",
    "wal.sealed.grace.ms": "1000",
    "index.fold.lag.records": "0",
}
"""What nothing names is deleted as soon as can be."""


def verify(data_dir: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [str(HEADRACE), "verify", "--log", "--data-dir", str(data_dir), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=VERIFY_LIMIT_SECONDS, check=False)


def found_by(data_dir: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    done = verify(data_dir, "--output", "json", *arguments)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """The data of a broker that has stopped: one topic, one segment."""
    made = tmp_path / "data"
    with running_headrace(made) as broker:
        produce(broker)
        assert broker.terminate() == 0
    return made


def test_clean_log_ends_with_0_and_says_what_was_looked_at(data_dir: Path) -> None:
    code, found = found_by(data_dir)
    assert (code, found["clean"], found["damages"]) == (0, True, [])
    assert found["looked_at"]["topics"] == found["looked_at"]["partitions"] == 1
    assert found["looked_at"]["entries"] > 0 and found["looked_at"]["read_bytes"] > 0
    shown = verify(data_dir, "--topic", TOPIC)
    assert shown.returncode == 0 and shown.stdout.splitlines()[-1] == "the log is clean" and shown.stderr == ""
    # Without an option it verifies the log, too: there is nothing else that it could mean.
    bare = subprocess.run([HEADRACE, "verify", "--data-dir", data_dir], capture_output=True, text=True, check=False)
    assert (bare.returncode, bare.stdout) == (0, shown.stdout)


def test_flipped_byte_is_named_by_exactly_its_batch(data_dir: Path) -> None:
    key = flip_a_byte(data_dir, value_of(DAMAGED * PER_BATCH + 1))
    code, found = found_by(data_dir)
    (damage,) = found["damages"]
    assert (code, found["clean"], found["damage_count"]) == (1, False, 1)
    assert (damage["topic"], damage["partition"], damage["object_key"]) == (TOPIC, 0, key)
    assert (damage["start_offset"], damage["end_offset"]) == (DAMAGED * PER_BATCH, (DAMAGED + 1) * PER_BATCH)
    stored = (data_dir / "objects" / key).read_bytes()
    batch = stored[damage["start_byte"] : damage["start_byte"] + damage["size_bytes"]]
    assert value_of(DAMAGED * PER_BATCH) in batch and value_of((DAMAGED + 1) * PER_BATCH) not in batch
    shown = verify(data_dir)
    assert shown.returncode == 1
    head, row, *_, last = shown.stdout.splitlines()
    assert head.split() == ["topic", "partition", "offsets", "object", "bytes", "why"]
    assert row.split()[:4] == [TOPIC, "0", f"{DAMAGED * PER_BATCH}-{(DAMAGED + 1) * PER_BATCH - 1}", key]
    assert "CRC" in row and last.startswith("the log is DAMAGED: restore")


def test_truncated_object_names_what_it_lacks(data_dir: Path) -> None:
    key = flip_a_byte(data_dir, value_of(0))
    path = data_dir / "objects" / key
    data = bytearray(path.read_bytes())
    data[data.index(value_of(0)[1:]) - 1] ^= 1  # whole again
    path.write_bytes(data[: data.index(value_of(END - 1))])
    code, found = found_by(data_dir)
    (damage,) = found["damages"]
    assert code == 1 and (damage["start_offset"], damage["end_offset"]) == (END - PER_BATCH, END)
    assert "too early" in damage["why"] and damage["object_key"] == key


def test_deleted_object_is_one_damage_with_all_its_offsets(data_dir: Path) -> None:
    key = flip_a_byte(data_dir, value_of(0))
    (data_dir / "objects" / key).unlink()
    code, found = found_by(data_dir)
    (damage,) = found["damages"]
    assert code == 1 and (damage["start_offset"], damage["end_offset"], damage["object_key"]) == (0, END, key)


def test_what_is_not_there_is_said_in_one_line(data_dir: Path, tmp_path: Path) -> None:
    unknown = verify(data_dir, "--topic", "unknown")
    assert unknown.returncode == 1 and unknown.stderr == "headrace: there is no topic unknown\n"
    nowhere = verify(tmp_path / "nowhere")
    assert nowhere.returncode == 1 and "there is no cluster" in nowhere.stderr
    assert not (tmp_path / "nowhere").exists(), "it only looks"


@contextmanager
def appending(broker: HeadraceProcess, topic: str, partitions: int) -> Iterator[list[int]]:
    """Append to all partitions all the while; yields how many rounds were acknowledged."""
    rounds = [0]
    stop = threading.Event()

    def work() -> None:
        producer = Producer(quiet({"bootstrap.servers": broker.bootstrap, "linger.ms": 0}))
        while not stop.is_set():
            for n in range(20 * partitions):
                producer.produce(topic, b"appended %d" % n * 20, partition=n % partitions)
            if producer.flush(CALL_LIMIT_SECONDS) == 0:
                rounds[0] += 1

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield rounds
    finally:
        stop.set()
        thread.join(CALL_LIMIT_SECONDS)


def test_log_that_grows_and_moves_to_tables_meanwhile_is_clean(tmp_path: Path) -> None:
    topic, partitions = "busy", 4
    with running_headrace(tmp_path, settings=MOVING) as broker:
        create_topic(broker.bootstrap, topic, partitions)
        with appending(broker, topic, partitions) as rounds:
            eventually("the first rounds", lambda: rounds[0] > 3)
            before = rounds[0]
            code, found = found_by(tmp_path)
            assert (code, found["damages"]) == (0, []), found
            assert found["looked_at"]["partitions"] == partitions and found["looked_at"]["table_entries"] == 0
            eventually("more rounds", lambda: rounds[0] > before)
            verified: list[tuple[int, dict[str, Any]]] = []
            walker = threading.Thread(target=lambda: verified.extend(found_by(tmp_path) for _ in range(2)))
            walker.start()
            assert move_to_table(tmp_path, topic, row_group_bytes=16 * 1024) > 0
            walker.join()
            assert [(one[0], one[1]["damages"]) for one in verified] == [(0, [])] * 2
        code, found = found_by(tmp_path)
        assert (code, found["damages"]) == (0, [])
        assert found["looked_at"]["table_entries"] >= partitions
        assert broker.terminate() == 0


def test_damage_in_a_table_file_is_named(tmp_path: Path) -> None:
    with running_headrace(tmp_path) as broker:
        produce(broker)
        assert move_to_table(tmp_path, TOPIC) == END
        assert broker.terminate() == 0
    (path,) = (tmp_path / "objects" / "tables").rglob("*.parquet")
    code, found = found_by(tmp_path)
    assert code == 0 and found["looked_at"]["table_entries"] == 1
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    code, found = found_by(tmp_path)
    (damage,) = found["damages"]
    assert code == 1 and damage["object_key"] == str(path.relative_to(tmp_path / "objects"))
    assert (damage["start_offset"], damage["end_offset"]) == (0, END) and "CRC" in damage["why"]
