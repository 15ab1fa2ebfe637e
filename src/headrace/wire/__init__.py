"""Kafka's messages, sans I/O: a table of facts, and readers and writers compiled from it.

`messages` has the classes, `compiler` the readers and writers of one version each, `headers` what surrounds a message
in a frame. `messages.json` and `messages.pyi` are written by tools/extract_messages.py.
"""
