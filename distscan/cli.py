"""The command lines: entry, exit status, parser, progress; and the file job's. Rank 0 prints.

``run``, ``Parser``, ``arguments`` and ``ProgressBar`` serve all commands.
"""

import argparse
import glob
import importlib
import math
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, NoReturn, get_args

from . import commands
from .core.errors import USAGE, DistscanError, InputError, LaunchError
from .core.operators import BUILTIN, Operator
from .core.steps import Strategy
from .job import formats, report
from .job.formats.interface import Location, Url, on_command_line, path_of_file
from .job.job import FileJob, check_roles, perform
from .job.progress import Progress
from .job.report import Report
from .mpi import agree, communicators, launcher
from .mpi.agree import agreed
from .mpi.communicators import Comm
from .options import Nulls, Op, RunOptions, ScanOptions
from .version import __version__


def run(name: str, work: Callable[[Comm, Sequence[str]], int], argv: Sequence[str] | None) -> int:
    """Run ``work`` on every rank; return the exit status, the same on every rank.

    An error is one line on stderr, ``name: error: ...``, printed once. If ``argv`` is None, the
    arguments are those of the process.
    """
    argv = sys.argv[1:] if argv is None else argv
    try:
        comm = communicators.communicator(None)
    except (LaunchError, ImportError) as error:  # ImportError: there is no MPI
        return fail(name, error) if launcher.launched_rank() == 0 else 1
    numbers = [signal.SIGTERM, signal.SIGHUP]
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # during the imports: see __init__.py
        numbers.append(signal.SIGINT)
    # A signal that is ignored stays ignored: nohup ignores SIGHUP.
    numbers = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    # These signals raise KeyboardInterrupt, as Ctrl-C does, so that the job cleans up.
    handlers = {number: signal.signal(number, signal.default_int_handler) for number in numbers}
    try:
        return work(comm, argv)
    except Exception as error:
        if comm.size > 1 and not agree.is_agreed(error):
            # A fault outside all agreed steps is a bug. The other ranks must not wait for this one.
            fail(name, error)
            comm.Abort(1)
        return fail(name, error) if comm.rank == 0 else status(error)
    except KeyboardInterrupt:
        if comm.rank == 0:
            fail(name, RuntimeError("interrupted"))
        if comm.size > 1:
            comm.Abort(130)
        return 130
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def fail(name: str, error: Exception) -> int:
    """Print an error as one line; return the exit status."""
    message = " ".join(str(error).split()) or type(error).__name__
    if not isinstance(
        error, (DistscanError, *USAGE, MemoryError, OSError, ImportError, RuntimeError)
    ):
        message = f"{type(error).__name__}: {message}"
    print(f"{name}: error: {message}", file=sys.stderr, flush=True)
    return status(error)


def status(error: Exception) -> int:
    """Return the exit status of an error: 2 for a wrong argument or input, else 1."""
    return 2 if isinstance(error, USAGE) else 1


