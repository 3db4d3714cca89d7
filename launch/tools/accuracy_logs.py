"""How far logcumsumexp of float32 is from float64's: distscan's, and that of the array libraries.

    mpirun -n 8 python launch/tools/accuracy_logs.py [--size 22] [--backend auto|cpu|cuda]
                                                     [--seed 0]

Scans 2^SIZE values in each of these orders, for each RANGE, and prints the largest error:

    random    uniform in [-RANGE, RANGE)
    rising    from -RANGE to RANGE in equal steps, so that the largest value is always the latest
    falling   from RANGE to -RANGE, so that the first values count, and the last do not

The result y is the logarithm of a sum: an error e of y is a relative error e of the sum. Above 1, y
is also rounded to float32. So the error is divided by max(1, |y|), and printed in units of 2^-24,
half of float32's spacing at 1. The reference is ``numpy.logaddexp.accumulate`` in float64.
"""

import argparse
import sys
from collections.abc import Sequence

import numpy as np
import peers
from numpy.typing import NDArray

import distscan
from distscan import binding, cli
from distscan.mpi.agree import agreed
from distscan.mpi.communicators import Comm

RANGES = (0.01, 1, 10, 80, 300, 10_000)
ORDERS = ("random", "rising", "falling")
Floats = NDArray[np.float32]


def values(order: str, extent: float, n: int, seed: int) -> Floats:
    """Return all values of a case; the same on every rank."""
    if order == "random":
        x = np.random.default_rng(seed).uniform(-extent, extent, n)
    else:
        x = np.linspace(-extent, extent, n) * (1 if order == "rising" else -1)
    return x.astype(np.float32)


def largest_error(y: Floats, exact: NDArray[np.float64]) -> float:
    """Return the largest error of results, in units of 2^-24 of max(1, |y|)."""
    errors = np.abs(y - exact) / np.maximum(1, np.abs(exact))
    return float(errors.max(initial=0) * 2**24)  # NaN outlasts


def ours(comm: Comm, bound: binding.Binding, x: Floats, exact: NDArray[np.float64]) -> float:
    """Return the largest error of distscan's results on all ranks; collective."""
    mine, y = peers.ours(
        comm, bound, x, lambda shard: distscan.logcumsumexp(shard, out=shard, comm=comm)
    )
    with agreed(comm):
        worst = largest_error(y, exact[mine])
    return float(np.max(comm.allgather(worst)))


PEERS = {
    "numpy.logaddexp.accumulate": peers.by_numpy(np.logaddexp.accumulate),
    "torch.logcumsumexp": peers.by_torch("logcumsumexp"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run on every rank; return the exit status, the same on each."""
    return cli.run("accuracy_logs", _main, argv)


def _main(comm: Comm, argv: Sequence[str]) -> int:
    args = cli.arguments(comm, argv, _parser(), _check)
    if args is None:
        return 0
    bound, n = binding.bind(comm, args.backend, lambda message: None), 1 << args.size
    where = "GPU" if bound.name == "cuda" else "CPU"
    table: dict[tuple[str, int, str], list[float]] = {}
    for order in ORDERS:
        for extent in RANGES:
            x = values(order, extent, n, args.seed)
            exact = np.logaddexp.accumulate(x, dtype=np.float64)
            row = table.setdefault(("distscan.logcumsumexp", comm.size, where), [])
            row.append(ours(comm, bound, x, exact))
            for name, at, y in peers.theirs(PEERS if comm.rank == 0 else {}, x):
                table.setdefault((name, 1, at), []).append(largest_error(y, exact))
    if comm.rank == 0:
        _print(table, n, args.seed)
    return 0


def _print(table: dict[tuple[str, int, str], list[float]], n: int, seed: int) -> None:
    """Print a table for each order: a line for each library, a column for each range."""
    print(f"logcumsumexp of 2^{n.bit_length() - 1} float32, seed {seed}; errors in units of 2^-24")
    for i, order in enumerate(ORDERS):
        heads = " | ".join(f"{extent:g}" for extent in RANGES)
        print(f"\n| {order}, range | ranks | on | {heads} |\n|{'---|' * (len(RANGES) + 3)}")
        for (name, ranks, where), errors in table.items():
            mine = errors[i * len(RANGES) : (i + 1) * len(RANGES)]
            cells = " | ".join(f"{error:.1f}" for error in mine)
            print(f"| {name} | {ranks} | {where} | {cells} |", flush=True)


def _parser() -> cli.Parser:
    about = (__doc__ or "").partition("\n")[0]
    parser = cli.Parser(prog="accuracy_logs.py", description=about, allow_abbrev=False)
    parser.add_argument("--size", type=int, default=22, help="2^SIZE values (default: 22)")
    parser.add_argument("--backend", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--seed", type=int, default=0)
    return parser


def _check(args: argparse.Namespace) -> None:
    if not 1 <= args.size <= 30 or args.seed < 0:
        raise ValueError("--size is from 1 to 30, --seed not negative")


if __name__ == "__main__":
    sys.exit(main())
