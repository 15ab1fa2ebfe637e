"""The edge: one file per Kafka API turns requests into calls of the flows and results into answers."""
