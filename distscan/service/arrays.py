"""Scans of arrays that clients send: small ones by rank 0 alone, others as file jobs in memory."""

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import InputError
from ..core.extents import axis_number
from ..job.decided import number
from ..job.job import Job
from ..mpi.communicators import alone
from ..scan import scan
from . import work


def scan_alone(body: bytes, options: dict[str, Any]) -> bytes:
    """Scan an array in the format ``.npy``; return the result likewise. Any thread calls this."""
    try:
        x = np.load(BytesIO(body), allow_pickle=False)
    except Exception as error:
        raise InputError(f"the body is not a .npy file: {error}") from error
    if not isinstance(x, np.ndarray):
        raise InputError("the body is an archive; send one array")
    given = options | {"axis": axis_number(options.get("axis"))}
    if isinstance(initial := given.get("initial"), str):
        given["initial"] = number(initial)
    y = scan(x, comm=alone(), **given)
    made = BytesIO()
    np.save(made, y, allow_pickle=False)
    return made.getvalue()


def job_of(source: Path, target: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Return the job that scans an array in a file of the service."""
    return work.to_json(Job((source,), target, **options))
