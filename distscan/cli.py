"""The command line: file jobs, progress, reports; the commands of the service. Rank 0 prints."""

import argparse
import sys
from collections.abc import Sequence

from . import arguments, command
from .command import Progress
from .job import report
from .job.interface import on_command_line
from .job.job import check_roles, perform
from .job.report import Report
from .mpi import launcher
from .mpi.agree import agreed
from .mpi.communicators import Comm


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line on every rank; return the exit status, the same on each."""
    argv = sys.argv[1:] if argv is None else argv
    if argv and argv[0] in ("submit", "jobs", "show", "cancel"):
        from .service import commands  # noqa: PLC0415 - file jobs need no client

        return commands.main(argv[0], argv[1:])
    if argv and argv[0] == "serve":
        return _serve(argv[1:])
    return command.run("distscan", _main, argv)


def _serve(argv: Sequence[str]) -> int:
    """Run a service, if the packages of its extra are there."""
    try:
        from .service import serve  # noqa: PLC0415 - an extra
    except ImportError as error:
        missing = ImportError(f"{error}; in a checkout: pip install '.[service]'")
        return command.fail("distscan", missing) if launcher.launched_rank() == 0 else 1
    return serve.main(argv)


def _main(comm: Comm, argv: Sequence[str]) -> int:
    args = command.arguments(comm, argv, arguments.parser(), arguments.check)
    if args is None:
        return 0
    with agreed(comm) as same:
        jobs = list(arguments.jobs(args))
        same["the jobs"] = [[str(path) for path in job.inputs] for job in jobs]
        if comm.rank == 0:
            check_roles(jobs)
    for i, job in enumerate(jobs):
        progress = Progress(quiet=args.quiet or comm.rank > 0)
        try:
            with on_command_line():
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

            print(json.dumps(report.plain(found)), flush=True)
        elif comm.rank == 0 and not args.quiet:
            text = report.text(found, checked=args.check)
            try:
                print(text, flush=True)
            except UnicodeEncodeError:  # stdout cannot encode the file's name
                print(text.encode("ascii", "backslashreplace").decode(), flush=True)
