"""The source on a Spark cluster, facts in PostgreSQL and bytes in S3: tasks reach the object store, and no more."""

from pathlib import Path

import pytest

from tests.servers.headrace import running_headrace
from tests.servers.postgres import shared_postgres
from tests.servers.seaweedfs import running_seaweedfs
from tests.servers.spark_sessions import SOCKETS_ARE_COLLECTED, running_spark
from tests.servers.spark_standalone import running_spark_cluster
from tests.spark.pipelines import produce

pytestmark = [SOCKETS_ARE_COLLECTED, pytest.mark.timeout(900)]

BUCKET = "topics"
COUNT = 400


def test_topics_are_read_from_s3_by_executors_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = [b"value %d" % number for number in range(COUNT)]
    with shared_postgres() as postgres, running_seaweedfs(tmp_path) as seaweedfs:
        seaweedfs.create_bucket(BUCKET)
        environment = {
            "AWS_ENDPOINT": seaweedfs.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "any",
            "AWS_SECRET_ACCESS_KEY": "any",
        }
        metadata = postgres.url_of("spark_source")
        objects = f"s3://{BUCKET}/cluster?listing=levels"
        stores = [f"--metadata={metadata}", f"--objects={objects}"]
        settings = {"num.partitions": "3"}
        with running_headrace(
            tmp_path / "broker", settings=settings, options=stores, environment=environment
        ) as broker:
            produce(broker, "orders", values)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        with running_spark_cluster(tmp_path / "cluster", workers=1, environment=environment) as cluster:
            conf = {"spark.master": cluster.url, "spark.executor.memory": "512m"}
            with running_spark(tmp_path / "spark", settings=conf) as session:
                options = {"metadata": metadata, "objects": objects, "subscribe": "orders", "minPartitions": "6"}
                frame = session.read.format("headrace").options(**options).load()
                rows = frame.select("partition", "offset", "value").collect()
                assert frame.rdd.getNumPartitions() == 6
        assert sorted(bytes(row["value"]) for row in rows) == sorted(values)
        assert len({(row["partition"], row["offset"]) for row in rows}) == COUNT
