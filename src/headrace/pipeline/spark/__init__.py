"""Spark: sessions, and the job that writes Parquet. The only place that imports `pyspark`."""
