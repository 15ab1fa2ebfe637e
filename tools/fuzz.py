"""Fuzz the decoders with atheris, guided by coverage: `python tools/fuzz.py --seconds 60 [target…]`.

Each target runs in a process of its own, because the fuzzer ends the process it runs in. Inputs that were found
interesting, and the one that broke something, stay under build/fuzz/<target>/, so that the next run starts where
this one ended; `--replay FILE target` runs one of them again, without the fuzzer. Exit code: 0 when every target
held, 1 when one did not, 2 when nothing could be run.
"""

import argparse
import importlib
import importlib.util
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

TARGETS = {
    "frame": "headrace.testing.fuzz_wal:fuzz_frame",
    "chunk": "headrace.testing.fuzz_wal:fuzz_chunk",
    "batch": "headrace.testing.fuzz_records:fuzz_batch",
    "codecs": "headrace.testing.fuzz_records:fuzz_codecs",
    "columns": "headrace.testing.fuzz_records:fuzz_columns",
    "request": "headrace.testing.fuzz_wire:fuzz_request",
    "message": "headrace.testing.fuzz_wire:fuzz_message",
    "typed-value": "headrace.testing.fuzz_typed:fuzz_value",
    "typed-schema": "headrace.testing.fuzz_typed:fuzz_schema",
}
SEEDS = {
    "frame": "headrace.testing.fuzz_wal:frame_seeds",
    "batch": "headrace.testing.fuzz_records:batch_seeds",
    "columns": "headrace.testing.fuzz_records:batch_seeds",
    "codecs": "headrace.testing.fuzz_records:codec_seeds",
    "request": "headrace.testing.fuzz_wire:request_seeds",
    "message": "headrace.testing.fuzz_wire:message_seeds",
    "typed-value": "headrace.testing.fuzz_typed:value_seeds",
    "typed-schema": "headrace.testing.fuzz_typed:schema_seeds",
}

WORK_DIR = Path("build/fuzz")
MAX_INPUT_BYTES = 4096
ONE_INPUT_TIMEOUT_SECONDS = 10
MEMORY_LIMIT_MB = 2048


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Fuzz the decoders, guided by coverage.")
    parser.add_argument("--seconds", type=int, default=60, help="how long each target runs (default 60)")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="run the targets once, with this input")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("targets", nargs="*", metavar="target", help=f"some of {', '.join(TARGETS)} (default: all)")
    told = parser.parse_args(arguments)
    unknown = [name for name in told.targets if name not in TARGETS]
    if unknown:
        parser.error(f"no such target: {', '.join(unknown)}; there are {', '.join(TARGETS)}")
    if told.replay is not None:
        for name in told.targets:
            _load(TARGETS[name])(told.replay.read_bytes())
        return 0
    if importlib.util.find_spec("atheris") is None:
        print("atheris is not installed here (it comes as a wheel for Linux and some Python versions only): nothing")
        print(
            "was fuzzed. The tests run the same targets with seeded mutations; `make setup` installs what can be had."
        )
        return 2
    if told.inside:
        _fuzz(told.targets[0], told.seconds)
    return _run_all(told.targets or list(TARGETS), told.seconds)


def _run_all(names: Sequence[str], seconds: int) -> int:
    broken = []
    for name in names:
        print(f"== {name}: {TARGETS[name]}, {seconds} s", flush=True)
        command = [sys.executable, __file__, "--inside", "--seconds", str(seconds), name]
        if subprocess.run(command, check=False).returncode != 0:
            broken.append(name)
    if broken:
        print(
            f"broken: {', '.join(broken)}; see {WORK_DIR}/<target>/crash-*, and replay one with --replay FILE target"
        )
        return 1
    print(f"all held: {', '.join(names)}")
    return 0


def _fuzz(name: str, seconds: int) -> None:
    """Fuzz one target; never returns."""
    import atheris

    with atheris.instrument_imports(include=["headrace"]):
        target = _load(TARGETS[name])
    work = WORK_DIR / name
    corpus = work / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    seeds: list[bytes] = _load(SEEDS[name])() if name in SEEDS else []
    for number, seed in enumerate(seeds):
        (corpus / f"seed-{number}").write_bytes(seed)
    options = [
        f"-max_total_time={seconds}",
        f"-max_len={MAX_INPUT_BYTES}",
        f"-timeout={ONE_INPUT_TIMEOUT_SECONDS}",
        f"-rss_limit_mb={MEMORY_LIMIT_MB}",
        f"-artifact_prefix={work}/",
        "-print_final_stats=1",
        "-verbosity=0",
    ]
    atheris.Setup([sys.argv[0], *options, str(corpus)], target)
    atheris.Fuzz()


def _load(reference: str) -> Callable[..., Any]:
    module, _, attribute = reference.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
