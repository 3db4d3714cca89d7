"""The command line: arguments, progress, report. Rank 0 alone prints."""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np

from . import __version__, command
from .build import Strategy
from .command import Parser, Progress
from .core.operators import BUILTIN
from .job.job import PHASES, Job, Report, perform
from .mpi.agree import agreed
from .mpi.communicators import Comm


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line on every rank; return the exit status, the same on each."""
    return command.run("distscan", _main, argv)


def _main(comm: Comm, argv: Sequence[str]) -> int:
    args = command.arguments(comm, argv, _parser(), _check)
    if args is None:
        return 0
    progress = Progress(quiet=args.quiet or comm.rank > 0)
    try:
        report = perform(comm, _job(args), progress.show, progress.warn)
    finally:
        progress.clear()
    with agreed(comm):
        if comm.rank == 0 and args.json:
            import json  # noqa: PLC0415 - only --json needs it

            print(json.dumps(report._asdict() | {"total": _plain(report.total)}), flush=True)
        elif comm.rank == 0 and not args.quiet:
            text = _text(report, checked=args.check)
            try:
                print(text, flush=True)
            except UnicodeEncodeError:  # stdout cannot encode the file's name
                print(text.encode("ascii", "backslashreplace").decode(), flush=True)
    return 0


# ---- arguments -----------------------------------------------------------------------------


def _parser() -> Parser:
    parser = Parser(
        prog="python -m distscan",
        description="Prefix scan of a file, shared among MPI ranks, one GPU per rank.",
        epilog="example: mpirun -n 8 python -m distscan input.npy",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("input", metavar="INPUT", type=Path, help="a file that every rank can read: .npy, or raw")
    add(
        "-o",
        "--output",
        metavar="OUTPUT",
        type=Path,
        help="the result; by default INPUT with .scan.npy for .npy",
    )
    add("--op", choices=sorted(BUILTIN), default="sum", help="the operator (default: sum)")
    add("--exclusive", action="store_true", help="leave each element out of its own result")
    add("--initial", metavar="V", help="a number that comes before the first element")
    add("--reverse", action="store_true", help="scan from the last element to the first")
    add("--axis", metavar="K", type=int, help="scan along it (default: the input is flattened)")
    add(
        "--dtype",
        metavar="T",
        help="accumulate and result in this type (default: as NumPy); with --raw: INPUT's type",
    )
    add("--raw", action="store_true", help="INPUT has elements of --dtype in C order, no header")
    add(
        "--shape",
        metavar="N,M,...",
        type=_shape,
        help="the shape of a raw INPUT (default: one axis)",
    )
    add(
        "--backend",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="auto takes the GPUs if every rank has one (default: auto)",
    )
    add(
        "--strategy",
        choices=get_args(Strategy),
        default="auto",
        help="how the ranks scan (default: auto)",
    )
    add("--threads", metavar="N", type=int, help="threads of a rank, on CPUs (default: its cores)")
    add("--force", action="store_true", help="replace an existing OUTPUT")
    add("--check", action="store_true", help="recompute with NumPy and compare")
    add("--json", action="store_true", help="print the report as one JSON object")
    add("--quiet", action="store_true", help="print no progress and no report")
    add("--version", action="version", version=f"distscan {__version__}")
    return parser


def _shape(text: str) -> tuple[int, ...]:
    """Read a shape.

    >>> _shape("100,3")
    (100, 3)
    """
    try:
        return tuple(int(length) for length in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"a shape is such as 1000,3, not {text!r}") from None


def _check(args: argparse.Namespace) -> None:
    """Refuse arguments that contradict each other."""
    if args.shape is not None and not args.raw:
        raise ValueError("--shape is for --raw: a .npy file says its shape")


def _job(args: argparse.Namespace) -> Job:
    given = {name: value for name, value in vars(args).items() if name not in ("json", "quiet")}
    if args.output is None:
        stem = args.input.name.removesuffix(".npy")
        given["output"] = args.input.parent / f"{stem}.scan.npy"
    return Job(**given)


# ---- progress and report -------------------------------------------------------------------


def _text(report: Report, *, checked: bool) -> str:
    """Return the report as text, several lines."""
    lines = [
        f"{report.op} of {report.elements} elements, {report.dtype_in} to {report.dtype_out}",
        f"{_count(report.ranks, 'rank')} on {_count(report.nodes, 'node')}, strategy "
        f"{report.strategy}, backend {report.backend} ({report.device})",
    ]
    x = report.elements * np.dtype(report.dtype_in).itemsize
    y = report.elements * np.dtype(report.dtype_out).itemsize
    moved = {"read": x, "reduce": x, "scan": x + y, "write": y, "all": x + y}
    for phase in PHASES:
        seconds = report.seconds[phase]
        rate = f"{moved[phase] / seconds / 1e9:10.2f} GB/s" if seconds and phase in moved else ""
        lines.append(f"  {phase:7}{seconds:10.4f} s{rate}")
    if report.total is not None:  # rows have several totals; an empty input may have none
        lines.append(f"total {report.total}")
    lines.append(f"{report.output}{' (checked)' if checked else ''}")
    return "\n".join(lines)


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


def _plain(value: Any) -> Any:
    """Return a number in a form that JSON has: complex as a pair, NaN and infinities as text."""
    if isinstance(value, complex):
        return [_plain(value.real), _plain(value.imag)]
    if isinstance(value, np.generic):  # long double: Python has no such number
        return _plain(complex(value) if value.dtype.kind == "c" else float(value))
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
