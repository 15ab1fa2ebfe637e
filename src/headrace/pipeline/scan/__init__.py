"""Reading topics straight from storage: what Spark's source does, without Spark, without brokers."""
