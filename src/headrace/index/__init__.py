"""The rules of the log, above the metadata port: streams, commits, the offset index, objects, writers, producers.

Each rule is a plain function that returns a `Rule`: what to lock, what to read, and how to decide.
"""
