"""The brokers of a cluster: who is alive, where, and which one a partition is best asked at."""
