"""Pipeline and sink without a disk in common: facts in PostgreSQL, bytes in S3, processes that share nothing else."""

import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.servers.headrace import running_headrace
from tests.servers.postgres import PostgresServer, shared_postgres
from tests.servers.seaweedfs import SeaweedFs, running_seaweedfs
from tests.servers.spark_sessions import SOCKETS_ARE_COLLECTED, running_spark
from tests.spark.pipelines import HEADRACE, LIMIT_SECONDS, consumed, produce, values_in_table

pytestmark = [SOCKETS_ARE_COLLECTED]

BUCKET = "tables"


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[PostgresServer, SeaweedFs]]:
    with shared_postgres() as postgres, running_seaweedfs(tmp_path_factory.mktemp("seaweedfs")) as seaweedfs:
        seaweedfs.create_bucket(BUCKET)
        yield postgres, seaweedfs


def environment_of(seaweedfs: SeaweedFs) -> dict[str, str]:
    return {
        "AWS_ENDPOINT": seaweedfs.endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "any",
        "AWS_SECRET_ACCESS_KEY": "any",
    }


def command(environment: Mapping[str, str], *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [HEADRACE, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_SECONDS,
        env={**os.environ, **environment},
    )


def test_records_on_s3_reach_the_table_and_come_back_from_it(
    servers: tuple[PostgresServer, SeaweedFs], tmp_path: Path
) -> None:
    postgres, seaweedfs = servers
    environment = environment_of(seaweedfs)
    stores = [
        f"--metadata={postgres.url_of('spark_pipeline')}",
        f"--objects=s3://{BUCKET}/cluster?listing=levels",
        f"--set=catalog.url=sqlite:{tmp_path}/catalog.db",
    ]
    values = [b"value %d" % number for number in range(500)]
    with running_headrace(
        tmp_path / "broker", settings={"num.partitions": "2"}, options=stores, environment=environment
    ) as broker:
        produce(broker, "orders", values)
        ran = command(environment, "pipeline", "run", "--once", f"--data-dir={tmp_path}/elsewhere", *stores)
        assert ran.returncode == 0, ran.stderr
        verified = command(environment, "table", "verify", "orders", f"--data-dir={tmp_path}/third", *stores)
        assert verified.returncode == 0, verified.stdout + verified.stderr
        reader = {
            "s3.endpoint": seaweedfs.endpoint,
            "s3.access-key-id": "any",
            "s3.secret-access-key": "any",
            "s3.region": "us-east-1",
        }
        assert values_in_table(tmp_path, "orders", reader) == sorted(values)
        produce(broker, "orders", [b"later"])
        assert consumed(broker, "orders") == sorted([*values, b"later"])


def test_rows_reach_a_topic_on_s3_once_and_consumers_read_them(
    servers: tuple[PostgresServer, SeaweedFs], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    postgres, seaweedfs = servers
    for name, value in environment_of(seaweedfs).items():
        monkeypatch.setenv(name, value)  # Java hands them on to the tasks' Python
    metadata, objects = postgres.url_of("spark_sink"), f"s3://{BUCKET}/sink?listing=levels"
    stores = [f"--metadata={metadata}", f"--objects={objects}"]
    with (
        running_headrace(tmp_path / "broker", settings={"num.partitions": "2"}, options=stores) as broker,
        running_spark(tmp_path / "spark") as spark,
    ):
        produce(broker, "orders", [b"before"])
        frame = spark.range(0, 500, 1, 2).selectExpr("concat('value ', cast(id as string)) as value")
        for _ in range(2):
            frame.write.format("headrace").mode("append").options(
                metadata=metadata, objects=objects, topic="orders", sinkId="copy", batchId="1"
            ).save()
        assert consumed(broker, "orders") == sorted([b"before", *(b"value %d" % number for number in range(500))])
