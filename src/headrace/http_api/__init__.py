"""The HTTP edge: health, readiness, metrics."""
