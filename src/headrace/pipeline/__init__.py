"""From the log to the table: plan runs, write Parquet, commit to Iceberg, swap the index, all as resumable sagas."""
