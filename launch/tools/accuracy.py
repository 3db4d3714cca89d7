"""How far float32 sums are from exact ones: distscan's, and those of the array libraries.

    mpirun -n 8 python launch/tools/accuracy.py [--size 28] [--backend auto|cpu|cuda] [--seed 0]
    mpirun -n 8 python launch/tools/accuracy.py --conditions [--size 24] ...

Scans 2^SIZE values and prints the largest relative error of any prefix: of distscan on all ranks,
then of each library that is installed on rank 0 alone, on the GPU where there is one. The values
depend on the seed and not on the number of ranks. They are multiples of 2^-24 below 1, so float64
holds every prefix of up to 2^29 of them exactly: what errors are measured against is exact.

The values are uniform in [0, 1). With --conditions there is a table over condition numbers too: the
condition number of a sum is the sum of all |x| divided by |the sum|, and bounds how much larger the
relative error of the sum is than that of its terms (Higham, Accuracy and Stability of Numerical
Algorithms, 2002, section 4.2). The first half of the values rises, the second half takes nearly all
of it back: prefixes are as ill-conditioned as the column says at the end, and less before.

A sum's error also grows with the roundings that a prefix goes through one after the other (the same
section). In a cumsum that adds element to element these are as many as the elements before it.
distscan scans tiles, adds up their totals in a fixed order, then those of ranks: a prefix goes
through the roundings of one tile, of the totals before it, and of the ranks. On a CPU both distscan
and PyTorch add in float64 and round each prefix once; on GPUs distscan does with dtype=np.float64
and a float32 out.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import peers
from numpy.typing import NDArray

import distscan
from distscan import binding, cli
from distscan.core.form import bounds
from distscan.mpi.agree import agreed
from distscan.mpi.communicators import Comm

PIECE = 1 << 20  # values made and compared at a time
_LARGEST = 29  # up to 2^29 values float64 is exact
CONDITIONS = (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000)
Floats = NDArray[np.float32]


class Sums(NamedTuple):
    """Exact sums of values, and of what they are without their signs."""

    plain: float
    absolute: float


class Errors(NamedTuple):
    """The largest errors of any prefix."""

    relative: float  # to the prefix
    scaled: float  # to the same sum without signs: the relative error by the condition number


@dataclass(frozen=True)
class Values:
    """``n`` float32 values; the sum of all has the ``condition`` number."""

    seed: int
    n: int
    condition: int = 1

    def pieces(self, low: int, high: int) -> Iterator[tuple[int, Floats]]:
        """Yield the values ``low..high`` in pieces: (index of the first, values)."""
        rises = self.n if self.condition == 1 else self.n // 2
        yield from self._uniform(low, min(high, rises))
        # (1 + back) / (1 - back) is the condition number.
        back = (self.condition - 1) / (self.condition + 1)
        for first, piece in self._uniform(max(low, rises) - rises, high - rises):
            units = np.rint(piece * 2.0**24 * back)
            yield first + rises, (-units / 2**24).astype(np.float32)

    def _uniform(self, low: int, high: int) -> Iterator[tuple[int, Floats]]:
        for start in range(low // PIECE * PIECE, high, PIECE):
            first, stop = max(low, start), min(high, start + PIECE)
            if first < stop:
                made = np.random.default_rng([self.seed, start // PIECE]).random(PIECE, np.float32)
                yield first, made[first - start : stop - start]

    def whole(self) -> Floats:
        """Return all values."""
        x = np.empty(self.n, np.float32)
        for start, piece in self.pieces(0, self.n):
            x[start : start + len(piece)] = piece
        return x

    def sums(self, low: int, high: int) -> Sums:
        """Sum the values ``low..high``, exactly."""
        plain = absolute = 0.0
        for _, piece in self.pieces(low, high):
            plain += float(piece.sum(dtype=np.float64))
            absolute += float(np.abs(piece).sum(dtype=np.float64))
        return Sums(plain, absolute)


def largest_errors(
    values: Values, low: int, high: int, before: Sums, result: Callable[[int, int], Floats]
) -> Errors:
    """Find the largest errors among the prefixes ``low..high``.

    ``before`` has the exact sums of the values before ``low``; ``result(start, stop)`` returns the
    prefixes that are judged.
    """
    relative = scaled = 0.0
    plain, absolute = before
    for start, piece in values.pieces(low, high):
        exact = np.cumsum(piece, dtype=np.float64) + plain
        sizes = np.cumsum(np.abs(piece), dtype=np.float64) + absolute
        plain, absolute = float(exact[-1]), float(sizes[-1])
        error = np.abs(result(start, start + len(piece)) - exact)
        relative = _largest(relative, error, np.abs(exact))
        scaled = _largest(scaled, error, sizes)
    return Errors(relative, scaled)


def _largest(worst: float, error: NDArray[np.float64], size: NDArray[np.float64]) -> float:
    with np.errstate(divide="ignore"):  # where the prefix is 0 any error is infinite
        shares = np.divide(error, size, out=np.zeros_like(error), where=error != 0)
    return float(np.maximum(worst, shares.max()))  # which NaN outlasts


# ---- who is judged -------------------------------------------------------------------------


OURS = {"distscan.scan": np.float32, "distscan.scan, dtype=np.float64": np.float64}


def ours(comm: Comm, bound: binding.Binding, values: Values, dtype: type) -> Errors:
    """Return the largest errors of distscan's float32 result, of sums in ``dtype``; collective."""
    low, high = bounds(values.n, comm.size, comm.rank)
    with agreed(comm):
        x = bound.memory.empty(high - low, np.dtype(np.float32))
        lane = bound.memory.Lane(PIECE * 4)
        for start, piece in values.pieces(low, high):
            part = x[start - low : start - low + len(piece)]
            lane.landing(part)[:] = piece
            lane.upload(part)
    distscan.scan(x, comm=comm, dtype=dtype, out=x)
    earlier = comm.allgather(values.sums(low, high))[: comm.rank]
    with agreed(comm):
        bound.memory.synchronize()  # a lane does not wait for the scan

        def result(start: int, stop: int) -> Floats:
            return lane.download(x[start - low : stop - low])

        before = Sums(sum(one.plain for one in earlier), sum(one.absolute for one in earlier))
        worst = largest_errors(values, low, high, before, result)
    return Errors(*(float(error) for error in np.max(comm.allgather(worst), axis=0)))


