"""The pipeline as a process, and what its tests do around it."""

import os
import subprocess
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from pyiceberg.catalog.sql import SqlCatalog

from tests.servers.headrace import HeadraceProcess

LIMIT_SECONDS = 150.0
HEADRACE = str(Path(sysconfig.get_path("scripts")) / "headrace")


def headrace(*words: str) -> "subprocess.CompletedProcess[str]":
    """Run a command of ours to its end."""
    return subprocess.run([HEADRACE, *words], capture_output=True, text=True, check=False, timeout=LIMIT_SECONDS)


def create_fresh_topic(broker: HeadraceProcess, name: str) -> None:
    """Create a topic whose table is to be as close behind it as can be asked for."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    topic = NewTopic(name, num_partitions=1, config={"headrace.table.target.lag.ms": "5000"})
    admin.create_topics([topic])[name].result(LIMIT_SECONDS)


def produce(broker: HeadraceProcess, topic: str, values: Sequence[bytes]) -> None:
    """Produce values to a topic, and wait until all are acknowledged."""
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(LIMIT_SECONDS) == 0


def start_pipeline(
    data_dir: Path, *options: str, environment: Mapping[str, str] | None = None
) -> "subprocess.Popen[str]":
    """Start the pipeline on a data directory; the caller ends it."""
    command = [HEADRACE, "pipeline", "run", f"--data-dir={data_dir}", *options]
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
    )


def run_pipeline(
    data_dir: Path, *options: str, environment: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run the pipeline to its end, and return what it printed and its exit code."""
    process = start_pipeline(data_dir, *options, environment=environment)
    try:
        out, told = process.communicate(timeout=LIMIT_SECONDS)
    finally:
        process.kill()
        process.wait()
    return subprocess.CompletedProcess(process.args, process.returncode, out, told)


def values_in_table(data_dir: Path, topic: str, properties: Mapping[str, str] | None = None) -> list[bytes]:
    """Return the values of all rows of a topic's table, sorted, as PyIceberg reads them."""
    catalog = SqlCatalog("headrace", uri=f"sqlite:///{data_dir}/catalog.db", **(properties or {}))
    try:
        rows = catalog.load_table(f"topics.{topic}").scan(selected_fields=("value",)).to_arrow()
    finally:
        catalog.close()
    return sorted(value.as_py() for value in rows.column("value"))


def consumed(broker: HeadraceProcess, topic: str) -> list[bytes]:
    """Return what a consumer gets from the beginning to the end, sorted."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "whoever",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": "false",
            "enable.partition.eof": "true",
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=LIMIT_SECONDS).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
        found: list[bytes] = []
        at_end: set[int | None] = set()
        while len(at_end) < len(partitions):
            message = consumer.poll(LIMIT_SECONDS)
            assert message is not None, f"no more than {len(found)} came"
            error = message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                at_end.add(message.partition())
            else:
                assert error is None, str(error)
                found.append(bytes(message.value() or b""))
        return sorted(found)
    finally:
        consumer.close()
