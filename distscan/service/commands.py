"""``python -m distscan submit | jobs | show | cancel``: a service from the command line. No MPI."""

import argparse
import gc
import json
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import wraps
from pathlib import Path
from time import time
from typing import Any

from .. import cli, commands
from ..cli import Parser, ProgressBar, parse
from ..core.errors import OutputError
from ..job import report
from ..job.progress import Progress
from ..job.report import Report
from ..options import RunOptions, ScanOptions
from . import protocol
from .client import Client, JobHandle
from .errors import NotFoundError

_PATIENCE = 10.0  # seconds: a service that was just started may begin to listen

_Main = Callable[[Sequence[str]], int]


def _command(work: Callable[[Sequence[str]], None]) -> _Main:
    """Return the function of a command, which returns its exit status, as that of a file job."""

    @wraps(work)
    def main(argv: Sequence[str]) -> int:
        gc.freeze()  # or Python would look for garbage in all modules at its end, for 30 ms
        try:
            work(argv)
        except OutputError as error:  # a service names options as in Python
            return cli.fail("distscan", OutputError(str(error).replace("force=True", "--force")))
        except NotFoundError as error:
            return cli.fail(
                "distscan", NotFoundError(f"{error}; {commands.program()} jobs lists them")
            )
        except Exception as error:
            return cli.fail("distscan", error)
        except KeyboardInterrupt:
            cli.fail("distscan", RuntimeError("interrupted; jobs of the service go on"))
            return 130
        return 0

    return main


# ---- submit -------------------------------------------------------------------------------------


def submit_parser() -> Parser:
    """Return the parser of ``submit``: that of a file job, and more."""
    parser = cli.file_job_parser("submit")
    parser.description = "Send a file job to a service, and wait for its end."
    parser.epilog = "example: python -m distscan submit input.npy --op max"
    parser.add_argument("--detach", action="store_true",
                        help="print the job's number, and do not wait for its end")  # fmt: skip
    parser.add_argument("--key", help="the same job, if it is submitted again under this key")
    _add_service(parser)
    return parser


@_command
def submit(argv: Sequence[str]) -> None:
    """Send file jobs to a service."""
    args = parse(submit_parser(), argv)
    if args is None:
        return
    cli.check_file_jobs(args)
    if args.each and args.key is not None:
        raise ValueError("--key is for one job, --each for several: leave one of them out")
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


def _follow(job: JobHandle, *, quiet: bool) -> dict[str, Any]:
    """Show a job's progress until its end; return its report."""
    bar = ProgressBar(quiet=quiet)
    try:
        for record in job.updates():
            bar.show(_progress(record) or Progress(record["state"]))
    finally:
        bar.clear()
    return job.wait()


def _print(args: argparse.Namespace, fields: dict[str, Any]) -> None:
    if args.json:
        print(json.dumps(fields))
    elif not args.quiet:
        print(report.text(Report(**fields), checked=args.check))


def _progress(record: dict[str, Any]) -> Progress | None:
    """Return the progress of a job; None unless it runs."""
    fields = record["progress"]
    if fields is None:
        return None
    return Progress(*(fields[name] for name in Progress._fields))


# ---- jobs, show, cancel -------------------------------------------------------------------------


def jobs_parser() -> Parser:
    """Return the parser of ``jobs``."""
    parser = Parser("jobs", description="List the jobs of a service, the newest first: the number, "
                    "the state, when it was submitted, how long it ran, the scan, and why it has "
                    "no result.")  # fmt: skip
    parser.add_argument("--most", metavar="N", type=int, default=20,
                        help="the most jobs (default: 20)")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print them as JSON")
    _add_service(parser)
    return parser


@_command
def jobs(argv: Sequence[str]) -> None:
    """List the jobs of a service."""
    args = parse(jobs_parser(), argv)
    if args is None:
        return
    with _client(args) as client:
        records = client.request("GET", "/v1/jobs", params={"most": args.most}).json()["jobs"]
    if args.json:
        print(json.dumps(records))
        return
    rows = [
        (str(record["number"]), record["state"], _date(record["created"]), _run_time(record),
         _scan_of(record), _reason(record))
        for record in records
    ]  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for number, state, created, seconds, scan, reason in rows:
        line = f"{number:>{max(widths[0], 6)}}  {state:9}  {created}  {seconds:>{widths[3]}}  "
        print(f"{line}{scan:{widths[4]}}  {reason}".rstrip())


