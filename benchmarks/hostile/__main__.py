"""`python -m benchmarks.hostile`, the same as `python -m benchmarks hostile`."""

import sys

from benchmarks.hostile import main

raise SystemExit(main(sys.argv[1:]))
