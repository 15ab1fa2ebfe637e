"""Headrace: one log, three doors. A record is stored once and read as a topic, a queue and a table."""

__version__ = "0.1.0"
