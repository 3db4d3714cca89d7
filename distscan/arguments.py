"""The arguments of a file job on the command line, and the jobs that they describe."""

import argparse
import glob
import importlib
import os
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import get_args

from .build import Op
from .command import Parser
from .core.errors import InputError
from .core.operators import BUILTIN, Operator
from .core.steps import Strategy
from .job.job import Job
from .options import RunOptions, ScanOptions
from .version import __version__

#: Arguments that are options of a job; a command may have others.
_OPTIONS = {each.name for kind in (ScanOptions, RunOptions) for each in fields(kind)}
_OPTIONS |= {"state", "trace"}
_NAMES = ", ".join(sorted([*BUILTIN, "fsum"]))


def parser() -> Parser:
    """Return the parser of the arguments."""
    parser = Parser(
        prog="python -m distscan",
        description="Prefix scan of a file, shared among MPI ranks, one GPU per rank.",
        epilog="example: mpirun -n 8 python -m distscan input.npy",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "inputs",
        metavar="INPUT",
        nargs="+",
        help="a file that every rank can read: .npy, or raw; several are one array, in this order",
    )
    add(
        "-o",
        "--output",
        metavar="OUTPUT",
        type=Path,
        help="the result; by default INPUT with .scan.npy for .npy; with --each, a folder",
    )
    add(
        "--op",
        type=_operator,
        default="sum",
        metavar="OP",
        help=f"{_NAMES}, or MODULE:NAME of an Operator (default: sum)",
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
    add("--each", action="store_true", help="scan each INPUT on its own")
    add("--segments", metavar="FILE", type=Path, help="flags or keys, where scans begin anew: .npy")
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
        type=Path,
        help="write the work of all ranks on every chunk to a file for Perfetto",
    )
    add(
        "--state",
        metavar="FILE",
        type=Path,
        help="begin behind the running value in FILE, if it exists, and write the new one to it",
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


def _size(text: str) -> int:
    """Read a number of bytes.

    >>> _size("128M"), _size("2GiB"), _size("1000")
    (134217728, 2147483648, 1000)
    """
    found = re.fullmatch(r"(\d+)([KMGT]?)(i?B)?", text)
    if found is None or int(found[1]) == 0:
        raise argparse.ArgumentTypeError(f"a size is such as 128M or 2G, not {text!r}")
    return int(found[1]) << 10 * " KMGT".index(found[2] or " ")


def _operator(text: str) -> Op:
    """Return the operator of a name, or of MODULE:NAME, which is imported."""
    module, colon, name = text.partition(":")
    if not colon:
        if text not in BUILTIN and text != "fsum":
            raise argparse.ArgumentTypeError(
                f"invalid choice: {text!r} (choose from {_NAMES}, or MODULE:NAME of an Operator)"
            )
        return text
    try:
        found = getattr(importlib.import_module(module), name)
    except (Exception, SystemExit) as error:  # a script may end when it is imported
        raise argparse.ArgumentTypeError(f"cannot import {text}: {error}") from error
    if not isinstance(found, Operator):
        raise argparse.ArgumentTypeError(f"{text} is no Operator, but {type(found).__name__}")
    return found


def check(args: argparse.Namespace) -> None:
    """Refuse arguments that contradict each other."""
    if args.raw and args.dtype is None:
        raise ValueError("--raw needs --dtype, the type of INPUT's elements")
    if args.shape is not None and not args.raw:
        raise ValueError("--shape is for --raw: a .npy file says its shape")
    if args.each and args.output is not None and not args.output.is_dir():
        raise ValueError(f"with --each, -o is a folder, and {args.output} is none")
    if args.check and (args.segments is not None or isinstance(args.op, Operator)):
        raise ValueError("--check has no reference for --segments and for operators of your own")
    if args.each and not (args.segments is None and args.trace is None):
        raise ValueError("--segments and --trace are for one array, --each for several")


def jobs(args: argparse.Namespace) -> Iterator[Job]:
    """Yield the jobs that the arguments describe: one, or with ``--each`` one for each INPUT."""
    given = {name: value for name, value in vars(args).items() if name in _OPTIONS}
    given |= {"raw": args.dtype, "dtype": None} if args.raw else {"raw": None}
    inputs = tuple(path for text in args.inputs for path in _files(text))
    if not args.each:
        if len(inputs) > 1 and args.output is None:
            raise ValueError("several INPUTs are scanned as one array: -o names its OUTPUT")
        yield Job.parse(inputs, args.output or _scanned(inputs[0], inputs[0].parent), **given)
        return
    outputs = [_scanned(path, args.output or path.parent) for path in inputs]
    for i, output in enumerate(outputs):
        if output in outputs[:i]:
            raise ValueError(f"two INPUTs have the same OUTPUT, {output}")
    for path, output in zip(inputs, outputs, strict=True):
        yield Job.parse((path,), output, **given)


def _scanned(path: Path, folder: Path) -> Path:
    """Return the default OUTPUT of an INPUT.

    >>> _scanned(Path("a/x.npy"), Path("b")).as_posix()
    'b/x.scan.npy'
    """
    return folder / f"{path.name.removesuffix('.npy')}.scan.npy"


def _files(text: str) -> list[Path]:
    """Return the files of an INPUT: itself, or those that it matches, in the order of names."""
    path = Path(text)
    if not any(sign in text for sign in "*?[") or os.path.lexists(text):
        return [path]
    found = sorted(glob.glob(text))
    if not found:
        raise InputError(f"no file matches {text}")
    return [Path(name) for name in found]