class Parser(argparse.ArgumentParser):
    """An argument parser that raises errors instead of printing them: ranks agree on them first.

    Its program is this one, as it was called, and a ``command`` of it.
    """

    text = ""

    def __init__(self, command: str = "", **options: Any) -> None:
        options.setdefault("prog", f"{commands.program()} {command}".rstrip())
        super().__init__(formatter_class=_Help, allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        """Raise ValueError; argparse would end the process."""
        raise ValueError(f"{message}; {self.prog} --help lists the arguments")

    def _print_message(self, message: str, file: Any = None) -> None:
        self.text += message


class _Help(argparse.HelpFormatter):
    """Help as wide as the terminal; a text of several lines keeps them.

    argparse would import ``shutil`` for the width, which takes 4 ms.
    """

    def __init__(self, prog: str) -> None:
        try:
            columns = int(os.environ.get("COLUMNS", "")) or 80
        except ValueError:
            columns = os.get_terminal_size().columns if os.isatty(1) else 80
        super().__init__(prog, width=columns - 2)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text else super()._fill_text(text, width, indent)


def arguments(
    comm: Comm,
    argv: Sequence[str],
    parser: Parser,
    check: Callable[[argparse.Namespace], None] = lambda args: None,
) -> argparse.Namespace | None:
    """Return the parsed arguments, checked by ``check`` and agreed on by all ranks; collective.

    None for --help and --version, after rank 0 has printed their text.
    """
    with agreed(comm) as same:
        same["the arguments"] = list(argv)
        try:
            # Files may stand between options; after -- all are files.
            parse = parser.parse_args if "--" in argv else parser.parse_intermixed_args
            args = parse(argv)
            check(args)
        except SystemExit:
            args = None
    if args is None and comm.rank == 0:
        print(parser.text, end="", flush=True)
    return args


def parse(parser: Parser, argv: Sequence[str]) -> argparse.Namespace | None:
    """Return the arguments of a command without ranks; None for --help, after printing its text."""
    try:
        return parser.parse_args(argv)
    except SystemExit:
        print(parser.text, end="", flush=True)
        return None


# ---- progress ---------------------------------------------------------------------------------


class ProgressBar:
    """Progress on stderr: a bar that is rewritten on a terminal; else a line now and then."""

    def __init__(self, *, quiet: bool) -> None:
        self.quiet = quiet or sys.stderr is None
        self.terminal = not self.quiet and sys.stderr.isatty()
        self.phase, self._begun, self._next = "", 0.0, 0.0
        self._origin = 0.0, 0.0  # a time, and the share of the job that was done then

    def show(self, progress: Progress) -> None:
        """Print the progress of a job."""
        if self.quiet:
            return
        now, new = monotonic(), progress.phase != self.phase
        if not 0 < self._origin[1] <= progress.share:  # the work begins, perhaps once more
            self._origin = now, progress.share
        if new:
            self.phase, self._begun = progress.phase, now
        elif now < self._next:
            return
        self._next = now + (_REWRITTEN if self.terminal else _PRINTED)
        begun, first = self._origin
        left = None
        if progress.share > first:
            left = (now - begun) * (1 - progress.share) / (progress.share - first)
        text = _progress(progress, now - self._begun, left)
        if self.terminal:
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
        else:
            text = f"distscan: {progress.phase}" if new else text
            print(text, file=sys.stderr, flush=True)

    def warn(self, message: str) -> None:
        """Print a warning on rank 0."""
        if not self.quiet:
            self.clear()
            print(f"distscan: warning: {message}", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Clear the line of the terminal."""
        if self.terminal and self.phase and not self.quiet:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


_REWRITTEN, _PRINTED = 0.1, 10.0  # seconds between two bars, and between two lines
_WIDTH = 10


def _progress(progress: Progress, seconds: float, left: float | None) -> str:
    """Return a line of progress: of a phase since so many seconds, of a job that takes ``left``.

    >>> _progress(Progress("scan", 3 * 10**9, 4 * 10**9, 0.5), 1.5, 61)
    'distscan: [#####.....]  50%  scan 3.00 of 4.00 GB  2.00 GB/s  1:01 left'
    """
    phase, done, size, share = progress
    text = f"distscan: {phase}"
    if share > 0:
        bar = "#" * int(share * _WIDTH)
        text = f"distscan: [{bar:.<{_WIDTH}}] {math.floor(share * 100):3}%  {phase}"
    if size > 0 and done > 0:
        text += f" {done / 1e9:.2f} of {size / 1e9:.2f} GB"
        text += f"  {done / seconds / 1e9:.2f} GB/s" if seconds > 0 else ""
    return text if left is None else f"{text}  {time_text(left)} left"


def time_text(seconds: float) -> str:
    """Return a time in the units that people read.

    >>> time_text(0.3), time_text(75), time_text(7265)
    ('1 s', '1:15', '2:01:05')
    """
    whole = math.ceil(seconds)
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{rest:02}"
    return f"{minutes}:{rest:02}" if minutes else f"{rest} s"


# ---- the file job -----------------------------------------------------------------------------

#: Arguments that are options of a job; a command may have others.
_OPTIONS = {*ScanOptions._fields, *RunOptions._fields}
_OPTIONS |= {"state", "trace"}
#: The names of operators.
OPERATORS = sorted([*BUILTIN, "fsum"])
_NAMES = ", ".join(OPERATORS)


def file_job_parser(command: str = "") -> Parser:
    """Return the parser of a file job's arguments, which may be those of a ``command``."""
    parser = Parser(
        command,
        description="Prefix scan of a file, shared among MPI ranks, one GPU per rank.",
        epilog=f"{commands.description()}\n\nexample: mpirun -n 8 python -m distscan input.npy",
    )
    add = parser.add_argument
    add(
        "inputs",
        metavar="INPUT",
        nargs="+",
        help="a file that every rank can read: .npy, raw, or FILE::NAME of HDF5, NetCDF-4, Zarr, "
        ".npz, Parquet, Arrow; or the URL of .npy or raw; several are one array, in this order; a "
        "folder stands for its Parquet files",
    )
    add(
        "-o",
        "--output",
        metavar="OUTPUT",
        type=Location.parse,
        help="the result: .npy, its URL, or FILE::NAME of HDF5, NetCDF-4, Zarr, Parquet, Arrow; by "
        "default INPUT with .scan before its suffix; with --each, a folder",
    )
    add(
        "--op",
        type=_operator,
        default="sum",
        metavar="OP",
        help=f"the operator: {_NAMES}, or MODULE:NAME of an Operator (default: sum)",
    )
    add(
        "--window",
        nargs=2,
        metavar=("LOW", "HIGH"),
        type=int,
        help="of fsum: elements are multiples of 2^LOW and below 2^HIGH in magnitude",
    )
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
        "--nulls",
        choices=get_args(Nulls),
        default="refuse",
        help="elements of Parquet and Arrow without a value: skip leaves them out, zero counts "
        "them as 0 (default: refuse)",
    )
    add("--each", action="store_true", help="scan each INPUT on its own")
    add(
        "--segments",
        metavar="FILE",
        type=Location.parse,
        help="flags or keys, where scans begin anew, in a file of a format of INPUT; or the name "
        "of another column of INPUT",
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
    add(
        "--memory",
        metavar="SIZE",
        type=_size,
        help="the most memory of a rank for chunks, on the host and on its GPU each, such as 128M",
    )
    add(
        "--trace",
        metavar="FILE",
        type=_file,
        help="write the work of all ranks on every chunk to a file for Perfetto",
    )
    add(
        "--state",
        metavar="FILE",
        type=_file,
        help="begin after the running value in FILE, if it exists, and write the new one to it",
    )
    add(
        "--resume",
        action="store_true",
        help="keep a journal, and go on where a killed job with --resume has stopped",
    )
    add(
        "--trust-input",
        action="store_true",
        help="with --resume: do not read again what a killed job has read, to compare it",
    )
    add("--force", action="store_true", help="replace an existing OUTPUT, and the FILE of --trace")
    add("--check", action="store_true", help="recompute with NumPy and compare")
    add(
        "--like",
        action="store_true",
        help="chunk and compress OUTPUT as INPUT is, of HDF5 and NetCDF-4; one rank writes it",
    )
    add("--json", action="store_true", help="print the report as one JSON object")
    add("--quiet", action="store_true", help="print no progress and no report")
    add("--version", action="version", version=f"distscan {__version__}")
    if not command:
        add(
            "--print-completion",
            action=_PrintCompletion,
            choices=("bash", "zsh", "fish"),
            help="print the lines that make this shell complete the command line",
        )
    return parser


class _PrintCompletion(argparse.Action):
    """Print the lines for a shell as ``--help`` prints its text."""

    def __call__(self, parser: Any, namespace: Any, shell: Any, option: str | None = None) -> None:
        """End the parser with these lines."""
        try:
            from argcomplete import shellcode  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise ImportError(
                f"{option} needs argcomplete ({error}); install it: pip install argcomplete"
            ) from error
        parser.text = shellcode(["distscan"], shell=shell)  # nosec B604 - the name of a shell
        parser.exit()


def _file(text: str) -> Path:
    """Return the path of a file, which is no URL."""
    try:
        return path_of_file(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _shape(text: str) -> tuple[int, ...]:
    """Read a shape.

    >>> _shape("100,3")
    (100, 3)
    """
    try:
        return tuple(int(length) for length in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"a shape is such as 1000,3, not {text!r}") from None


def _size(text: str) -> int:
    """Read a number of bytes.

    >>> _size("128M"), _size("2GiB"), _size("1000")
    (134217728, 2147483648, 1000)
    """
    match = re.fullmatch(r"(\d+)([KMGT]?)(i?B)?", text)
    if match is None or int(match[1]) == 0:
        raise argparse.ArgumentTypeError(f"a size is such as 128M or 2G, not {text!r}")
    return int(match[1]) << 10 * " KMGT".index(match[2] or " ")


def _operator(text: str) -> Op:
    """Return the operator of a name, or of MODULE:NAME, which is imported."""
    module, colon, name = text.partition(":")
    if not colon:
        if text not in BUILTIN and text != "fsum":
            raise argparse.ArgumentTypeError(
                f"invalid choice: {text!r} (choose from {_NAMES}, or MODULE:NAME of an Operator)"
            )
        return text
    # The script distscan finds modules in the current folder, as python -m distscan does.
    if not getattr(sys.flags, "safe_path", False) and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        op = getattr(importlib.import_module(module), name)
    except (Exception, SystemExit) as error:  # a script may end when it is imported
        raise argparse.ArgumentTypeError(
            f"cannot import {text}: {error}; Python looks for MODULE here and in PYTHONPATH"
        ) from error
    if not isinstance(op, Operator):
        raise argparse.ArgumentTypeError(
            f"{text} is no Operator, but {type(op).__name__}: make it by distscan.Operator(...)"
        )
    return op


def check_file_jobs(args: argparse.Namespace) -> None:
    """Refuse arguments that contradict each other."""
    if args.raw and args.dtype is None:
        raise ValueError("--raw needs --dtype, the type of INPUT's elements, such as --dtype f4")
    if args.shape is not None and not args.raw:
        raise ValueError("--shape is for --raw: a .npy file says its shape; leave it out")
    if args.window is not None and args.op != "fsum":
        raise ValueError("--window is for --op fsum: name this operator, or leave --window out")
    if args.trust_input and not args.resume:
        raise ValueError("--trust-input is for --resume: add it, or leave --trust-input out")
    if args.each and args.output is not None:
        folder = args.output.path
        if not (isinstance(folder, Url) or folder.is_dir()):
            raise ValueError(f"with --each, -o is a folder, and {folder} is none: create it")
    if args.check and (args.segments is not None or isinstance(args.op, Operator)):
        raise ValueError(
            "--check has no reference for --segments and for operators of your own: leave it out"
        )
    if args.each and not (args.segments is None and args.trace is None):
        raise ValueError(
            "--segments and --trace are for one array, --each for several: run one job for each"
        )


def file_jobs(args: argparse.Namespace) -> Iterator[FileJob]:
    """Yield the jobs that the arguments describe: one, or with ``--each`` one for each INPUT."""
    options = {name: value for name, value in vars(args).items() if name in _OPTIONS}
    options |= {"raw": args.dtype, "dtype": None} if args.raw else {"raw": None}
    inputs = tuple(location for text in args.inputs for location in _files(text, raw=args.raw))
    if not args.each:
        if len(inputs) > 1 and args.output is None:
            raise ValueError("several INPUTs are scanned as one array: -o names its OUTPUT")
        output = args.output or _scanned(inputs[0], inputs[0].path.parent)
        yield FileJob.parse(inputs, output, **options)
        return
    outputs = [
        _scanned(each, each.path.parent if args.output is None else args.output.path)
        for each in inputs
    ]
    for i, output in enumerate(outputs):
        if output in outputs[:i]:
            raise ValueError(f"two INPUTs have the same OUTPUT, {output}")
    for each, output in zip(inputs, outputs, strict=True):
        yield FileJob.parse((each,), output, **options)


def _scanned(location: Location, folder: Path | Url) -> Location:
    """Return the default OUTPUT of an INPUT.

    >>> print(_scanned(Location.parse("a/x.npy"), Path("b")))
    b/x.scan.npy
    """
    return Location(folder / formats.scanned_name(location.path.name))


def _files(text: str, *, raw: bool) -> list[Location]:
    """Return the arrays of an INPUT: itself, or those that it matches, in the order of names.

    A folder stands for its Parquet files, unless files are ``raw``.
    """
    location = Location.parse(text)
    if isinstance(location.path, Url):
        return [location]
    pattern = str(location.path)
    if not any(sign in pattern for sign in "*?[") or os.path.lexists(pattern):
        return [location] if raw else formats.parts(location)
    names = sorted(glob.glob(pattern))
    if not names:
        raise InputError(f"no file matches {pattern}; check the pattern")
    return [Location(Path(name), location.member) for name in names]


def check_command(argv: Sequence[str]) -> None:
    """Refuse a mistyped command: a first argument that neither names a file nor looks like one."""
    name = argv[0] if argv else "-"
    if re.fullmatch(r"\w[\w-]*", name) and not os.path.lexists(name):
        raise ValueError(commands.unknown_command_text(name))


def main(argv: Sequence[str] | None = None) -> int:
    """Run a file job on every rank; return the exit status, the same on each."""
    return run("distscan", _main, argv)


def _main(comm: Comm, argv: Sequence[str]) -> int:
    with agreed(comm):
        check_command(argv)
    args = arguments(comm, argv, file_job_parser(), check_file_jobs)
    if args is None:
        return 0
    with agreed(comm) as same:
        jobs = list(file_jobs(args))
        same["the jobs"] = [[str(path) for path in job.inputs] for job in jobs]
        if comm.rank == 0:
            check_roles(jobs)
    for i, job in enumerate(jobs):
        bar = ProgressBar(quiet=args.quiet or comm.rank > 0)
        try:
            with on_command_line():
                result = perform(comm, job, bar.show, bar.warn, of_process=i == 0)
        finally:
            bar.clear()
        _print(comm, args, result)
    return 0


def _print(comm: Comm, args: argparse.Namespace, result: Report) -> None:
    """Print a report on rank 0, as the arguments say; collective."""
    with agreed(comm):
        if comm.rank == 0 and args.json:
            import json  # noqa: PLC0415 - only --json needs it

            print(json.dumps(report.plain(result)), flush=True)
        elif comm.rank == 0 and not args.quiet:
            text = report.text(result, checked=args.check)
            try:
                print(text, flush=True)
            except UnicodeEncodeError:  # stdout cannot encode the file's name
                print(text.encode("ascii", "backslashreplace").decode(), flush=True)
