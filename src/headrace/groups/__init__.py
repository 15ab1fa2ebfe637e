"""Consumer groups: who belongs to a group, which partitions each member reads, and how far they have come."""
