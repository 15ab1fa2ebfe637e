"""Whole histories from one seed: a deterministic event loop, processes that die and stop, stores that fail."""
