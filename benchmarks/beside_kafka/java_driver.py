"""Apache Kafka's own load generator, `ProducerPerformance`, as a second opinion on the produce cells.

It is another client with other habits: batches of 16 KiB at most, where librdkafka fills up to 1 MB, so the broker
sees many small batches in every request. Its values are random letters, and it brings its own Java start, which its
rate leaves out.
"""

import re
import subprocess

from tests.servers.kafka_jars import java, kafka_class_path

RUN_LIMIT_SECONDS = 300.0
CLIENT_HEAP = "-Xmx512M"

_WHOLE = re.compile(r"^(\d+) records sent, ", re.MULTILINE)
_STEADY = re.compile(r"^\d+ steady state records sent, ([\d.]+) records/sec", re.MULTILINE)


def run_producer_performance(*, bootstrap: str, topic: str, record_bytes: int, records: int) -> float:
    """Write the records with acks=all and the client's defaults; return the records per second that it counted.

    The first third of them warms the client's own JVM up and is not part of the rate.

    Raises `RuntimeError` if it did not send all of them.
    """
    command = [java(), CLIENT_HEAP, "-cp", kafka_class_path(), "org.apache.kafka.tools.ProducerPerformance"]
    command += ["--topic", topic, "--num-records", str(records), "--record-size", str(record_bytes)]
    command += ["--throughput", "-1", "--bootstrap-server", bootstrap, "--command-property", "acks=all"]
    command += ["--warmup-records", str(records // 3)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=RUN_LIMIT_SECONDS)
    summary = read_summary(done.stdout)
    if done.returncode != 0 or summary is None or summary[0] != records:
        raise RuntimeError(
            f"ProducerPerformance failed ({done.returncode}):\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    return summary[1]


def read_summary(output: str) -> tuple[int, float] | None:
    """Return how many records were sent in all, and records per second after the warm-up; `None` if it failed."""
    whole, steady = _WHOLE.findall(output), _STEADY.findall(output)
    return (int(whole[-1]), float(steady[-1])) if whole and steady else None
