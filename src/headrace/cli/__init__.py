"""The command line: `headrace serve`, `headrace settings`, `headrace version`."""
