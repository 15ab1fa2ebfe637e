"""The foreign clients: where each driver is, how it is built, how it is started, and how long it may take."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from compat.builds import build_go, compile_java, fetch_kcat, install_npm, make_venv
from tests.servers.kafka_jars import java

HERE = Path(__file__).parent

# A driver's JVM lives for seconds: compile quickly, collect simply, take little.
JVM_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """How a built driver is run."""

    command: tuple[str, ...]
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A client under test. `prepare` builds the driver; `is_short` says whether the short form runs it at all."""

    name: str
    folder: str
    prepare: Callable[[Path], Started]
    limit_seconds: float
    is_short: bool = True
    cases: str = "cases.toml"

    @property
    def path(self) -> Path:
        return HERE / self.folder

    @property
    def cases_path(self) -> Path:
        return self.path / self.cases


def _java(folder: Path) -> Started:
    class_path = compile_java(folder)
    return Started(
        command=(java(), *JVM_OPTIONS, "-cp", class_path, "Driver"),
        environment={"COMPAT_PAIR_PYTHON": sys.executable},
    )


def _kafka_tools(folder: Path) -> Started:
    class_path = compile_java(HERE / "java")
    environment = {"COMPAT_JAVA": " ".join((java(), *JVM_OPTIONS)), "COMPAT_CLASS_PATH": class_path}
    return Started(command=_module(folder), environment=environment)


def _go(folder: Path) -> Started:
    return Started(command=(str(build_go(folder)),), environment={"COMPAT_PAIR_PYTHON": sys.executable})


def _sarama_old(folder: Path) -> Started:
    return Started(
        command=(str(build_go(folder)),),
        environment={"COMPAT_PAIR_PYTHON": sys.executable, "SARAMA_VERSION": "0.10.2.0"},
    )


def _kafkajs(folder: Path) -> Started:
    return Started(
        command=("node", str(folder / "driver.js")),
        environment={"COMPAT_PAIR_PYTHON": sys.executable, "NODE_PATH": str(install_npm(folder))},
    )


def _kcat(folder: Path) -> Started:
    kcat, libraries = fetch_kcat()
    return Started(
        command=_module(folder), environment={"COMPAT_KCAT": str(kcat), "COMPAT_KCAT_LIBRARIES": str(libraries)}
    )


def _librdkafka(folder: Path) -> Started:
    return Started(command=_module(folder), environment={"COMPAT_PAIR_PYTHON": sys.executable})


def _librdkafka_old(folder: Path) -> Started:
    python = make_venv(folder)
    return Started(
        command=(str(python), "-m", "compat.librdkafka.driver"), environment={"COMPAT_PAIR_PYTHON": sys.executable}
    )


def _module(folder: Path) -> tuple[str, ...]:
    return (sys.executable, "-m", f"compat.{folder.name}.driver")


# The slow ones come first: two run at a time, and the last to start should be short.
CLIENTS = (
    Client(name="franz_go", folder="franz_go", prepare=_go, limit_seconds=600),
    Client(name="java", folder="java", prepare=_java, limit_seconds=900),
    Client(name="sarama_0.10.2", folder="sarama", prepare=_sarama_old, limit_seconds=600, cases="cases-0.10.2.toml"),
    Client(name="kafka_tools", folder="kafka_tools", prepare=_kafka_tools, limit_seconds=900),
    Client(name="sarama", folder="sarama", prepare=_go, limit_seconds=600),
    Client(name="kafkajs", folder="kafkajs", prepare=_kafkajs, limit_seconds=600),
    Client(name="kcat", folder="kcat", prepare=_kcat, limit_seconds=300),
    Client(name="librdkafka", folder="librdkafka", prepare=_librdkafka, limit_seconds=600),
    Client(
        name="librdkafka_2.5", folder="librdkafka_old", prepare=_librdkafka_old, limit_seconds=600, is_short=False
    ),
)

# Cases that start brokers of their own, which only Headrace can be asked for.
OWN_BROKERS = frozenset(
    {
        "failover",
        "group_failover_classic",
        "group_failover_consumer",
        "group_restart_classic",
        "group_restart_consumer",
    }
)
