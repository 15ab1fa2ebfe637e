"""Spark SQL over the tables: a session of this host with Iceberg's own runtime, on the catalog of the pipeline.

Spark fetches the jars itself, once, from Maven Central or what stands in for it, and keeps them in its own folder.

Must stay true: the catalog's cache is off. With it a session saw ten rows while the table grew to eighty.
"""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import Unsupported
from headrace.pipeline.spark.session import SparkFailed, SparkHandle, SparkOptions, first_line, open_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ICEBERG_VERSION = "1.12.0"
ICEBERG_RUNTIME = f"org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:{ICEBERG_VERSION}"
ICEBERG_AWS = f"org.apache.iceberg:iceberg-aws-bundle:{ICEBERG_VERSION}"
SQLITE_JDBC = "org.xerial:sqlite-jdbc:3.46.1.3"

CATALOG = "headrace"
"""The catalog's name, here and in its database: both sides must use the same."""
NAMESPACE = "topics"

SQL_MASTER = "local[*]"


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogAccess:
    """Where the tables are found: the catalog by its URL, their files by that of the object store.

    `properties` are what a REST catalog asks for; Iceberg's Java and Python sides call them alike.
    """

    url: str
    objects_url: str
    warehouse: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)


class SqlHandle:
    """A running Spark that answers SQL; `close` ends it."""

    def __init__(self, spark: SparkHandle, session: "SparkSession") -> None:
        self.spark = spark
        self.session = session

    def close(self) -> None:
        """End the session and its Spark."""
        self.spark.close()


def sql_session(
    catalog: CatalogAccess, options: SparkOptions | None = None, *, environment: Mapping[str, str] | None = None
) -> SqlHandle:
    """Start Spark with Iceberg and the catalog; blocks for some seconds. Raises `Unsupported` or `SparkFailed`.

    `select * from headrace.topics.orders` and plain `select * from orders` mean the same there.
    """
    environment = os.environ if environment is None else environment
    options = options or SparkOptions(master=SQL_MASTER)
    conf = {
        "spark.jars.packages": ",".join(packages(catalog)),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "4",
        **catalog_properties(catalog, environment),
        **options.conf,
    }
    try:
        spark = open_spark(replace(options, conf=conf), environment=environment)
    except SparkFailed as error:
        if "unresolved dependenc" not in str(error):
            raise
        wanted = conf["spark.jars.packages"]
        raise Unsupported(
            f"Spark could not fetch {wanted}: let this host reach Maven Central once, or name a mirror"
            " with pipeline.spark.conf (spark.jars.repositories), or give the jars' paths there (spark.jars and an"
            " empty spark.jars.packages)"
        ) from error
    from pyspark.sql import SparkSession

    # Each failed query would be printed to stderr as one line of JSON with both stack traces, beside being raised.
    logging.getLogger("SQLQueryContextLogger").disabled = True
    try:
        return SqlHandle(spark, SparkSession(spark.context))
    except Exception as error:  # As everywhere, Py4J raises what it has.
        told = f"Spark SQL did not start: {first_line(error)}"
        spark.close()
        raise SparkFailed(told) from None


def packages(catalog: CatalogAccess) -> list[str]:
    """Return the Maven coordinates of what Spark needs for this catalog and these files."""
    wanted = [ICEBERG_RUNTIME]
    if catalog.url.startswith("sqlite:"):
        wanted.append(SQLITE_JDBC)
    if catalog.objects_url.startswith("s3:"):
        wanted.append(ICEBERG_AWS)
    return wanted


def catalog_properties(catalog: CatalogAccess, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the Spark properties that attach the catalog."""
    own = {
        "cache-enabled": "false",
        "default-namespace": NAMESPACE,
        **_catalog_kind(catalog),
        **_files(catalog, environment),
        **catalog.properties,
    }
    return {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.defaultCatalog": CATALOG,
        f"spark.sql.catalog.{CATALOG}": "org.apache.iceberg.spark.SparkCatalog",
        **{f"spark.sql.catalog.{CATALOG}.{name}": value for name, value in own.items()},
    }


def _catalog_kind(catalog: CatalogAccess) -> dict[str, str]:
    if catalog.url.startswith("sqlite:"):
        path = Path(catalog.url.removeprefix("sqlite:").removeprefix("//")).absolute()
        # Iceberg asks for a warehouse though every table of ours states its own location.
        warehouse = catalog.warehouse or (path.parent / "warehouse").as_uri()
        return {
            "type": "jdbc",
            "uri": f"jdbc:sqlite:{path}",
            "jdbc.schema-version": "V1",
            "warehouse": warehouse,
        }
    rest = {"type": "rest", "uri": catalog.url}
    return rest if catalog.warehouse is None else rest | {"warehouse": catalog.warehouse}


def _files(catalog: CatalogAccess, environment: Mapping[str, str]) -> dict[str, str]:
    """Tell Iceberg how to reach the files where Hadoop's own way will not do; keys come from the environment."""
    if not catalog.objects_url.startswith("s3:"):
        return {}
    found = {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO"}
    endpoint = environment.get("AWS_ENDPOINT") or environment.get("AWS_ENDPOINT_URL")
    if endpoint:
        found |= {"s3.endpoint": endpoint, "s3.path-style-access": "true"}
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    if region:
        found["client.region"] = region
    return found
