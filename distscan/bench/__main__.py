"""``python -m distscan.bench``: the arguments and the exit status."""

import argparse
import importlib.util
import json
import platform
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from .. import __version__, binding, command
from ..command import Parser, Progress
from ..core.errors import DistscanError
from ..core.operators import BUILTIN
from ..mpi import agree, communicators
from ..mpi.agree import agreed
from ..mpi.communicators import Comm
from . import block_scans, plot, report, suite
from .case import Case
from .contenders import ALL_OPS, CONTENDERS, Contender
from .machine import Gpu, Host
from .report import Report

_LEAST = 11  # samples
_LARGEST = 36  # 2^36 elements


def main(argv: Sequence[str] | None = None) -> int:
    """Run on every rank; return the exit status, the same on each."""
    return command.run("distscan.bench", _main, argv)


def _main(comm: Comm, argv: Sequence[str]) -> int:
    args = command.arguments(comm, argv, _parser(), _check)
    if args is None:
        return 0
    progress = Progress(quiet=comm.rank > 0)
    bound = binding.bind(comm, args.backend, progress.warn)
    name, _, reason = bound.device.partition(": ")
    if reason:
        progress.warn(f"runs on the CPU: {reason}")
    sharing = _sharing(comm, bound)
    with agreed(comm):
        machine = Gpu(name, sharing) if bound.name == "cuda" else Host(_processor(name), sharing)
    if args.list:
        _list(comm)
        return 0
    if args.block_scans and (machine.backend, comm.size) != ("cuda", 1):
        where = f"{comm.size} of backend {machine.backend}"
        raise agree.mark_collective(
            ValueError(f"--block-scans is for one rank with a GPU, not {where}")
        )
    chosen = _chosen(args, machine.backend, comm.size)
    able, versions, missing = suite.present(comm, chosen)
    cases = [
        Case(BUILTIN[args.op], x, out, 1 << power, comm.size)
        for x, out in args.types
        for power in args.sizes
        if not args.block_scans
    ]
    try:
        measuring = {"repeat": args.repeat, "progress": progress.show}
        rows = suite.run(comm, machine, able, cases, **measuring)
        tables = block_scans.run(comm, machine, **measuring) if args.block_scans else None
    finally:
        progress.clear()
    done = Report(
        command=" ".join(["python -m distscan.bench", *argv]),
        date=time.strftime("%Y-%m-%d"),
        chip=machine.name,
        backend=machine.backend,
        ranks=comm.size,
        nodes=bound.nodes,
        mpi=communicators.mpi_version(),
        versions=_versions(machine) | _of_libraries(versions),
        missing=missing,
        op=args.op,
        repeat=args.repeat,
        cache_bytes=machine.cache,
        peak=machine.peak,
        results=rows,
        block_scans=tables,
    )
    with agreed(comm):
        if comm.rank == 0:
            _write(done, args.json, args.plot)
    return 0


def _write(done: Report, to_json: str | None, to_plot: Path | None) -> None:
    if to_json == "-":
        print(json.dumps(done.plain()), flush=True)
    else:
        print(report.text(done), flush=True)
        if to_json:
            Path(to_json).write_text(json.dumps(done.plain(), indent=1) + "\n")
    if to_plot:
        plot.write(done, to_plot)


def _list(comm: Comm) -> None:
    """Print every contender: where it runs, and its version here."""
    _, versions, missing = suite.present(comm, CONTENDERS)
    lines = [f"{'':16}{'backends':10}{'ranks':9}{'operators':19}here"]
    for contender in CONTENDERS:
        here = versions.get(contender.name) or missing[contender.name]
        lines.append(
            f"{contender.name:16}{','.join(contender.backends):10}{contender.ranks:9}"
            f"{','.join(contender.ops):19}{here}"
        )
    _print(comm, "\n".join(lines))


