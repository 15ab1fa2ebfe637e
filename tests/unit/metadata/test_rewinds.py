"""A rewind is said once, loudly, and everything is forgotten each time that somebody notices it."""

import io
import json

from headrace.metadata.rewinds import Rewinds
from headrace.runtime.clock import SystemClock
from headrace.runtime.logs import open_log
from headrace.runtime.metrics import Metrics


def test_one_line_and_all_caches_forget() -> None:
    lines, metrics = io.StringIO(), Metrics()
    rewinds = Rewinds(log=open_log(lines, clock=SystemClock(), format="json"), metrics=metrics)
    forgotten: list[str] = []
    rewinds.forget_with(lambda: forgotten.append("a"), lambda: forgotten.append("b"))
    assert not rewinds.pending.is_set()
    rewinds.noticed("the log is shorter")
    rewinds.noticed("and another server answers")
    assert forgotten == ["a", "b", "a", "b"]
    (line,) = [json.loads(text) for text in lines.getvalue().splitlines()]
    assert line["level"] == "error" and "earlier state" in line["event"]
    assert line["what"] == "the log is shorter" and "OFFSET_OUT_OF_RANGE" in line["advice"]
    assert b"headrace_metadata_store_rewinds_total 1.0" in metrics.render()
    assert rewinds.pending.is_set()
    rewinds.pending.clear()
    rewinds.noticed("once more")
    assert len(lines.getvalue().splitlines()) == 2
