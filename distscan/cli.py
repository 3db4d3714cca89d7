"""The command line: arguments, progress, report. Rank 0 alone prints."""

import argparse
import json
import math
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import Any, NoReturn, get_args

import numpy as np

from . import __version__, agree, exchange
from .agree import agreed
from .errors import DistscanError, LaunchError
from .exchange import Comm
from .job import PHASES, Job, Report, perform
from .local import Strategy
from .operators import BUILTIN

# A bad argument or a bad input; anything else ends with status 1.
_USAGE = (TypeError, ValueError, NotImplementedError)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line on every rank; return the exit status, the same on each."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        comm = exchange.communicator(None)
    except LaunchError as error:
        return _fail(error) if exchange.launched_rank() == 0 else 1
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # to clean up as for Ctrl-C
    try:
        return _main(comm, argv)
    except Exception as error:
        if comm.size > 1 and not agree.is_agreed(error):
            # A fault outside every agreed step is a bug; the other ranks must not wait for it.
            _fail(error)
            comm.Abort(1)
        return _fail(error) if comm.rank == 0 else _status(error)
    except KeyboardInterrupt:
        if comm.rank == 0:
            _fail(RuntimeError("interrupted"))
        if comm.size > 1:
            comm.Abort(130)
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)


def _main(comm: Comm, argv: Sequence[str]) -> int:
    with agreed(comm) as same:
        same["the arguments"] = list(argv)
        args, text = _parse(argv)
    if args is None:
        if comm.rank == 0:
            print(text, end="")
        return 0
    progress = Progress(quiet=args.quiet or comm.rank > 0)
    try:
        report = perform(comm, _job(args), progress.show, progress.warn)
    finally:
        progress.clear()
    with agreed(comm):
        if comm.rank == 0 and args.json:
            print(json.dumps(asdict(report) | {"total": _plain(report.total)}), flush=True)
        elif comm.rank == 0 and not args.quiet:
            print(_text(report, checked=args.check), flush=True)
    return 0


def _fail(error: Exception) -> int:
    message = " ".join(str(error).split()) or type(error).__name__
    if not isinstance(error, (DistscanError, *_USAGE, MemoryError, OSError, RuntimeError)):
        message = f"{type(error).__name__}: {message}"
    print(f"distscan: error: {message}", file=sys.stderr, flush=True)
    return _status(error)


def _status(error: Exception) -> int:
    return 2 if isinstance(error, _USAGE) else 1


# ---- arguments -----------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    """Raises what argparse prints, so that the ranks can agree on it first."""

    text = ""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}; python -m distscan --help lists the arguments")

    def _print_message(self, message: str, file: Any = None) -> None:
        self.text += message


def _parse(argv: Sequence[str]) -> tuple[argparse.Namespace | None, str]:
    """Return the arguments, or None and the text that --help or --version asks for."""
    parser = _Parser(
        prog="python -m distscan",
        description="Prefix scan of a .npy file, shared among MPI ranks, one GPU per rank.",
        epilog="example: mpirun -n 8 python -m distscan input.npy",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("input", metavar="INPUT", type=Path, help="a .npy file that every rank can read")
    add(
        "-o",
        "--output",
        metavar="OUTPUT",
        type=Path,
        help="the result; by default INPUT with .scan.npy for .npy",
    )
    add("--op", choices=sorted(BUILTIN), default="sum", help="the operator (default: sum)")
    add("--exclusive", action="store_true", help="not implemented yet")
    add("--initial", metavar="V", help="not implemented yet")
    add("--reverse", action="store_true", help="not implemented yet")
    add("--axis", metavar="K", type=int, help="0 for 1-d input; by default the input is flattened")
    add("--dtype", metavar="T", help="accumulate and result in this type (default: as NumPy)")
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
    add("--force", action="store_true", help="replace an existing OUTPUT")
    add("--check", action="store_true", help="recompute with NumPy and compare")
    add("--json", action="store_true", help="print the report as one JSON object")
    add("--quiet", action="store_true", help="print no progress and no report")
    add("--version", action="version", version=f"distscan {__version__}")
    try:
        return parser.parse_args(argv), ""
    except SystemExit:
        return None, parser.text


def _job(args: argparse.Namespace) -> Job:
    given = {name: value for name, value in vars(args).items() if name not in ("json", "quiet")}
    if args.output is None:
        stem = args.input.name.removesuffix(".npy")
        given["output"] = args.input.parent / f"{stem}.scan.npy"
    return Job(**given)


# ---- progress and report -------------------------------------------------------------------


class Progress:
    """One line on stderr: rewritten in place on a terminal, one per phase elsewhere."""

    def __init__(self, *, quiet: bool) -> None:
        self.quiet = quiet or sys.stderr is None
        self.terminal = not self.quiet and sys.stderr.isatty()
        self.phase, self.next = "", 0.0

    def show(self, phase: str, done: int, size: int) -> None:
        """Say how far rank 0 is; every rank has about as much to do."""
        now = monotonic()
        if self.quiet or (phase == self.phase and (not self.terminal or now < self.next)):
            return
        self.phase, self.next = phase, now + 0.1
        if self.terminal:
            share = f" {done / size:4.0%}" if size else ""
            print(f"\r\033[Kdistscan: {phase}{share}", end="", file=sys.stderr, flush=True)
        else:
            print(f"distscan: {phase}", file=sys.stderr, flush=True)

    def warn(self, message: str) -> None:
        """Print a warning on rank 0."""
        if not self.quiet:
            self.clear()
            print(f"distscan: warning: {message}", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Leave the terminal's line empty for what comes next."""
        if self.terminal and self.phase and not self.quiet:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def _text(report: Report, *, checked: bool) -> str:
    """Write the report for people."""
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
    lines.append(f"total {report.total}")
    lines.append(f"{report.output}{' (checked)' if checked else ''}")
    return "\n".join(lines)


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


def _plain(value: Any) -> Any:
    """Turn a number into what JSON can hold: complex as a pair, NaN and infinities as text."""
    if isinstance(value, complex):
        return [_plain(value.real), _plain(value.imag)]
    if isinstance(value, np.generic):  # long double, which Python has no number for
        return _plain(complex(value) if value.dtype.kind == "c" else float(value))
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
