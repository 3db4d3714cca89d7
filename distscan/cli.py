"""The command line: jobs, progress, reports. Rank 0 alone prints."""

import argparse
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from . import arguments, command
from .command import Progress
from .job import report
from .job.job import perform
from .job.report import Report
from .mpi.agree import agreed
from .mpi.communicators import Comm


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line on every rank; return the exit status, the same on each."""
    return command.run("distscan", _main, argv)


def _main(comm: Comm, argv: Sequence[str]) -> int:
    args = command.arguments(comm, argv, arguments.parser(), arguments.check)
    if args is None:
        return 0
    with agreed(comm) as same:
        jobs = list(arguments.jobs(args))
        same["the jobs"] = [[str(path) for path in job.inputs] for job in jobs]
    for i, job in enumerate(jobs):
        progress = Progress(quiet=args.quiet or comm.rank > 0)
        try:
            found = perform(comm, job, progress.show, progress.warn, of_process=i == 0)
        finally:
            progress.clear()
        _print(comm, args, found)
    return 0


def _print(comm: Comm, args: argparse.Namespace, found: Report) -> None:
    """Print a report on rank 0, as the arguments say; collective."""
    with agreed(comm):
        if comm.rank == 0 and args.json:
            import json  # noqa: PLC0415 - only --json needs it

            print(json.dumps(found._asdict() | {"total": _plain(found.total)}), flush=True)
        elif comm.rank == 0 and not args.quiet:
            text = report.text(found, checked=args.check)
            try:
                print(text, flush=True)
            except UnicodeEncodeError:  # stdout cannot encode the file's name
                print(text.encode("ascii", "backslashreplace").decode(), flush=True)


# ---- report --------------------------------------------------------------------------------


def _plain(value: Any) -> Any:
    """Return a number in a form that JSON has: complex as a pair, NaN and infinities as text."""
    if isinstance(value, tuple | list | np.ndarray):  # a structure, or a field of several values
        return [_plain(each) for each in value]
    if isinstance(value, complex):
        return [_plain(value.real), _plain(value.imag)]
    if isinstance(value, np.generic):  # long double: Python has no such number
        return _plain(complex(value) if value.dtype.kind == "c" else float(value))
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
