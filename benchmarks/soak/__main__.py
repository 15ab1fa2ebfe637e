"""`python -m benchmarks.soak [--quick]`."""

import sys

from rich.console import Console

from benchmarks.report import figures_of, show
from benchmarks.soak import NAME, run

show(figures_of(NAME, run(is_quick="--quick" in sys.argv)), Console())
