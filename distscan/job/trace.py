"""``--trace``: the work of all ranks on every chunk, as a file for Perfetto or chrome://tracing.

The format is Google's "Trace Event Format" (2016): complete events, with times in microseconds.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from .timeline import Span


def text(everyone: Sequence[Sequence[Span]]) -> str:
    """Return the spans of all ranks; a rank is shown as a process, its threads as threads."""
    events = ",\n".join(map(json.dumps, _events(everyone)))
    return f'{{"displayTimeUnit": "ms", "traceEvents": [\n{events}\n]}}\n'


def _events(everyone: Sequence[Sequence[Span]]) -> Iterator[dict[str, Any]]:
    first = min((span.begin for spans in everyone for span in spans), default=0.0)
    for rank, spans in enumerate(everyone):
        yield _name("process_name", rank, 0, f"rank {rank}")
        threads = {name: i for i, name in enumerate(sorted({span.thread for span in spans}))}
        for name, i in threads.items():
            yield _name("thread_name", rank, i, name)
        for span in spans:
            yield {
                "name": span.phase,
                "ph": "X",
                "pid": rank,
                "tid": threads[span.thread],
                "ts": round((span.begin - first) * 1e6, 1),
                "dur": round((span.end - span.begin) * 1e6, 1),
                "args": {"bytes": span.bytes},
            }


def _name(kind: str, rank: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": rank, "tid": thread, "args": {"name": name}}
