"""Outages that an operator must expect: a few plain lines that say what to do, no traceback, and service after it."""

import json
import resource
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer

from tests.integration.clients.librdkafka import create_topic, quiet
from tests.integration.clients.waiting import eventually
from tests.servers.headrace import HeadraceProcess, running_headrace
from tests.servers.postgres import running_postgres

TOPIC = "outages"
MESSAGE_TIMEOUT_MS = 2000
END_LIMIT_SECONDS = 60


class Sender:
    """Sends one record after another, and counts what becomes of them."""

    def __init__(self, broker: HeadraceProcess) -> None:
        self._producer = Producer(
            quiet({"bootstrap.servers": broker.bootstrap, "message.timeout.ms": MESSAGE_TIMEOUT_MS, "linger.ms": 0})
        )
        self.acknowledged = 0
        self.failed = 0

    def send(self) -> None:
        self._producer.produce(TOPIC, b"value", on_delivery=self._note)
        self._producer.poll(0.05)

    def has_failed(self) -> bool:
        self.send()
        return self.failed > 0

    def goes_on(self, *, beyond: int) -> bool:
        self.send()
        return self.acknowledged > beyond

    def _note(self, error: object, _: object) -> None:
        self.acknowledged += error is None
        self.failed += error is not None


@contextmanager
def committing(broker: HeadraceProcess) -> Iterator[Consumer]:
    """A consumer whose commits the broker has to refuse while its store is away."""
    consumer = Consumer(
        quiet(
            {"bootstrap.servers": broker.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
            | {"auto.commit.interval.ms": 100}
        )
    )
    try:
        consumer.subscribe([TOPIC])
        yield consumer
    finally:
        consumer.close()


def lines_of(broker: HeadraceProcess) -> list[dict[str, Any]]:
    return [json.loads(line) for line in broker.log if line.startswith("{")]


def assert_plain(broker: HeadraceProcess) -> None:
    """No line holds a traceback."""
    tracebacks = [line for line in broker.log if "Traceback" in line or '"traceback"' in line]
    assert tracebacks == []


def test_postgresql_that_is_away_is_a_few_plain_lines(tmp_path: Path) -> None:
    with (
        running_postgres() as postgres,
        running_headrace(tmp_path, options=[f"--metadata={postgres.url_of('outage')}"]) as broker,
    ):
        create_topic(broker.bootstrap, TOPIC)
        sender = Sender(broker)
        eventually("the first acknowledgement", lambda: sender.goes_on(beyond=0))
        with committing(broker) as consumer:
            eventually("a record", lambda: consumer.poll(0.1) is not None)
            postgres._server.stop()
            try:
                eventually("a failure", sender.has_failed)
                eventually(
                    "a line with advice",
                    lambda: consumer.poll(0.1) is None and any(line.get("advice") for line in lines_of(broker)),
                )
            finally:
                postgres._server.ensure_postgres_running()
            before = sender.acknowledged
            eventually("acknowledgements again", lambda: sender.goes_on(beyond=before))
        assert broker.process.poll() is None
        assert_plain(broker)
        refused = Counter(
            (line["api"], line["code"]) for line in lines_of(broker) if line["event"] == "a request was refused"
        )
        assert all(count <= 10 for count in refused.values()), refused
        assert all("PostgreSQL" in line["error"] for line in lines_of(broker) if line.get("advice"))


def test_disk_that_takes_no_more_writes_ends_the_broker_with_plain_lines(tmp_path: Path) -> None:
    """The kernel refuses every write behind the end of a file, of the log and of the metadata store alike."""
    with running_headrace(tmp_path) as broker:
        create_topic(broker.bootstrap, TOPIC)
        sender = Sender(broker)
        eventually("the first acknowledgement", lambda: sender.goes_on(beyond=0))
        resource.prlimit(broker.process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))

        def has_ended() -> bool:
            sender.send()
            return broker.process.poll() is not None

        eventually("the broker's end", has_ended, limit_seconds=END_LIMIT_SECONDS)
        assert broker.process.returncode == 1
        eventually("its last line", lambda: any(line.startswith("headrace: ") for line in broker.log))
        assert_plain(broker)
        ended = [line for line in lines_of(broker) if line["event"] == "a service has ended"]
        assert len(ended) == len({line["error"] for line in ended}) and all(line["advice"] for line in ended)
        before = sender.acknowledged
    with running_headrace(tmp_path, kafka_port=broker.kafka_port):
        eventually("acknowledgements again", lambda: sender.goes_on(beyond=before))
