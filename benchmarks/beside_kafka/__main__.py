"""Run the comparison with choices: `python -m benchmarks.beside_kafka [--quick] [--null] [--only TEXT]`."""

import argparse

from benchmarks.beside_kafka import NAME, compare
from benchmarks.beside_kafka.plan import full_plan, quick_plan


def main() -> int:
    """Read the options and run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.beside_kafka", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few cells, in under three minutes")
    parser.add_argument("--null", action="store_true", help="Apache Kafka against itself: what noise looks like")
    parser.add_argument("--only", default="", metavar="TEXT", help="only scenarios whose title holds this text")
    options = parser.parse_args()
    plan = (quick_plan() if options.quick else full_plan()).only(options.only)
    if not plan.steps:
        parser.error(f"no scenario's title holds {options.only!r}")
    name = NAME + ("_quick" if options.quick else "") + ("_null" if options.null else "")
    compare(plan, name=name + ("_part" if options.only else ""), is_null_run=options.null)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
