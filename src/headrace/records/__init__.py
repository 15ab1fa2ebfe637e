"""Record batch v2: the bytes that clients produce, and the columns they become.

- `batch.py` looks at a batch without copying or opening it; `stamping.py` writes the few fields a broker owns.
- `codecs.py` opens compressed bodies under a byte limit.
- `columns.py` turns batches into Arrow-shaped columns, `encoder.py` turns columns back into batches,
  `arrow.py` hands them to pyarrow without a copy, `record.py` is the same data as plain Python values.
- `_columns.pyx` holds the two loops that touch single records, `_columns_py.py` is its pure Python twin.
"""
