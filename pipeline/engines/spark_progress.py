"""How far Spark's jobs are: the tasks of the stage at work, as its status tracker counts them."""

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from py4j.protocol import Py4JError
from pyspark import SparkContext

from pipeline.log import Log, share

GROUP = "spark.jobGroup.id"


@contextmanager
def counted(context: SparkContext, log: Log, names: Sequence[str]) -> Iterator[None]:
    """Log how many tasks are done of the stages that a block's jobs go through, which `names` names in their order.

    A stage without a name is not told of. The jobs are known by their group: that of the caller's own program, where
    it set one, so that what it ends by that group ends.
    """
    if not any(names):
        yield
        return
    given = context.getLocalProperty(GROUP)
    group = given or f"prdp-{uuid.uuid4().hex}"
    tracker = context.statusTracker()
    earlier = {*tracker.getJobIdsForGroup(group)}

    def told() -> str:
        jobs = map(tracker.getJobInfo, sorted({*tracker.getJobIdsForGroup(group)} - earlier))
        numbers = sorted({number for job in jobs if job for number in job.stageIds})
        stages = [stage for stage in map(tracker.getStageInfo, numbers) if stage]
        begun = [stage for stage in stages if stage.numActiveTasks + stage.numCompletedTasks]  # others are skipped
        if not begun or not (name := names[min(len(begun), len(names)) - 1]):
            return ""
        return share(name, begun[-1].numCompletedTasks, begun[-1].numTasks)

    context.setLocalProperty(GROUP, group)
    try:
        with log.tasks(told):
            yield
    finally:
        with suppress(Py4JError, OSError):  # its Java is gone: what the block raised says so
            context.setLocalProperty(GROUP, given)  # type: ignore[arg-type]
