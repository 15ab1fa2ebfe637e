"""Histories of the pipeline: every topic a table, while brokers, pipelines and the catalog fail."""
