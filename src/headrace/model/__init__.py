"""Values that every part speaks of: ids, ranges, extents, entries. No I/O, no rules."""
