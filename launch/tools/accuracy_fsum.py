"""How far prefix sums are from exact ones, over condition numbers up to 10^300.

    mpirun -n 2 python launch/tools/accuracy_fsum.py [--size 14] [--backend auto|cpu|cuda]
                                               [--arrays 4] [--seed 0] [--json FILE]

Prints the largest relative error of any prefix of some arrays, for distscan's "fsum" and "sum" on
all ranks, then for the libraries that are installed on rank 0 alone, on the GPU where there is one.
--json writes the table as a file of docs/measured/; ``python docs/errors.py FILE`` draws it.

The condition number of a sum is the sum of all |x| divided by |the sum|. A column's prefixes have
that one or less. The method is that of Ogita, Rump and Oishi ("Accurate Sum and Dot Product", 2005,
algorithm 6.1), for sums instead of dot products, and without its last step, a permutation: the
first half of the values is positive, of random exponents that fill the range. Each value of the
second half takes the exact sum so far to where the condition number is a chosen one, as far as one
float can. These numbers rise from 1 by equal factors, with a random part in each.

What errors are measured against are sums of Python's integers, and the errors are quotients of
integers: no float comes between.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, product
from pathlib import Path
from typing import Any

import numpy as np
import peers
import tables
from numpy.typing import NDArray

import distscan
from distscan import binding, cli
from distscan.mpi.communicators import Comm

POWERS = (0, 4, 8, 12, 16, 20, 40, 70, 100, 200, 300)  # condition numbers, as powers of 10
UNIT = 1074  # bits: every float64 is an integer times 2^-1074
_LARGEST = 20  # 2^20 integers of 2,000 bits are 300 MB
Floats = NDArray[Any]


@dataclass(frozen=True)
class Kind:
    """A type of floats, and the values that it allows."""

    dtype: type
    most: int  # the largest power of 10 among condition numbers
    top: int  # values are below 2^top, so that no sum of them overflows


KINDS = {"float64": Kind(np.float64, 300, 1000), "float32": Kind(np.float32, 70, 104)}


def integer(value: float) -> int:
    """Return a float in units of 2^-UNIT."""
    numerator, denominator = float(value).as_integer_ratio()
    return (numerator << UNIT) // denominator


def nearest(units: int, dtype: type) -> float:
    """Return a float of a type that is near an integer in units of 2^-UNIT."""
    return float(dtype(units / (1 << UNIT)))


def values(kind: Kind, power: int, n: int, seed: Sequence[int]) -> Floats:
    """Return ``n`` values; the sum of all has the condition number 10^power."""
    random = np.random.default_rng([*seed, power])
    bits = int(np.ceil(power * np.log2(10)))
    rises = n if power == 0 else n // 2
    exponents = random.integers(kind.top - bits, kind.top, rises, endpoint=True)
    exponents[:1] = kind.top  # the sum of the first half has the size of its range
    x = np.ldexp(random.uniform(0.5, 1, rises), exponents).astype(kind.dtype)
    found = [float(value) for value in x]
    total = absolute = sum(map(integer, found))
    steps = n - rises
    for i, share in enumerate(random.random(steps)):
        # The condition number behind this value: 10^log.
        log = power if i == steps - 1 else power * (i + share) / steps
        condition = round(2.0**60 * 10 ** (log % 1)) * 10 ** int(log)
        value = nearest((absolute << 60) // condition - total, kind.dtype)
        found.append(value)
        total += integer(value)
        absolute += abs(integer(value))
    return np.array(found, kind.dtype)


def exact(x: Floats) -> list[int]:
    """Return all prefix sums in units of 2^-UNIT."""
    return list(accumulate(map(integer, x.tolist())))


def errors(y: Floats, sums: Sequence[int]) -> Iterator[float]:
    """Yield the relative error of each prefix."""
    for value, true in zip(y.tolist(), sums, strict=True):
        if not np.isfinite(value):
            yield np.inf
        elif off := abs(integer(value) - true):
            yield off / abs(true) if true else np.inf
        else:
            yield 0.0


# ---- who is judged -------------------------------------------------------------------------


def ours(comm: Comm, bound: binding.Binding, x: Floats, op: str) -> Floats:
    """Return distscan's prefixes of all ranks; collective."""
    _, part = peers.ours(
        comm, bound, x, lambda shard: distscan.scan(shard, op, out=shard, comm=comm)
    )
    return np.concatenate(comm.allgather(part))


