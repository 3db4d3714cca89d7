"""Jobs that a service could not end: which run again, where they go on, and what they leave."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from ..job import output

_LARGE = 1 << 28  # bytes of input: the chunks of a smaller job are not noted, it begins anew


def may_run(job: dict[str, Any]) -> bool:
    """Return whether a job that was interrupted makes the same file if it is run again.

    Not if it changes what it reads. Not if the output is there, unless it may be replaced: the job
    may have ended, or another program may have made the file.
    """
    files = {*job["inputs"], job["segments"]}
    changes = job["state"] is not None or job["output"] in files
    there = not job["force"] and Path(job["output"]).exists()
    return not changes and not there


def resumable(job: dict[str, Any]) -> dict[str, Any]:
    """Return a job so that it can go on behind its last chunk, if it is large enough for that."""
    size = 0
    with suppress(OSError):  # the job will say what is wrong
        size = sum(Path(path).stat().st_size for path in job["inputs"])
    return job | {"resume": True} if size >= _LARGE and job["state"] is None else job


def discard(job: dict[str, Any]) -> None:
    """Remove what ``resumable`` has left beside the output, unless the client asked for that."""
    if not job["resume"]:
        output.discard(Path(job["output"]))
