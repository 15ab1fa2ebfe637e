"""A bomb costs bounded memory and ends in one clear error, in every codec."""

import subprocess
import sys
from pathlib import Path

import pytest

from headrace.records.codecs import decompress
from headrace.records.problems import InvalidBatch, Problem

from . import bombs


@pytest.mark.parametrize("name", bombs.BOMBS)
def test_bomb_is_refused_as_too_large(name: str) -> None:
    codec, make = bombs.BOMBS[name]
    with pytest.raises(InvalidBatch, match="past the limit of 1000 bytes") as caught:
        decompress(codec, memoryview(make()), max_output_bytes=1000)
    assert caught.value.problem is Problem.TOO_LARGE


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_all_bombs_together_cost_little_more_memory_than_the_limit() -> None:
    # Half a gibibyte of address space is what the process gets: believing any claim would end it.
    run = subprocess.run([sys.executable, bombs.__file__], capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    # The limit, a second copy while parts are joined, the libraries' copies of their input, and what malloc keeps.
    # The smallest bomb is 16 times the limit.
    assert int(run.stdout) < 10 * bombs.LIMIT_BYTES