def _chosen(args: argparse.Namespace, backend: str, ranks: int) -> list[Contender]:
    """Return the contenders asked for, and the copy, which all are compared with."""
    suited = [c for c in CONTENDERS if c.suits(backend, ranks, args.op)]
    if args.contenders is None:
        return suited
    names = {contender.name for contender in suited}
    for name in args.contenders:
        if name not in names:
            raise agree.mark_collective(
                ValueError(f"{name} does not run {args.op} on {ranks} ranks of backend {backend}")
            )
    return [c for c in suited if c.name in (*args.contenders, "copy")]


# ---- arguments -----------------------------------------------------------------------------


def _parser() -> Parser:
    parser = Parser(
        prog="python -m distscan.bench",
        description="distscan, a plain copy and the peers that are installed, side by side.",
        epilog="example: mpirun -n 4 python -m distscan.bench --sizes 20:30 --plot bench.svg",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--sizes", type=_sizes, default="10:28:2", metavar="A:B[:STEP]",
        help="elements per rank, powers of two (default: 10:28:2)")  # fmt: skip
    add("--types", type=_types, default="float32,float64,int32,int64", metavar="T[:OUT],...",
        help="of input and result, such as int8:int64 (default: %(default)s)")  # fmt: skip
    add("--op", choices=ALL_OPS, default="sum", help="the operator (default: sum)")
    add("--contenders", type=_names, metavar="A,B,...",
        help="only these, and the copy; --list names them")  # fmt: skip
    add("--backend", choices=("auto", "cpu", "cuda"), default="auto",
        help="auto takes the GPUs if every rank has one (default: auto)")  # fmt: skip
    add("--repeat", type=_repeat, default=_LEAST, metavar="N",
        help=f"samples of each, {_LEAST} or more (default: {_LEAST})")  # fmt: skip
    add("--json", metavar="FILE", help="everything as JSON; - is stdout, instead of the tables")
    add("--plot", type=Path, metavar="FILE.svg", help="share of the copy's speed against size")
    add("--block-scans", action="store_true",
        help="instead: the block scans and the chains of the literature, on one GPU")  # fmt: skip
    add("--list", action="store_true", help="list the contenders and what is installed")
    return parser


def _check(args: argparse.Namespace) -> None:
    """Refuse a plot that cannot be drawn."""
    if args.plot and args.block_scans:
        raise ValueError("--plot draws what --block-scans leaves out")
    if args.plot and importlib.util.find_spec("matplotlib") is None:
        raise DistscanError("--plot needs matplotlib; install it: pip install '.[bench]'")


def _sizes(text: str) -> list[int]:
    numbers = [int(part) for part in text.split(":")]
    low, high, step = (*numbers, numbers[-1], 1)[:3] if len(numbers) < 2 else (*numbers, 1)[:3]
    if len(numbers) > 3 or not 0 <= low <= high <= _LARGEST or step < 1:
        raise argparse.ArgumentTypeError(
            f"a range of powers is A:B or A:B:STEP, 0 <= A <= B <= {_LARGEST}, not {text!r}"
        )
    return list(range(low, high + 1, step))


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


# ---- what the report says of this run ------------------------------------------------------


def _sharing(comm: Comm, bound: binding.Binding) -> int:
    """How many ranks take memory from one device."""
    on_a_node = -(-comm.size // bound.nodes)
    if bound.name == "cpu":
        return on_a_node
    from ..cuda import gpus  # noqa: PLC0415 - a CPU run need not have CuPy

    fewest: int = min(comm.allgather(gpus.count()))
    return -(-on_a_node // fewest)


def _processor(fallback: str) -> str:
    """Return the processor's name as Linux knows it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return fallback
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else fallback


def _versions(machine: Host) -> dict[str, str]:
    return {
        "distscan": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "mpi4py": version("mpi4py"),
    } | machine.versions()


def _of_libraries(versions: dict[str, str]) -> dict[str, str]:
    """Of peers whose versions no other line names."""
    named = ("cub", "by-hand-expert", "torch", "heat")
    return {name: versions[name] for name in named if name in versions}


def _print(comm: Comm, text: str) -> None:
    if comm.rank == 0:
        print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
