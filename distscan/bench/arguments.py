"""The arguments of ``python -m distscan.bench``."""

import argparse
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

from ..command import Parser
from ..core.errors import DistscanError
from . import forms
from .contenders import ALL_OPS, CONTENDERS

_LEAST = 11  # samples
_LARGEST = 36  # 2^36 elements
_BARRED = {  # what is not for a mode
    "forms": ("sizes", "types", "op", "plot", "block_scans"),
    "uses": ("types", "op", "plot", "block_scans", "forms", "contenders"),
}
_SIZES, _TYPES = "10:28:2", "float32,float64,int32,int64"


def parser() -> Parser:
    """Return the parser of the command line."""
    made = Parser(
        prog="python -m distscan.bench",
        description="distscan, a plain copy and the peers that are installed, side by side.",
        epilog="example: mpirun -n 4 python -m distscan.bench --sizes 20:30 --plot bench.svg",
        allow_abbrev=False,
    )
    add = made.add_argument
    add("--sizes", type=_sizes, metavar="A[:B[:STEP]],...",
        help="elements per rank, powers of two (default: 10:28:2)")  # fmt: skip
    add("--types", type=_types, metavar="T[:OUT],...",
        help=f"of input and result, such as int8:int64 (default: {_TYPES})")  # fmt: skip
    add("--op", choices=ALL_OPS, help="the operator (default: sum)")
    add("--forms", type=_mib, nargs="?", const=forms.MIB, metavar="MIB",
        help="instead: every form of a scan on CPUs, beside NumPy, in arrays of so many MiB "
        f"(default: {forms.MIB}); on CPUs without --sizes, --types, --op, --against and --plot, "
        "this is the default")  # fmt: skip
    add("--levels", action="store_true",
        help="with --forms: also the lesser levels of instructions that are built")  # fmt: skip
    add("--uses", action="store_true",
        help="instead: what scans are used for, such as segments by key, beside what users would "
        "take; --sizes A leaves at most 2^A elements to each rank")  # fmt: skip
    add("--contenders", type=_names, metavar="A,B,...",
        help="only these, and the copy; --list names them")  # fmt: skip
    add("--backend", choices=("auto", "cpu", "cuda"), default="auto",
        help="auto takes the GPUs if every rank has one (default: auto)")  # fmt: skip
    add("--repeat", type=_repeat, default=_LEAST, metavar="N",
        help=f"samples of each, {_LEAST} or more (default: {_LEAST})")  # fmt: skip
    add("--json", metavar="FILE", help="everything as JSON; - is stdout, instead of the tables")
    add("--plot", type=Path, metavar="FILE.svg", help="share of the copy's speed against size")
    add("--against", type=Path, metavar="FILE",
        help="an earlier --json; status 1 where a share of the copy fell")  # fmt: skip
    add("--limit", type=_limit_of, metavar="PERCENT",
        help="that a share may fall by (default: 5 on GPUs, 20 on CPUs)")  # fmt: skip
    add("--block-scans", action="store_true",
        help="instead: the block scans and the chains of the literature, on one GPU")  # fmt: skip
    add("--list", action="store_true", help="list the contenders and what is installed")
    return made


def check(args: argparse.Namespace) -> None:
    """Refuse arguments that contradict each other, and a plot without matplotlib; set defaults.

    ``args.by_size`` is whether the arguments ask for tables by size.
    """
    for mode, barred in _BARRED.items():
        for name in barred if getattr(args, mode) else ():
            if getattr(args, name):
                raise ValueError(f"--{name.replace('_', '-')} is not for --{mode}")
    args.by_size = not (args.forms or args.uses) and any(
        (args.sizes, args.types, args.op, args.plot, args.against, args.block_scans)
    )
    args.most = max(args.sizes) if args.sizes else None  # for --uses
    if args.levels and (args.by_size or args.uses):
        raise ValueError("--levels is for --forms")
    if args.against and args.block_scans:
        raise ValueError("--against compares what --block-scans leaves out")
    if args.limit is not None and args.against is None:
        raise ValueError("--limit is for --against")
    if args.plot and args.block_scans:
        raise ValueError("--plot draws what --block-scans leaves out")
    args.sizes, args.types = args.sizes or _sizes(_SIZES), args.types or _types(_TYPES)
    args.op = args.op or "sum"
    if args.plot and importlib.util.find_spec("matplotlib") is None:
        raise DistscanError("--plot needs matplotlib; install it: pip install '.[bench]'")


def _sizes(text: str) -> list[int]:
    """Read powers of two and ranges of them.

    >>> _sizes("10,20:24:2")
    [10, 20, 22, 24]
    """
    powers: set[int] = set()
    for part in text.split(","):
        low, high, step = _range([int(number) for number in part.split(":")])
        if not 0 <= low <= high <= _LARGEST or step < 1:
            raise argparse.ArgumentTypeError(
                f"sizes are powers A or ranges A:B[:STEP], 0 <= A <= B <= {_LARGEST}, not {text!r}"
            )
        powers.update(range(low, high + 1, step))
    return sorted(powers)


def _mib(text: str) -> int:
    if not 1 <= int(text) <= 1 << 16:
        raise argparse.ArgumentTypeError(f"arrays have 1 to 65536 MiB, not {text!r}")
    return int(text)


def _range(numbers: list[int]) -> tuple[int, int, int]:
    match numbers:
        case [low]:
            return low, low, 1
        case [low, high]:
            return low, high, 1
        case [low, high, step]:
            return low, high, step
    return 1, 0, 1  # not a range: ``_sizes`` refuses it


def _types(text: str) -> list[tuple[np.dtype[Any], np.dtype[Any]]]:
    pairs = []
    for name in text.split(","):
        x, _, out = name.partition(":")
        try:
            pair = np.dtype(x), np.dtype(out or x)
        except TypeError as error:
            raise argparse.ArgumentTypeError(f"{name!r} is no type and no pair X:OUT") from error
        if not all(dtype.kind in "iuf" for dtype in pair):
            raise argparse.ArgumentTypeError(f"{name!r}: integers and floats are timed")
        if pair[1] == np.float16:
            raise argparse.ArgumentTypeError("sums in float16 are not exact, so cannot be checked")
        if np.result_type(*pair) != pair[1]:
            raise argparse.ArgumentTypeError(f"{name!r}: the result cannot hold the input")
        pairs.append(pair)
    return pairs


def _names(text: str) -> list[str]:
    names, known = text.split(","), [contender.name for contender in CONTENDERS]
    for name in names:
        if name not in known:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}")
    return names


def _repeat(text: str) -> int:
    if int(text) < _LEAST:
        raise argparse.ArgumentTypeError(f"a median needs {_LEAST} samples or more")
    return int(text)


def _limit_of(text: str) -> float:
    if not 0 <= float(text) <= 100:
        raise argparse.ArgumentTypeError(f"a share falls by 0 to 100 %, not {text!r}")
    return float(text)
