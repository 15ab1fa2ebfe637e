"""Brokers without a disk in common: facts in PostgreSQL, bytes in S3. Everything holds that holds on one disk."""

import contextlib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from headrace.model.error_codes import ErrorCode
from headrace.testing.batches import make_batch
from tests.integration.clients.all_clients import CLIENTS
from tests.integration.clients.flows import LOST_SOCKETS, Flows
from tests.integration.clients.librdkafka import create_topic
from tests.integration.clients.messages import CODECS, as_stored, assorted, ends_of
from tests.integration.clients.waiting import eventually
from tests.integration.clients.wire_client import WireClient
from tests.servers.headrace import HeadraceProcess, running_headrace
from tests.servers.postgres import PostgresServer, shared_postgres
from tests.servers.seaweedfs import SeaweedFs, running_seaweedfs

BUCKET = "shared"
SHORT_SESSIONS = {"broker.session.timeout.ms": "2000"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    """A metadata store and an object store of one cluster's own."""

    postgres: PostgresServer
    seaweedfs: SeaweedFs
    name: str

    def running(self, data_dir: Path, node_id: int = 1) -> "contextlib.AbstractContextManager[HeadraceProcess]":
        """Run a broker on them; its data directory holds nothing that matters."""
        return running_headrace(
            data_dir,
            node_id=node_id,
            settings=SHORT_SESSIONS,
            options=[
                f"--metadata={self.postgres.url_of(self.name)}",
                f"--objects=s3://{BUCKET}/{self.name}?listing=levels",
            ],
            environment={
                "AWS_ENDPOINT": self.seaweedfs.endpoint,
                "AWS_ALLOW_HTTP": "true",
                "AWS_REGION": "us-east-1",
                "AWS_ACCESS_KEY_ID": "any",
                "AWS_SECRET_ACCESS_KEY": "any",
            },
        )


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[PostgresServer, SeaweedFs]]:
    with shared_postgres() as postgres, running_seaweedfs(tmp_path_factory.mktemp("seaweedfs")) as seaweedfs:
        seaweedfs.create_bucket(BUCKET)
        yield postgres, seaweedfs


@pytest.fixture
def stores(servers: tuple[PostgresServer, SeaweedFs]) -> Stores:
    return Stores(postgres=servers[0], seaweedfs=servers[1], name=f"t{uuid.uuid4().hex}")


def test_everything_is_there_after_a_stop_and_after_a_kill_on_another_disk(stores: Stores, tmp_path: Path) -> None:
    sent = {codec: assorted(partition, null_headers=True) for partition, codec in enumerate(CODECS)}
    expected = as_stored([message for messages in sent.values() for message in messages])
    with stores.running(tmp_path / "1") as broker:
        create_topic(broker.bootstrap, "kept", len(CODECS))
        for codec in CODECS[:3]:
            CLIENTS["librdkafka"].produce(broker.bootstrap, "kept", sent[codec], codec=codec)
        assert broker.terminate() == 0
    with stores.running(tmp_path / "2") as broker:
        for codec in CODECS[3:]:
            CLIENTS["aiokafka"].produce(broker.bootstrap, "kept", sent[codec], codec=codec, idempotent=True)
        broker.kill()
    # Nothing on its disk proves that the killed one is dead: the next waits for the end of its session.
    with stores.running(tmp_path / "3") as broker:
        for reader in CLIENTS.values():
            assert reader.read(broker.bootstrap, "kept", ends_of(expected)) == expected, reader.name


@pytest.mark.filterwarnings(LOST_SOCKETS)
def test_two_brokers_on_two_disks_are_one_cluster(stores: Stores, tmp_path: Path) -> None:
    with stores.running(tmp_path / "1", 1) as first, stores.running(tmp_path / "2", 2) as second:
        with WireClient(first.kafka_port) as one, WireClient(second.kafka_port) as two:
            eventually("both know both", lambda: one.node_ids() == two.node_ids() == {1, 2})
            create_topic(first.bootstrap, "direct")
            producer = one.producer_id()
            batch = make_batch([b"once"], producer_id=producer, producer_epoch=0, base_sequence=0)
            for broker in (one, two, one):
                answer = broker.produce("direct", batch)
                assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, 0)
            assert one.values("direct") == two.values("direct") == [b"once"]
        with Flows(f"{first.bootstrap},{second.bootstrap}") as flows:
            flows.wait_for_more()
            first.kill()
            with WireClient(second.kafka_port) as two:
                eventually("the killed one is gone", lambda: two.node_ids() == {2})
            flows.wait_for_more()
            flows.verify(second.bootstrap)
