"""What every part runs on: clock, rng, executor, background services, crash points, metrics, logs."""
