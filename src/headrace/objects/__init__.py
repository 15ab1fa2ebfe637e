"""Bytes at rest: the object store port and its backends."""
