"""The command line: `headrace serve`, `topic`, `produce`, `consume`, `settings`, `version`."""
