"""The Kafka edge: sockets, frames, order of answers, limits."""
