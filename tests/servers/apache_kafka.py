"""A real Apache Kafka: one KRaft node with its shipped settings, on loopback, in a directory of its own.

Only ports, directories and what a single node needs differ from the defaults. The JVM gets the flags of Kafka's own
start script, and the jars come from `kafka_jars`. Formatting the storage is a step of its own, because Kafka's users
do it once, before the first start.
"""

import contextlib
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.servers.kafka_jars import java, kafka_class_path

CLUSTER_ID = "aGVhZHJhY2UtdGVzdHMtMQ"
READY_LIMIT_SECONDS = 180.0
STOP_LIMIT_SECONDS = 60.0
FORMAT_LIMIT_SECONDS = 120.0
PROBE_LIMIT_SECONDS = 2.0
PROBE_PAUSE_SECONDS = 0.005

# What bin/kafka-server-start.sh and bin/kafka-run-class.sh hand to the JVM by default.
JVM_FLAGS = (
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)

# One node that is broker and controller, as in the shipped server.properties: it cannot hold three replicas.
SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "inter.broker.listener.name": "PLAINTEXT",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "offsets.topic.replication.factor": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}

# The server dies with the test process, even if that is killed: PR_SET_PDEATHSIG is 1, SIGKILL is 9.
_LAUNCH = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execvp(sys.argv[1], sys.argv[1:])"

_API_VERSIONS = 18
_METADATA = 3


@dataclass(slots=True, kw_only=True)
class ApacheKafka:
    """A running server."""

    process: "subprocess.Popen[bytes]"
    port: int
    directory: Path
    ready_after_seconds: float

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def stop(self) -> None:
        """Kill the server and wait for the end. Nobody needs its data afterwards."""
        self.process.kill()
        self.process.wait(STOP_LIMIT_SECONDS)


@contextlib.contextmanager
def running_apache_kafka(directory: Path, *, settings: Mapping[str, str] | None = None) -> Iterator[ApacheKafka]:
    """Format `directory`, start a server on it, wait until it serves, and kill it on the way out."""
    format_storage(directory, settings=settings)
    server = start_apache_kafka(directory)
    try:
        yield server
    finally:
        server.stop()


def format_storage(directory: Path, *, settings: Mapping[str, str] | None = None) -> None:
    """Write the properties and format the storage, as `kafka-storage.sh format` does."""
    directory.mkdir(parents=True, exist_ok=True)
    properties = directory / "server.properties"
    _write_properties(properties, {**SETTINGS, **_addresses(directory / "logs"), **(settings or {})})
    command = [java(), "-cp", kafka_class_path(), "kafka.tools.StorageTool", "format"]
    command += ["--cluster-id", CLUSTER_ID, "--config", str(properties), "--standalone"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=FORMAT_LIMIT_SECONDS)
    if done.returncode != 0:
        raise RuntimeError(f"Apache Kafka's storage was not formatted:\n{done.stdout}{done.stderr}")


def start_apache_kafka(directory: Path) -> ApacheKafka:
    """Start a server on formatted storage and return when it answers. The caller stops it."""
    properties = directory / "server.properties"
    port = _port_of(properties)
    # Kafka takes its log level from a file that the jars lack; without one it logs errors only, to the console.
    command = [sys.executable, "-c", _LAUNCH, java(), *JVM_FLAGS, "-cp", kafka_class_path(), "kafka.Kafka"]
    log = directory / "server.log"
    with log.open("wb") as output:
        began = time.monotonic()
        process = subprocess.Popen([*command, str(properties)], stdout=output, stderr=output, cwd=directory)
    try:
        served_at = wait_until_served("127.0.0.1", port, has_ended=lambda: process.poll() is not None)
    except BaseException:
        process.kill()
        process.wait(STOP_LIMIT_SECONDS)
        with contextlib.suppress(OSError):
            sys.stderr.write(log.read_text(encoding="utf-8", errors="replace")[-4000:])
        raise
    return ApacheKafka(process=process, port=port, directory=directory, ready_after_seconds=served_at - began)


def copy_storage(formatted: Path, directory: Path) -> None:
    """Copy formatted storage that no server has used yet, and give the copy ports of its own."""
    shutil.copytree(formatted, directory)
    properties = directory / "server.properties"
    settings = dict(line.split("=", 1) for line in properties.read_text(encoding="utf-8").splitlines())
    _write_properties(properties, settings | _addresses(directory / "logs"))


def wait_until_served(host: str, port: int, *, has_ended: Callable[[], bool]) -> float:
    """Wait until ApiVersions and Metadata are answered there with a broker; return the monotonic time of that.

    Raises `RuntimeError` if the server has ended before.
    """
    deadline = time.monotonic() + READY_LIMIT_SECONDS
    while time.monotonic() < deadline:
        if has_ended():
            raise RuntimeError(f"the server on port {port} ended before it served: read its log")
        with contextlib.suppress(OSError):
            if count_brokers(host, port) > 0:
                return time.monotonic()
        time.sleep(PROBE_PAUSE_SECONDS)
    raise RuntimeError(f"the server on port {port} did not serve within {READY_LIMIT_SECONDS:.0f} s: read its log")


def count_brokers(host: str, port: int) -> int:
    """Ask for ApiVersions and Metadata, in the oldest forms, and return how many brokers are named."""
    with socket.create_connection((host, port), timeout=PROBE_LIMIT_SECONDS) as connection:
        versions = _ask(connection, _API_VERSIONS, 0, b"")
        if struct.unpack_from(">h", versions, 4)[0] != 0:
            return 0
        # Version 1 with an empty array of topics asks for none, so the answer stays small.
        metadata = _ask(connection, _METADATA, 1, struct.pack(">i", 0))
        return int(struct.unpack_from(">i", metadata, 4)[0])


def _ask(connection: socket.socket, api_key: int, version: int, body: bytes) -> bytes:
    request = struct.pack(">hhih5s", api_key, version, api_key, 5, b"probe") + body
    connection.sendall(struct.pack(">i", len(request)) + request)
    (size,) = struct.unpack(">i", _receive(connection, 4))
    return _receive(connection, size)


def _receive(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(size - len(parts))
        if not part:
            raise ConnectionError("the server closed the connection in the middle of an answer")
        parts += part
    return bytes(parts)


def _addresses(logs: Path) -> dict[str, str]:
    port, controller_port = free_ports(2)
    listeners = f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}"
    return {
        "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller_port}",
        "listeners": listeners,
        "advertised.listeners": listeners,
        "log.dirs": str(logs),
    }


def _write_properties(path: Path, settings: Mapping[str, str]) -> None:
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()), encoding="utf-8")


def _port_of(properties: Path) -> int:
    for line in properties.read_text(encoding="utf-8").splitlines():
        if line.startswith("listeners="):
            return int(line.split(",")[0].rsplit(":", 1)[1])
    raise ValueError(f"{properties} names no listener: format the storage first")


def free_ports(count: int) -> list[int]:
    """Return ports that nobody uses now, all different. Another process could still be faster."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
