"""The table side at rest: rows, Parquet files, and the Iceberg catalog that names them."""