def show_parser() -> Parser:
    """Return the parser of ``show``."""
    parser = _job_parser("show", "Print what a service knows of a job.")
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    return parser


@_command
def show(argv: Sequence[str]) -> None:
    """Print what a service knows of a job."""
    args = parse(show_parser(), argv)
    if args is None:
        return
    with _client(args) as client:
        record = client.job(args.job).refresh()
    print(json.dumps(record, indent=2) if args.json else _text(record))


def cancel_parser() -> Parser:
    """Return the parser of ``cancel``."""
    return _job_parser("cancel", "Cancel a job: one that runs ends at its next chunk.")


@_command
def cancel(argv: Sequence[str]) -> None:
    """Cancel a job."""
    args = parse(cancel_parser(), argv)
    if args is None:
        return
    with _client(args) as client:
        job = client.job(args.job)
        if not job.cancel():
            print(f"job {job.number} had ended: {job.state}")


def _job_parser(name: str, description: str) -> Parser:
    """Return the parser of a command that takes the number of a job."""
    parser = Parser(name, description=description)
    parser.add_argument("job", type=int, metavar="JOB", help="its number, as jobs lists it")
    _add_service(parser)
    return parser


# ---- a job as text ------------------------------------------------------------------------------

_DEFAULTS = ScanOptions._field_defaults | RunOptions._field_defaults


def _text(record: dict[str, Any]) -> str:
    """Return what is known of a job, several lines."""
    request, ended = record["request"], record["state"] == "done"
    facts = {
        "scan": _scan_of(record),
        "options": ", ".join(
            f"{name}={value}"
            for name, value in request.items()
            if name not in {"op", "inputs", "output"} and value != _DEFAULTS.get(name)
        ),
        "output": "" if ended else request["output"],  # a report names it
        "key": record["key"],
        "submitted": _date(record["created"]),
        "began": record["started"] and _date(record["started"]),
        "ended": record["ended"] and _date(record["ended"]),
        "ran": record["started"] and _run_time(record),
        "attempts": record["attempts"] if record["attempts"] > 1 else "",
        "progress": _progress_text(record),
        "reason": _reason(record),
    }
    lines = [f"job {record['number']}: {record['state']}"]
    lines += [f"  {name:10} {value}" for name, value in facts.items() if value]
    if record["report"] is not None:
        text = report.text(Report(**record["report"]), checked=request["check"])
        lines += ["", *text.splitlines()]
    return "\n".join(lines)


def _scan_of(record: dict[str, Any]) -> str:
    """Return the operator and the inputs of a job."""
    request, others = record["request"], record["input_count"] - 1
    more = f" and {others} more" if others else ""
    return f"{request['op']} of {request['inputs'][0]}{more}"


def _progress_text(record: dict[str, Any]) -> str:
    progress = _progress(record)
    if progress is None:
        return ""
    text = f"{progress.share:.0%} of the job, {progress.phase}"
    return f"{text} {progress.done} of {progress.size} bytes" if progress.size else text


def _reason(record: dict[str, Any]) -> str:
    """Return why a job has no result; empty unless it has failed or was cancelled."""
    if record["state"] == "cancelled":
        return "before it began" if record["started"] is None else "while it ran"
    if record["error"] is None:
        return ""
    return " ".join(f"{record['error']['type']}: {record['error']['message']}".split())


def _run_time(record: dict[str, Any]) -> str:
    """Return how long a job ran, or runs by now; "-" if it has not begun."""
    if record["started"] is None:
        return "-"
    seconds = max(0.0, (record["ended"] or time()) - record["started"])
    return f"{seconds:.1f} s" if seconds < 60 else cli.time_text(seconds)


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M:%S")


# ---- the service --------------------------------------------------------------------------------


def _add_service(parser: Parser) -> None:
    parser.add_argument(
        "--address", metavar="WHERE", help="the service's socket or URL (default: of this user)"
    )
    parser.add_argument("--token-file", metavar="FILE", type=Path,
                        help="its token, over TCP (default: DISTSCAN_TOKEN)")  # fmt: skip


def _client(args: argparse.Namespace) -> Client:
    token = None if args.token_file is None else protocol.token_in(args.token_file)
    return Client(args.address, token, _PATIENCE, notify=_notify)


def _notify(text: str) -> None:
    print(f"distscan: {text}", file=sys.stderr, flush=True)
