"""A planned pipeline as a trace that Perfetto and Chrome show (Trace Event Format: complete events, microseconds)."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from foundation.files import write_text
from training.planner.iteration import Iteration


def write_trace(iteration: Iteration, path: Path) -> None:
    """Write every rank's work, transfers, reduction and optimizer as `path`, JSON."""
    document = {"displayTimeUnit": "ms", "traceEvents": list(trace_events(iteration))}
    write_text(path, json.dumps(document, separators=(",", ":")))


def trace_events(iteration: Iteration) -> Iterator[dict[str, Any]]:
    """The events: a thread a rank of the pipeline; backward passes hold their recomputation."""
    ranks = len(iteration.events)
    yield {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": str(iteration.config.layout)}}
    synchronised = max(
        events[-1].sent + reducing for events, reducing in zip(iteration.events, iteration.reducing, strict=True)
    )
    for rank, events in enumerate(iteration.events):
        yield {"ph": "M", "name": "thread_name", "pid": 0, "tid": rank, "args": {"name": f"stage {rank}"}}
        for work, start, end, sent in events:
            what = "forward" if work.forward else "backward"
            arguments = {"micro_batch": work.micro_batch, "part": work.part}
            yield _complete(rank, f"{what} {work.micro_batch}", what, start, end, arguments)
            again = iteration.recomputing[work.part * ranks + rank]
            if not work.forward and again > 0:
                yield _complete(rank, "recompute", "recompute", start, start + again, {})
            if sent > end:
                yield _complete(rank, "transfer", "transfer", end, sent, {})
        finished = events[-1].sent
        if iteration.reducing[rank] > 0:
            yield _complete(rank, "reduction", "reduction", finished, finished + iteration.reducing[rank], {})
        if iteration.seconds > synchronised:
            yield _complete(rank, "optimizer", "optimizer", synchronised, iteration.seconds, {})


def _complete(
    rank: int, name: str, category: str, start: float, end: float, arguments: dict[str, int]
) -> dict[str, Any]:
    times = {"ts": round(start * 1e6, 3), "dur": round((end - start) * 1e6, 3)}
    return {"ph": "X", "pid": 0, "tid": rank, "name": name, "cat": category, **times, "args": arguments}
