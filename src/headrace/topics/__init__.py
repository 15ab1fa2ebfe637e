"""Topics: names, ids, partitions and configurations, kept in the metadata store and remembered by every broker."""
