"""How fast record batches are looked at, opened into columns, and written again.

Everything runs warm, on one core, in buffers that are used again: as in a broker or a pipeline task that has been up
for a while. Each figure is the best of several rounds, because the machine is shared and only the best round tells
what the code can do.
"""

from collections.abc import Callable
from time import perf_counter

from aiokafka.record.default_records import DefaultRecordBatch

from headrace.records.batch import BatchView, Codec
from headrace.records.columns import IMPLEMENTATION, ColumnBuilder
from headrace.records.encoder import BatchEncoder
from headrace.records.kernel import KERNEL, Kernel, python_kernel
from headrace.records.record import Record, columns_of

NAME = "records"

RECORDS = 10_000
VALUE_BYTES = 100
BATCH_BYTES = 1_000_000
ROUNDS = 7


def run() -> list[tuple[str, float, str, float | None]]:
    """Measure and return (what, figure, unit, target)."""
    batch = _batch(RECORDS, VALUE_BYTES)
    decoded = _decode_rate(batch, KERNEL, repeats=30)
    decoded_twin = _decode_rate(batch, python_kernel(), repeats=1)
    decoded_aiokafka = _aiokafka_rate(batch)
    encoded = _encode_rate(batch, KERNEL, repeats=20)
    encoded_twin = _encode_rate(batch, python_kernel(), repeats=1)
    is_compiled = IMPLEMENTATION == "compiled"
    return [
        (f"batch to columns ({IMPLEMENTATION})", decoded / 1e6, "M records/s", 10.0 if is_compiled else None),
        ("batch to columns (python twin)", decoded_twin / 1e6, "M records/s", None),
        ("batch to records (aiokafka)", decoded_aiokafka / 1e6, "M records/s", None),
        ("columns: in use beside the twin", decoded / decoded_twin, "x", None),
        ("columns: in use beside aiokafka", decoded / decoded_aiokafka, "x", None),
        (f"columns to batch ({IMPLEMENTATION})", encoded / 1e6, "M records/s", 3.0 if is_compiled else None),
        ("columns to batch (python twin)", encoded_twin / 1e6, "M records/s", None),
        ("header view and CRC, 1 MB batches", _check_rate() / 1e9, "GB/s", 5.0),
        ("header view and summary", _summary_seconds() * 1e6, "µs", None),
    ]


def main() -> None:
    """Print the figures."""
    for what, figure, unit, target in run():
        aim = "" if target is None else f"  (target {target:g})"
        print(f"{what:<40} {figure:>10.2f} {unit}{aim}")


def _batch(count: int, value_bytes: int) -> memoryview:
    records = [
        Record(offset=row, timestamp_ms=1_700_000_000_000 + row, value=row.to_bytes(4, "big") * (value_bytes // 4))
        for row in range(count)
    ]
    encoder = BatchEncoder(codec=Codec.NONE, max_batch_bytes=2**31 - 1)
    return encoder.encode(columns_of(records))


def _best_seconds(work: Callable[[], object], repeats: int) -> float:
    work()
    best = float("inf")
    for _ in range(ROUNDS):
        begun = perf_counter()
        for _ in range(repeats):
            work()
        best = min(best, (perf_counter() - begun) / repeats)
    return best


def _decode_rate(batch: memoryview, kernel: Kernel, repeats: int) -> float:
    builder = ColumnBuilder(kernel=kernel)

    def work() -> None:
        builder.append(BatchView(batch))
        builder.columns()
        builder.clear()

    return RECORDS / _best_seconds(work, repeats)


def _encode_rate(batch: memoryview, kernel: Kernel, repeats: int) -> float:
    builder = ColumnBuilder()
    builder.append(BatchView(batch))
    columns = builder.columns()
    encoder = BatchEncoder(max_batch_bytes=2**31 - 1, kernel=kernel)
    return RECORDS / _best_seconds(lambda: encoder.encode(columns), repeats)


def _aiokafka_rate(batch: memoryview) -> float:
    data = bytes(batch)
    return RECORDS / _best_seconds(lambda: list(DefaultRecordBatch(data)), repeats=2)


def _check_rate() -> float:
    batch = _batch(1, BATCH_BYTES)
    return len(batch) / _best_seconds(lambda: BatchView(batch).check_produced(), repeats=200)


def _summary_seconds() -> float:
    batch = _batch(10, VALUE_BYTES)
    return _best_seconds(lambda: BatchView(batch).summary(), repeats=2000)


if __name__ == "__main__":
    main()
