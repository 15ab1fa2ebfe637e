"""Run it with choices: `python -m benchmarks.groups_beside_kafka [--quick] [--only TEXT] [--null | --alone BROKER]`.

A null run and a lone broker are no comparison; their figures are never kept under the name of one.
"""

import argparse

from benchmarks.groups_beside_kafka import NAME, compare, play_alone
from benchmarks.groups_beside_kafka.brokers import HEADRACE, KAFKA
from benchmarks.groups_beside_kafka.plan import full_plan, quick_plan

ALONE = {"headrace": HEADRACE, "kafka": KAFKA}


def main() -> int:
    """Read the options and run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.groups_beside_kafka", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few cells of small groups, in about a minute")
    parser.add_argument("--only", default="", metavar="TEXT", help="only scenarios whose title holds this text")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--null", action="store_true", help="Apache Kafka against itself: what noise looks like")
    choice.add_argument("--alone", choices=sorted(ALONE), help="one broker, without the other beside it")
    options = parser.parse_args()
    plan = (quick_plan() if options.quick else full_plan()).only(options.only)
    if not plan.scenarios:
        parser.error(f"no scenario's title holds {options.only!r}")
    if options.alone:
        play_alone(plan, ALONE[options.alone])
        return 0
    name = NAME + ("_quick" if options.quick else "") + ("_null" if options.null else "")
    compare(plan, name=name + ("_part" if options.only else ""), is_null_run=options.null)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
