"""The load process from the benchmark's side: start it, wait for it, take what it found."""

import subprocess
import sys
from pathlib import Path

from benchmarks.groups_beside_kafka.jobs import Done, Job, decode_done, encode_job

ROOT = Path(__file__).parents[2]
JOB_LIMIT_SECONDS = 400.0
FAREWELL_CHARACTERS = 4000


def perform(job: Job) -> Done:
    """Do a job in a process of its own. Raises `RuntimeError` if it failed."""
    process = subprocess.run(
        [sys.executable, "-m", "benchmarks.groups_beside_kafka.load"],
        input=encode_job(job) + "\n",
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=JOB_LIMIT_SECONDS,
        check=False,
    )
    if process.returncode != 0:
        raise RuntimeError(f"the load process failed at {job}:\n{process.stderr[-FAREWELL_CHARACTERS:]}")
    return decode_done(process.stdout)
