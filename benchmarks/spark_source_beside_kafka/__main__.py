"""Run the comparison with choices: `python -m benchmarks.spark_source_beside_kafka [--quick] [--only TEXT]`."""

import argparse

from benchmarks.spark_source_beside_kafka import NAME, compare
from benchmarks.spark_source_beside_kafka.plan import full_plan, quick_plan


def main() -> int:
    """Read the options and run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark_source_beside_kafka", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer records, in a few minutes")
    parser.add_argument("--only", default="", metavar="TEXT", help="only cells whose title holds this text")
    options = parser.parse_args()
    cells = [cell for cell in (quick_plan() if options.quick else full_plan()) if options.only in cell.title]
    if not cells:
        parser.error(f"no cell's title holds {options.only!r}")
    compare(cells, name=NAME + ("_quick" if options.quick else "") + ("_part" if options.only else ""))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
