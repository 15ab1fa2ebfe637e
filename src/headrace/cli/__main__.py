"""`python -m headrace.cli`: the command line without an installed script, for processes that we start ourselves."""

from headrace.cli.main import main

main()
