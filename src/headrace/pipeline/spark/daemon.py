"""Who starts the Python workers of this host: PySpark's own daemon, with all that a task imports loaded before.

Workers are forks of it, and Spark ends those that were idle for a minute. So each of them would load our modules
anew, which takes more than a second of a core, for runs that often take less. Forked from here they have them, and
share their memory.

Only for executors that are this very Python: one without Headrace must still be able to answer the probe.
"""

from pyspark.daemon import manager

import headrace.pipeline.spark.answering  # noqa: F401

if __name__ == "__main__":
    manager()  # type: ignore[no-untyped-call]
