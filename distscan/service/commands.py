"""``python -m distscan submit | jobs | show | cancel``: a service from the command line. No MPI."""

import argparse
import gc
import json
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from .. import cli
from ..cli import Parser, Progress
from ..core.errors import OutputError
from ..job import report
from ..job.report import Report
from . import protocol
from .client import Client, JobHandle

_PATIENCE = 10.0  # seconds: a service that was just started may begin to listen


def main(name: str, argv: Sequence[str]) -> int:
    """Run a command; return the exit status, as that of a file job."""
    gc.freeze()  # or Python would look for garbage in all modules at its end, for 30 ms
    try:
        return _COMMANDS[name](argv)
    except OutputError as error:  # a service names options as in Python
        return cli.fail("distscan", OutputError(str(error).replace("force=True", "--force")))
    except Exception as error:
        return cli.fail("distscan", error)
    except KeyboardInterrupt:
        cli.fail("distscan", RuntimeError("interrupted; the job goes on"))
        return 130


def _submit(argv: Sequence[str]) -> int:
    parser = cli.file_job_parser()
    parser.prog = "python -m distscan submit"
    parser.add_argument("--detach", action="store_true", help="do not wait for the job")
    parser.add_argument("--key", help="the same job, if it is submitted again under this key")
    _add_service(parser)
    args = _parse(parser, argv)
    if args is None:
        return 0
    cli.check_file_jobs(args)
    if args.each and args.key is not None:
        raise ValueError("--key is for one job, --each for several")
    with _client(args) as client:
        for job in cli.file_jobs(args):
            segments = None if job.segments is None else str(job.segments)
            paths = {"segments": segments, "state": job.state, "trace": job.trace}
            options = job.scan._asdict() | job.run._asdict() | paths
            request = {name: value for name, value in options.items() if value is not None}
            inputs, output = [str(each) for each in job.inputs], str(job.output)
            handle = client.submit(inputs, output, key=args.key, **request)
            if args.detach:
                print(handle.number)
            else:
                _print(args, _follow(handle, quiet=args.quiet))
    return 0


def _follow(job: JobHandle, *, quiet: bool) -> dict[str, Any]:
    """Show a job's progress until its end; return its report."""
    bar = Progress(quiet=quiet)
    try:
        for record in job.updates():
            progress = record["progress"] or {"phase": record["state"], "done": 0, "size": 0}
            bar.show(progress["phase"], progress["done"], progress["size"])
    finally:
        bar.clear()
    return job.wait()


def _print(args: argparse.Namespace, fields: dict[str, Any]) -> None:
    if args.json:
        print(json.dumps(fields))
    elif not args.quiet:
        print(report.text(Report(**fields), checked=args.check))


def _jobs(argv: Sequence[str]) -> int:
    parser = Parser(prog="python -m distscan jobs", description="List the jobs of a service.")
    parser.add_argument("--most", type=int, default=20, help="the most jobs (default: 20)")
    parser.add_argument("--json", action="store_true", help="print them as JSON")
    _add_service(parser)
    args = _parse(parser, argv)
    if args is None:
        return 0
    with _client(args) as client:
        jobs = client.request("GET", "/v1/jobs", params={"most": args.most}).json()["jobs"]
    if args.json:
        print(json.dumps(jobs))
        return 0
    for record in jobs:
        created = datetime.fromtimestamp(record["created"]).strftime("%Y-%m-%d %H:%M:%S")
        request, others = record["request"], record["input_count"] - 1
        more = f" and {others} more" if others else ""
        print(f"{record['number']:6}  {record['state']:9}  {created}  {request['op']} of "
              f"{request['inputs'][0]}{more}")  # fmt: skip
    return 0


def _show(argv: Sequence[str]) -> int:
    args = _job_of("show", "Show what is known of a job.", argv)
    if args is not None:
        with _client(args) as client:
            print(json.dumps(client.job(args.job).refresh(), indent=2))
    return 0


def _cancel(argv: Sequence[str]) -> int:
    args = _job_of("cancel", "Cancel a job.", argv)
    if args is not None:
        with _client(args) as client:
            job = client.job(args.job)
            if not job.cancel():
                print(f"job {job.number} had ended: {job.state}")
    return 0


def _job_of(name: str, description: str, argv: Sequence[str]) -> argparse.Namespace | None:
    """Return the arguments of a command that takes the number of a job."""
    parser = Parser(prog=f"python -m distscan {name}", description=description)
    parser.add_argument("job", type=int, metavar="JOB")
    _add_service(parser)
    return _parse(parser, argv)


def _add_service(parser: Parser) -> None:
    parser.add_argument(
        "--address", metavar="WHERE", help="the service's socket or URL (default: of this user)"
    )
    parser.add_argument("--token-file", metavar="FILE", type=Path,
                        help="its token, over TCP (default: DISTSCAN_TOKEN)")  # fmt: skip


def _parse(parser: Parser, argv: Sequence[str]) -> argparse.Namespace | None:
    """Return the arguments; print the text of --help and return None if that is asked for."""
    try:
        return parser.parse_args(argv)
    except SystemExit:
        print(parser.text, end="", flush=True)
        return None


def _client(args: argparse.Namespace) -> Client:
    token = None if args.token_file is None else protocol.token_in(args.token_file)
    return Client(args.address, token, _PATIENCE, notify=_notify)


def _notify(text: str) -> None:
    print(f"distscan: {text}", file=sys.stderr, flush=True)


_COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "submit": _submit,
    "jobs": _jobs,
    "show": _show,
    "cancel": _cancel,
}
