"""The way in: batches are gathered into frames, made durable, committed in order, and only then acknowledged."""
