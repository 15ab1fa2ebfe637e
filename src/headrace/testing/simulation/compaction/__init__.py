"""Histories of compaction by key: topics of few keys, while brokers, pipelines and the catalog fail."""