def errors_of_all(values: Values, y: Floats) -> Errors:
    """Return the largest errors of all prefixes."""
    return largest_errors(values, 0, values.n, Sums(0.0, 0.0), lambda start, stop: y[start:stop])


# ---- the table -----------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Run on every rank; return the exit status, the same on each."""
    return cli.run("accuracy", _main, argv)


def _main(comm: Comm, argv: Sequence[str]) -> int:
    args = cli.arguments(comm, argv, _parser(), _check)
    if args is None:
        return 0
    bound = binding.bind(comm, args.backend, lambda message: None)
    n = 1 << (args.size or (24 if args.conditions else 28))
    conditions = CONDITIONS if args.conditions else (1,)
    data = [Values(args.seed, n, condition) for condition in conditions]
    where = "GPU" if bound.name == "cuda" else "CPU"
    table = {
        (name, comm.size, where): [ours(comm, bound, values, dtype) for values in data]
        for name, dtype in OURS.items()
    }
    if comm.rank > 0:
        return 0
    for values in data:
        for name, at, y in peers.theirs(peers.SUMS, values.whole()):
            table.setdefault((name, 1, at), []).append(errors_of_all(values, y))
    kind = "that rise and fall" if args.conditions else "uniform in [0, 1)"
    print(f"sum of 2^{n.bit_length() - 1} float32 {kind}, seed {args.seed}; unit roundoff 2^-24")
    if args.conditions:
        _print_table("largest relative error, by condition number", data, table, 0)
        _print_table("the same, divided by each prefix's condition number", data, table, 1)
    else:
        _print_table("largest relative error", data, table, 0)
    return 0


def _print_table(
    title: str, data: list[Values], table: dict[tuple[str, int, str], list[Errors]], which: int
) -> None:
    """Print one of the two errors: a line for each library, a column for each condition number."""
    columns = [title]
    if len(data) > 1:
        print(f"\n{title}")
        sums = [values.sums(0, values.n) for values in data]
        columns = [f"{one.absolute / one.plain:.0f}" for one in sums]
    print(f"\n| | ranks | on | {' | '.join(columns)} |\n|---|---|---|{'---|' * len(columns)}")
    for (name, ranks, where), errors in table.items():
        cells = " | ".join(f"{error[which]:.2e}" for error in errors)
        print(f"| {name} | {ranks} | {where} | {cells} |", flush=True)


def _parser() -> cli.Parser:
    about = (__doc__ or "").partition("\n")[0]
    parser = cli.Parser(prog="accuracy.py", description=about, allow_abbrev=False)
    parser.add_argument(
        "--size", type=int, help="2^SIZE values (default: 28; 24 with --conditions)"
    )
    parser.add_argument("--conditions", action="store_true", help="over condition numbers, too")
    parser.add_argument("--backend", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--seed", type=int, default=0)
    return parser


def _check(args: argparse.Namespace) -> None:
    if (args.size is not None and not 1 <= args.size <= _LARGEST) or args.seed < 0:
        raise ValueError(f"--size is from 1 to {_LARGEST}, --seed not negative")


if __name__ == "__main__":
    sys.exit(main())
