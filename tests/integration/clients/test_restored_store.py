"""The metadata store is taken back to an earlier state while brokers run, as by a fail-over or a restore.

What was committed after that state is gone. Everything that is acknowledged from then on is read, through the caches
of the same brokers, and nothing that the store does not know is.
"""

import asyncio
import contextlib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from headrace.model.error_codes import ErrorCode
from headrace.testing.batches import make_batch
from tests.integration.clients.librdkafka import create_topic
from tests.integration.clients.waiting import eventually
from tests.integration.clients.wire_client import WireClient
from tests.servers.headrace import HeadraceProcess, running_headrace
from tests.servers.postgres import PostgresServer, shared_postgres

REWOUND = "the metadata store was taken back to an earlier state"
TOPIC = "kept"


@dataclass(frozen=True, slots=True, kw_only=True)
class Backup:
    """All rows of a store, and its revision."""

    rows: list[Any]
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """One cluster's schema, and what an administrator does to it."""

    postgres: PostgresServer
    schema: str

    def running(self, data_dir: Path, node_id: int = 1) -> "contextlib.AbstractContextManager[HeadraceProcess]":
        return running_headrace(
            data_dir, node_id=node_id, options=[f"--metadata={self.postgres.url_of(self.schema)}"]
        )

    def save(self) -> Backup:
        """Return the store as it is now."""
        return asyncio.run(self._save())

    def restore(self, backup: Backup) -> None:
        """Put an earlier state back, at one instant, while brokers are connected."""
        asyncio.run(self._restore(backup))

    async def _save(self) -> Backup:
        admin = await asyncpg.connect(self.postgres.url)
        try:
            rows = await admin.fetch(f"SELECT key, value, version, session FROM {self.schema}.kv")
            revision = await admin.fetchval(f"SELECT last_value FROM {self.schema}.revision")
        finally:
            await admin.close()
        return Backup(rows=[tuple(row) for row in rows], revision=revision)

    async def _restore(self, backup: Backup) -> None:
        admin = await asyncpg.connect(self.postgres.url)
        try:
            async with admin.transaction():
                await admin.execute(f"LOCK TABLE {self.schema}.kv IN ACCESS EXCLUSIVE MODE")
                await admin.execute(f"DELETE FROM {self.schema}.kv")
                await admin.executemany(f"INSERT INTO {self.schema}.kv VALUES ($1, $2, $3, $4)", backup.rows)
                await admin.execute(f"SELECT setval('{self.schema}.revision', {backup.revision})")
        finally:
            await admin.close()


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with shared_postgres() as server:
        yield server


@pytest.fixture
def store(postgres: PostgresServer) -> Store:
    return Store(postgres=postgres, schema=f"t{uuid.uuid4().hex}")


def produce(broker: HeadraceProcess, values: list[bytes]) -> None:
    """Produce one batch each, through a connection of its own, until each is acknowledged."""
    with WireClient(broker.kafka_port) as client:
        for value in values:
            eventually(f"{value!r} is acknowledged", partial(_is_acknowledged, client, value))


def _is_acknowledged(client: WireClient, value: bytes) -> bool:
    code = client.produce(TOPIC, make_batch([value])).error_code
    # Those say that nothing was written, so the value is there once when it is sent again.
    assert code in (ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR), code
    return code == ErrorCode.NONE


def values_of(broker: HeadraceProcess) -> list[bytes | None]:
    with WireClient(broker.kafka_port) as client:
        return client.values(TOPIC)


def rewinds_in(broker: HeadraceProcess) -> list[str]:
    return [line for line in broker.log if REWOUND in line]


def numbered(name: str, count: int) -> list[bytes]:
    return [f"{name}-{number}".encode() for number in range(count)]


def test_what_is_acknowledged_after_a_restore_is_read_by_the_same_broker(store: Store, tmp_path: Path) -> None:
    kept, lost, new = numbered("kept", 5), numbered("lost", 20), numbered("new", 3)
    with store.running(tmp_path) as broker:
        create_topic(broker.bootstrap, TOPIC)
        produce(broker, kept)
        backup = store.save()
        produce(broker, lost)
        assert values_of(broker) == kept + lost
        store.restore(backup)
        produce(broker, new)
        assert values_of(broker) == kept + new
        with WireClient(broker.kafka_port) as client:
            assert client.fetch(TOPIC, offset=20).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert len(rewinds_in(broker)) == 1 and "advice" in rewinds_in(broker)[0]
        assert broker.terminate() == 0
    with store.running(tmp_path) as broker:
        assert values_of(broker) == kept + new


def test_a_broker_that_is_idle_notices_a_restore_by_itself(store: Store, tmp_path: Path) -> None:
    kept, lost = numbered("kept", 5), numbered("lost", 5)
    with store.running(tmp_path) as broker:
        create_topic(broker.bootstrap, TOPIC)
        produce(broker, kept)
        backup = store.save()
        produce(broker, lost)
        store.restore(backup)
        eventually("the broker has noticed", lambda: bool(rewinds_in(broker)))
        assert values_of(broker) == kept
        produce(broker, [b"new"])
        assert values_of(broker) == [*kept, b"new"]


def test_brokers_that_followed_lost_commits_read_what_others_wrote_under_their_numbers(
    store: Store, tmp_path: Path
) -> None:
    kept, lost, new = numbered("kept", 5), numbered("lost", 10), numbered("new", 20)
    with store.running(tmp_path, 1) as first, store.running(tmp_path, 2) as second:
        create_topic(first.bootstrap, TOPIC)
        produce(first, kept)
        backup = store.save()
        produce(first, lost)
        assert values_of(first) == values_of(second) == kept + lost
        store.restore(backup)
        produce(second, new)
        assert values_of(second) == kept + new
        eventually("the first has noticed, too", lambda: values_of(first) == kept + new)
        produce(first, [b"last"])
        assert values_of(first) == values_of(second) == [*kept, *new, b"last"]
