"""Fetch and build what drivers need, below `build/compat/`. Lock files are in the drivers' folders.

Every function returns when its product is ready and raises `BuildFailed` with the tool's own words otherwise.

Must stay true: products appear whole or not at all. A run that was broken off leaves nothing that a later one would
trust.
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from compat.running import ROOT
from tests.servers.kafka_jars import fetch_kafka_jars, java

BUILD = ROOT / "build" / "compat"
BUILD_LIMIT_SECONDS = 900
KCAT_PACKAGES = ("kcat", "librdkafka1", "libyajl2", "liblz4-1", "libsasl2-2", "libssl3", "libzstd1")
_SAID_LETTERS = 3000
_GO_BUILDS: dict[Path, threading.Lock] = defaultdict(threading.Lock)


class BuildFailed(Exception):
    """A driver cannot be built; the message says which command failed, and what it said."""


def build_go(folder: Path) -> Path:
    """Build a Go driver and return its binary. The go command itself knows what is up to date."""
    binary = BUILD / folder.name
    BUILD.mkdir(parents=True, exist_ok=True)
    # Two clients share one binary: the second finds it up to date, and go leaves it alone while the first runs it.
    with _GO_BUILDS[folder]:
        _run(["go", "build", "-mod=readonly", "-o", str(binary), "."], cwd=folder)
    return binary


def install_npm(folder: Path) -> Path:
    """Install what package-lock.json names and return the folder of modules."""
    target = BUILD / f"{folder.name}-{_digest([folder / 'package-lock.json'])}"
    if not target.is_dir():
        with _Scratch() as scratch:
            for name in ("package.json", "package-lock.json"):
                shutil.copy(folder / name, scratch / name)
            _run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"], cwd=scratch)
            _put(scratch, target)
    return target / "node_modules"


def compile_java(folder: Path) -> str:
    """Compile the Java driver and return its class path, Apache Kafka's jars included."""
    try:
        jars = fetch_kafka_jars()
    except (subprocess.SubprocessError, OSError) as error:
        raise BuildFailed(f"Apache Kafka's jars cannot be fetched with Maven: {error}") from error
    sources = sorted(folder.glob("*.java"))
    target = BUILD / f"{folder.name}-{_digest(sources)}"
    if not target.is_dir():
        with _Scratch() as scratch:
            javac = str(Path(java()).with_name("javac"))
            options = ["-Xlint:all", "-Werror", "-proc:none", "-cp", f"{jars}/*", "-d", str(scratch)]
            _run([javac, *options, *map(str, sources)], cwd=folder)
            _put(scratch, target)
    return f"{target}:{jars}/*"


def make_venv(folder: Path) -> Path:
    """Install requirements.txt into an environment of its own and return its interpreter."""
    requirements = folder / "requirements.txt"
    target = BUILD / f"{folder.name}-{_digest([requirements])}"
    python = target / "bin" / "python"
    ready = target / "ready"
    if not ready.is_file():
        shutil.rmtree(target, ignore_errors=True)
        # An environment cannot be moved, so this one is marked when it is whole.
        _run([sys.executable, "-m", "venv", str(target)], cwd=ROOT)
        options = ["--quiet", "--disable-pip-version-check", "--require-hashes", "--only-binary=:all:"]
        _run([str(python), "-m", "pip", "install", *options, "-r", str(requirements)], cwd=ROOT)
        ready.touch()
    return python


def fetch_kcat() -> tuple[Path, Path]:
    """Return kcat and the folder of its libraries: the installed one, or Debian's package unpacked without root."""
    installed = shutil.which("kcat")
    if installed is not None:
        return Path(installed), Path(installed).parent
    target = BUILD / "kcat"
    if not target.is_dir():
        with _Scratch() as scratch:
            debs = scratch / "debs"
            debs.mkdir()
            _download_packages(debs, scratch / "apt")
            for package in sorted(debs.glob("*.deb")):
                _run(["dpkg", "-x", str(package), str(scratch / "root")], cwd=scratch)
            _put(scratch / "root", target)
    libraries = next(target.glob("usr/lib/*/librdkafka.so.1")).parent
    return target / "usr" / "bin" / "kcat", libraries


def _download_packages(debs: Path, state: Path) -> None:
    command = ["download", "-qq", *KCAT_PACKAGES]
    try:
        _run(["apt-get", *command], cwd=debs)
    except BuildFailed:
        # There are no package lists, as in a slim image. Lists of our own need no root.
        for name in ("lists/partial", "cache/archives/partial"):
            (state / name).mkdir(parents=True)
        own = [f"-oDir::State::Lists={state}/lists", f"-oDir::Cache={state}/cache", "-oAPT::Sandbox::User="]
        _run(["apt-get", *own, "-qq", "update"], cwd=debs)
        _run(["apt-get", *own, *command], cwd=debs)


class _Scratch:
    """A folder below `build/`, so that what is in it can be renamed into place."""

    def __enter__(self) -> Path:
        BUILD.mkdir(parents=True, exist_ok=True)
        self._made = Path(tempfile.mkdtemp(dir=BUILD, prefix="scratch-"))
        self._made.chmod(0o755)
        return self._made

    def __exit__(self, *error: object) -> None:
        shutil.rmtree(self._made, ignore_errors=True)


def _put(made: Path, target: Path) -> None:
    try:
        made.rename(target)
    except OSError:  # another run was faster
        if not target.is_dir():
            raise


def _digest(files: Sequence[Path]) -> str:
    together = hashlib.sha256()
    for file in files:
        together.update(file.read_bytes())
    return together.hexdigest()[:12]


def _run(command: Sequence[str], *, cwd: Path) -> None:
    try:
        subprocess.run(
            command,
            cwd=cwd,
            check=True,
            timeout=BUILD_LIMIT_SECONDS,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    except FileNotFoundError as error:
        raise BuildFailed(f"{command[0]} is not installed (needed for: {' '.join(command)})") from error
    except subprocess.TimeoutExpired as error:
        raise BuildFailed(f"{' '.join(command)} took more than {BUILD_LIMIT_SECONDS} s") from error
    except subprocess.CalledProcessError as error:
        said = str(error.stdout)[-_SAID_LETTERS:]
        raise BuildFailed(f"{' '.join(command)} failed with code {error.returncode}:\n{said}") from error
