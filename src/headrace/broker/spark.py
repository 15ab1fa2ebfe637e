"""What the settings say of Spark, as plain values for `pipeline/spark/`, and what its options say to the settings."""

import os
from pathlib import Path
from urllib.parse import unquote

from headrace.errors import Invalid
from headrace.metadata.open import sqlite_path
from headrace.pipeline.scan.options import StorageOptions
from headrace.pipeline.spark.address import ObjectsAddress
from headrace.pipeline.spark.session import LOCAL_MASTER, SparkOptions
from headrace.pipeline.spark.sql import SQL_MASTER, CatalogAccess
from headrace.settings import Settings, load_settings

LEAN_JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Java only hands out tasks here, and is idle otherwise: it starts in half the time like this, and stays small."""


def spark_options(settings: Settings) -> SparkOptions:
    """Return how the pipeline's Spark is started."""
    pipeline = settings.pipeline
    return SparkOptions(
        master=pipeline.spark_master or LOCAL_MASTER,
        python=pipeline.spark_python,
        conf=dict(pipeline.spark_conf),
        app_name="headrace pipeline",
        java_flags=LEAN_JAVA,
    )


def sql_options(settings: Settings) -> SparkOptions:
    """Return how the Spark that answers SQL is started: on this host, whatever the pipeline uses."""
    return SparkOptions(master=SQL_MASTER, conf=dict(settings.pipeline.spark_conf), app_name="headrace sql")


def objects_address(settings: Settings) -> ObjectsAddress:
    """Return how executors open the object store; they have other working directories than we do."""
    return ObjectsAddress(
        url=anywhere(settings.objects.url),
        retry_attempts=settings.objects.retry_max_attempts,
        retry_max_backoff_ms=settings.objects.retry_max_delay_ms,
    )


def catalog_access(settings: Settings) -> CatalogAccess:
    """Return how Spark SQL finds the tables."""
    catalog = settings.catalog
    return CatalogAccess(
        url=catalog.url,
        objects_url=anywhere(settings.objects.url),
        warehouse=catalog.warehouse,
        properties=dict(catalog.properties),
    )


def anywhere(url: str) -> str:
    """Return an object store's URL that means the same in every working directory of this host."""
    if not url.startswith("file:") or url.startswith("file://"):
        return url
    return Path(unquote(url.removeprefix("file:"))).absolute().as_uri()


def settings_of(storage: StorageOptions) -> Settings:
    """Return the settings that the options of a read or a write name. Raises `Invalid`, also where no data is."""
    given = {"data.dir": storage.data_dir, "metadata.url": storage.metadata, "objects.url": storage.objects}
    names = {"data.dir": "dataDir", "metadata.url": "metadata", "objects.url": "objects"}
    if not any((*given.values(), storage.config, storage.settings)):
        raise Invalid("say where the data is: dataDir, or metadata and objects, or config, as headrace serve is told")
    settings = load_settings(
        file=None if storage.config is None else Path(storage.config),
        environment=os.environ,
        pairs=[f"{key}={value}" for key, value in storage.settings],
        options={key: (names[key], value) for key, value in given.items() if value is not None},
    ).tree
    _require_data(settings)
    return settings


def _require_data(settings: Settings) -> None:
    """Refuse a metadata store on disk that is not there: opening it would make an empty one."""
    url = settings.metadata.url
    if not url.startswith("sqlite:"):
        return
    path = Path(sqlite_path(url))
    if not path.exists():
        raise Invalid(f"there is no data of Headrace at {path.absolute()}: correct dataDir or metadata")
