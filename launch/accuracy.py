"""How far float32 sums are from exact ones: distscan's, and those of the array libraries.

    mpirun -n 8 python launch/accuracy.py [--size 28] [--backend auto|cpu|cuda] [--seed 0]

Scans 2^SIZE uniform values and prints the largest relative error of any prefix: of distscan on all
ranks, then of each library that is installed on rank 0 alone, on the GPU where there is one. The
values depend on the seed and not on the number of ranks. They are multiples of 2^-24 below 1, so
float64 holds every prefix of up to 2^29 of them exactly: what errors are measured against is exact.

A sum's error grows with the roundings that a prefix goes through one after the other (Higham,
Accuracy and Stability of Numerical Algorithms, 2002, section 4.2). In a cumsum that adds element to
element these are as many as the elements before it. distscan scans tiles, adds up their totals in a
fixed order, then those of ranks: a prefix goes through the roundings of one tile, of the totals
before it, and of the ranks. On a CPU both distscan and PyTorch add in float64 and round each prefix
once; on GPUs distscan does with dtype=np.float64 and a float32 out.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

import distscan
from distscan import binding, command
from distscan.core.shards import bounds
from distscan.mpi.agree import agreed
from distscan.mpi.communicators import Comm

PIECE = 1 << 20  # values made and compared at a time
_LARGEST = 29  # up to 2^29 values float64 is exact
Floats = NDArray[np.float32]


def values(seed: int, low: int, high: int) -> Iterator[tuple[int, Floats]]:
    """Yield the values ``low..high`` in pieces: (index of the first, values), uniform in [0, 1)."""
    for start in range(low // PIECE * PIECE, high, PIECE):
        first, stop = max(low, start), min(high, start + PIECE)
        if first < stop:
            made = np.random.default_rng([seed, start // PIECE]).random(PIECE, np.float32)
            yield first, made[first - start : stop - start]


def total(seed: int, low: int, high: int) -> float:
    """Sum the values ``low..high``, exactly."""
    return float(sum(piece.sum(dtype=np.float64) for _, piece in values(seed, low, high)))


def largest_error(
    seed: int, low: int, high: int, before: float, result: Callable[[int, int], Floats]
) -> float:
    """Find the largest relative error among the prefixes ``low..high``.

    ``before`` is the exact sum of the values before ``low``; ``result(start, stop)`` returns the
    prefixes that are judged.
    """
    worst = 0.0
    for start, piece in values(seed, low, high):
        exact = np.cumsum(piece, dtype=np.float64) + before
        before = float(exact[-1])
        error = np.abs(result(start, start + len(piece)) - exact)
        with np.errstate(divide="ignore"):  # of a prefix that is 0 any error is infinite
            np.divide(error, exact, out=error, where=error != 0)
        worst = float(np.maximum(worst, error.max()))  # which NaN outlasts
    return worst


# ---- who is judged -------------------------------------------------------------------------


OURS = {"distscan.scan": np.float32, "distscan.scan, dtype=np.float64": np.float64}


def ours(comm: Comm, bound: binding.Binding, seed: int, n: int, dtype: type) -> float:
    """Return the largest error of distscan's float32 result, of sums in ``dtype``; collective."""
    low, high = bounds(n, comm.size, comm.rank)
    with agreed(comm):
        x = bound.memory.empty(high - low, np.dtype(np.float32))
        for start, piece in values(seed, low, high):
            bound.memory.upload(piece, x[start - low : start - low + len(piece)])
    distscan.scan(x, comm=comm, dtype=dtype, out=x)
    before = sum(comm.allgather(total(seed, low, high))[: comm.rank])
    with agreed(comm):
        buffer = bound.memory.staging(PIECE * 4)

        def result(start: int, stop: int) -> Floats:
            return bound.memory.download(x[start - low : stop - low], buffer)

        worst = largest_error(seed, low, high, before, result)
    return float(np.max(comm.allgather(worst)))


def by_numpy(x: Floats) -> tuple[str, Floats]:
    """Scan with NumPy."""
    return "CPU", np.cumsum(x, out=x)


def by_torch(x: Floats) -> tuple[str, Floats]:
    """Scan with PyTorch, which adds in float64 on a CPU."""
    import torch  # noqa: PLC0415 - it may be absent

    device = "cuda" if torch.cuda.is_available() else "cpu"
    result = torch.cumsum(torch.from_numpy(x).to(device), 0).cpu().numpy()
    return "GPU" if device == "cuda" else "CPU", result


def by_cupy(x: Floats) -> tuple[str, Floats]:
    """Scan with CuPy."""
    import cupy  # noqa: PLC0415 - it may be absent

    try:
        return "GPU", cupy.cumsum(cupy.asarray(x)).get()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise ImportError(f"no GPU for CuPy: {error}") from error


PEERS = {"numpy.cumsum": by_numpy, "torch.cumsum": by_torch, "cupy.cumsum": by_cupy}


# ---- the table -----------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Run on every rank; return the exit status, the same on each."""
    return command.run("accuracy", _main, argv)


def _main(comm: Comm, argv: Sequence[str]) -> int:
    args = command.arguments(comm, argv, _parser(), _check)
    if args is None:
        return 0
    n = 1 << args.size
    bound = binding.bind(comm, args.backend, lambda message: None)
    judged = {name: ours(comm, bound, args.seed, n, dtype) for name, dtype in OURS.items()}
    if comm.rank > 0:
        return 0
    print(
        f"sum of 2^{args.size} float32 uniform in [0, 1), seed {args.seed}; unit roundoff 2^-24\n"
    )
    print("| | ranks | on | largest relative error |\n|---|---|---|---|")
    where = "GPU" if bound.name == "cuda" else "CPU"
    for name, worst in judged.items():
        print(f"| {name} | {comm.size} | {where} | {worst:.2e} |", flush=True)
    for name, scan in PEERS.items():
        x = np.empty(n, np.float32)
        for start, piece in values(args.seed, 0, n):
            x[start : start + len(piece)] = piece
        try:
            where, y = scan(x)
        except ImportError:
            continue
        worst = largest_error(args.seed, 0, n, 0.0, lambda start, stop, y=y: y[start:stop])
        print(f"| {name} | 1 | {where} | {worst:.2e} |", flush=True)
        del x, y
    return 0


def _parser() -> command.Parser:
    about = (__doc__ or "").partition("\n")[0]
    parser = command.Parser(prog="accuracy.py", description=about, allow_abbrev=False)
    parser.add_argument("--size", type=int, default=28, help="2^SIZE values (default: 28)")
    parser.add_argument("--backend", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--seed", type=int, default=0)
    return parser


def _check(args: argparse.Namespace) -> None:
    if not 0 <= args.size <= _LARGEST or args.seed < 0:
        raise ValueError(f"--size is from 0 to {_LARGEST}, --seed not negative")


if __name__ == "__main__":
    sys.exit(main())
