"""The way out: from offsets to index entries to bytes."""
