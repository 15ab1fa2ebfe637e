"""The composition root: the one place where settings become components."""
