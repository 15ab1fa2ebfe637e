"""Do a task, of whichever kind: what Spark's executors call, and tests in their own process."""

from headrace.objects.port import ObjectStore
from headrace.pipeline.gathering import gather_files
from headrace.pipeline.rewrites import GatherTask, RewriteTask, TableTask
from headrace.pipeline.rewriting import rewrite_file
from headrace.pipeline.writing import write_file
from headrace.runtime.executor import Executor
from headrace.tables.files import WrittenFile


async def perform_task(
    task: TableTask, objects: ObjectStore, *, attempt: str, executor: Executor | None = None
) -> WrittenFile:
    """Write the task's file and return what is known of it; the file is durable then."""
    if isinstance(task, RewriteTask):
        return await rewrite_file(task, objects, attempt=attempt, executor=executor)
    if isinstance(task, GatherTask):
        return await gather_files(task, objects, attempt=attempt, executor=executor)
    return await write_file(task, objects, attempt=attempt, executor=executor)