OURS = {"distscan, fsum": "fsum", "distscan, sum": "sum"}


# ---- the table -----------------------------------------------------------------------------

Table = dict[tuple[str, str, int, str], dict[int, float]]


def measure(comm: Comm, bound: binding.Binding, n: int, seeds: Sequence[Sequence[int]]) -> Table:
    """Return the largest errors, by type, library, ranks, place and condition number; collective.

    There is an array for each seed. The table is on rank 0 alone.
    """
    table: Table = {}
    where = "GPU" if bound.name == "cuda" else "CPU"
    for name, kind in KINDS.items():
        for power, seed in product(POWERS, seeds):
            if power > kind.most:
                continue
            x = values(kind, power, n, seed)
            found = [
                ((name, title, comm.size, where), ours(comm, bound, x, op))
                for title, op in OURS.items()
            ]
            if comm.rank > 0:
                continue
            for title, place, y in peers.theirs(peers.SUMS, x):
                found.append(((name, title, 1, place), y))
            sums = exact(x)
            for key, y in found:
                worst = table.setdefault(key, {})
                worst[power] = max(worst.get(power, 0.0), *errors(y, sums))
    return table


def main(argv: Sequence[str] | None = None) -> int:
    """Run on every rank; return the exit status, the same on each."""
    return cli.run("accuracy_fsum", _main, argv)


def _main(comm: Comm, argv: Sequence[str]) -> int:
    args = cli.arguments(comm, argv, _parser(), _check)
    if args is None:
        return 0
    bound = binding.bind(comm, args.backend, lambda message: None)
    seeds = [(args.seed, number) for number in range(args.arrays)]
    table = measure(comm, bound, 1 << args.size, seeds)
    if comm.rank > 0:
        return 0
    columns = ["", "ranks", "on", *(f"10^{power}" for power in POWERS)]
    rows = []
    for (kind, title, ranks, where), found in table.items():
        cells = [f"{found[power]:.1e}" if power in found else None for power in POWERS]
        rows.append([f"{title}, {kind}", ranks, where, *cells])
    print("\n".join([tables.head(columns), *map(tables.line, rows)]))
    if args.json is not None:
        launcher = f"mpirun -n {comm.size} " * (comm.size > 1)
        made = {
            "title": f"Largest relative error of prefix sums over condition numbers, {args.arrays} "
            f"arrays of 2^{args.size} values",
            "command": f"{launcher}python launch/tools/accuracy_fsum.py --backend "
            f"{bound.name} --json {args.json}; python docs/errors.py {args.json}",
            "columns": columns,
            "rows": rows,
        }
        tables.update(args.json, made)
    return 0


def _parser() -> cli.Parser:
    about = (__doc__ or "").partition("\n")[0]
    parser = cli.Parser(prog="accuracy_fsum.py", description=about, allow_abbrev=False)
    parser.add_argument("--size", type=int, default=14, help="2^SIZE values (default: 14)")
    parser.add_argument("--backend", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--arrays", type=int, default=4, help="for each column (default: 4)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table to FILE, too")
    return parser


def _check(args: argparse.Namespace) -> None:
    if not 8 <= args.size <= _LARGEST or args.arrays < 1 or args.seed < 0:
        raise ValueError(f"--size is from 8 to {_LARGEST}, --arrays from 1, --seed not negative")


if __name__ == "__main__":
    sys.exit(main())
