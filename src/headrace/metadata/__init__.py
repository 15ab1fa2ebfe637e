"""Facts at rest: the metadata port, its engines, every key and value, sessions and leases."""
