"""Bytes of the write-ahead log: frames, and the chunks of record batches inside them."""
