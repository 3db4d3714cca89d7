"""What the ranks of a service do: file jobs and large arrays, one by one; collective.

::

    {"kind": "job", "job": {"inputs": ["/data/x.npy"], "output": "/data/y.npy", "op": "sum", ...}}
    {"kind": "array", "task": [["/dev/shm/...", 0, "<f4", [1000]], [...], null, {"op": "sum"}]}
    {"kind": "end"}
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..core import dtypes
from ..job.job import Job, perform
from ..job.report import Report
from ..mpi import faults
from ..mpi.agree import agreed
from ..mpi.communicators import Comm
from .arrays import Scanner, Task
from .lines import Lines
from .maps import Place

_PATHS = ("output", "segments", "state", "trace")
Show = Callable[[str, int, int], None]


def to_json(job: Job) -> dict[str, Any]:
    """Return the options of a job in a form that JSON has."""
    found = job.scan.to_json() | job.run.to_json()
    found["inputs"] = [str(path) for path in job.inputs]
    for name in _PATHS:
        path = getattr(job, name)
        found[name] = None if path is None else str(path)
    return found


def from_json(found: dict[str, Any]) -> Job:
    """Return the job that ``to_json`` has described."""
    given = found | {"inputs": tuple(Path(path) for path in found["inputs"])}
    for name in _PATHS:
        given[name] = None if given.get(name) is None else Path(given[name])
    for name in ("dtype", "raw"):
        if isinstance(given.get(name), list):  # a structure
            given[name] = dtypes.of_json(given[name])
    return Job.parse(**given)


def lead(comm: Comm, lines: Lines, job: dict[str, Any], show: Show) -> Report:
    """Run a job on all ranks, and return its report; rank 0 calls this.

    ``show`` may raise an exception, which then ends the job on all ranks.
    """
    lines.send({"kind": "job", "job": job})
    return _perform(comm, job, show)


def lead_array(lines: Lines, scanner: Scanner, task: Task) -> None:
    """Scan an array on all ranks; rank 0 calls this."""
    lines.send({"kind": "array", "task": task})
    scanner.together(task)


def follow(comm: Comm, lines: Lines, scanner: Scanner) -> None:
    """Take part in all jobs until the last task; the other ranks call this."""
    while (task := lines.receive()) is not None and task["kind"] != "end":
        try:
            if task["kind"] == "array":
                scanner.together(_task(task["task"]))
            else:
                _perform(comm, task["job"], lambda *_: None)
        except Exception as error:
            if not faults.is_agreed(error):  # a bug; rank 0 may wait for this rank
                raise


def _perform(comm: Comm, found: dict[str, Any], show: Show) -> Report:
    """Run the job that ``to_json`` has described; collective."""
    with agreed(comm):
        job = from_json(found)
    return perform(comm, job, show, lambda message: None)


def _task(found: list[Any]) -> Task:
    """Return the task that ``Task`` has become in JSON."""
    x, out, segments, options = found
    return Task(_place(x), _place(out), segments and _place(segments), options)


def _place(found: list[Any]) -> Place:
    path, offset, dtype, shape = found
    return Place(path, offset, dtype, tuple(shape))


def end(lines: Lines) -> None:
    """Let the other ranks end; rank 0 calls this."""
    with suppress(RuntimeError):
        lines.send({"kind": "end"})
    lines.close()
