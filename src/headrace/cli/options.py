"""Options that several commands share, and how they become settings or a connection.

Every command that opens storage takes the same ones, so that a collector or a pipeline is pointed at a cluster's data
with the very words its brokers were started with. Every command that talks to brokers takes `--bootstrap`.
"""

import enum
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from headrace.errors import Invalid
from headrace.settings import HeadraceConfiguration, load_settings


class Output(enum.StrEnum):
    """How a command prints data."""

    TEXT = "text"
    JSON = "json"


OPTION_OF_KEY: Mapping[str, str] = {
    "data.dir": "--data-dir",
    "node.id": "--node-id",
    "broker.rack": "--zone",
    "listeners": "--kafka",
    "advertised.listeners": "--advertise",
    "http.listen": "--http",
    "objects.url": "--objects",
    "metadata.url": "--metadata",
    "pipeline.spark.master": "--master",
    "pipeline.enable": "--pipeline",
}
"""The settings that have an option of their own."""

DataDir: TypeAlias = Annotated[
    str | None, typer.Option("--data-dir", metavar="DIR", help="Where the embedded stores keep their data.")
]
Metadata: TypeAlias = Annotated[
    str | None, typer.Option("--metadata", metavar="URL", help="The metadata store: sqlite: or postgresql:.")
]
Objects: TypeAlias = Annotated[
    str | None, typer.Option("--objects", metavar="URL", help="The object store: file:, s3:, gs: or az:.")
]
Config: TypeAlias = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="A TOML file with settings.")
]
Set: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set one setting; may be given many times."),
]
OutputAs: TypeAlias = Annotated[Output, typer.Option("--output", help="How to print: for people or for programs.")]

MAX_CONFIG_FILE_BYTES = 1 << 20
"""The largest file that is read as a topic config's value. A broker takes fewer characters, and says how many."""

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
DEFAULT_TIMEOUT_SECONDS = 10.0

Bootstrap: TypeAlias = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        "-b",
        metavar="HOST:PORT",
        envvar="HEADRACE_BOOTSTRAP",
        help="A broker to ask first, of Headrace or of Apache Kafka; several with commas between.",
    ),
]
Timeout: TypeAlias = Annotated[
    float,
    typer.Option(
        "--timeout", metavar="SECONDS", min=0.1, max=3600, help="How long to wait for a broker that does not answer."
    ),
]
Properties: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("-X", "--property", metavar="NAME=VALUE", help="Set a property of librdkafka; may be given often."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """How a command reaches a cluster. `properties` are librdkafka's, and win over ours."""

    bootstrap: str
    timeout_seconds: float
    properties: Mapping[str, str]


def connection(bootstrap: str, timeout: float, properties: list[str] | None) -> Connection:
    """Gather what the options above were given."""
    if not bootstrap.strip():
        raise Invalid("--bootstrap is empty; it takes HOST:PORT")
    return Connection(bootstrap=bootstrap, timeout_seconds=timeout, properties=pairs_of(properties, "-X"))


def pairs_of(given: list[str] | None, option: str) -> dict[str, str]:
    """Split what an option that takes NAME=VALUE was given."""
    pairs = {}
    for text in given or ():
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise Invalid(f"{option} takes NAME=VALUE, not {text!r}")
        if name in pairs:
            raise Invalid(f"{option} gives {name} twice")
        pairs[name] = value
    return pairs


def topic_configs_of(given: list[str] | None, option: str) -> dict[str, str]:
    """Split what an option that takes NAME=VALUE or NAME=@FILE was given; a file's text is the value."""
    return {name: _text_of(name, value, option) for name, value in pairs_of(given, option).items()}


def _text_of(name: str, value: str, option: str) -> str:
    if not value.startswith("@"):
        return value
    path = Path(value[1:])
    try:
        if path.stat().st_size > MAX_CONFIG_FILE_BYTES:
            raise Invalid(f"{path} is larger than the {MAX_CONFIG_FILE_BYTES} bytes that {name} can take")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"{option} {name}={value}: {path} cannot be read: {error}") from error


def configure_storage(
    data_dir: str | None, metadata: str | None, objects: str | None, config: Path | None, pairs: list[str] | None
) -> HeadraceConfiguration:
    """Load the settings of a command that opens storage and needs no other option of `serve`."""
    return configure(config, pairs, {"data.dir": data_dir, "metadata.url": metadata, "objects.url": objects})


def configure(
    config: Path | None, pairs: list[str] | None, values: Mapping[str, str | None]
) -> HeadraceConfiguration:
    """Load the settings of this process; `values` holds what was given to options of their own, by key."""
    options = {key: (OPTION_OF_KEY[key], value) for key, value in values.items() if value is not None}
    return load_settings(file=config, environment=os.environ, pairs=pairs or (), options=options)
