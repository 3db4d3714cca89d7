"""How far prefixes are from exact ones: distscan's on all ranks, and those of array libraries.

    mpirun -n 8 python launch/tools/accuracy.py sum [--size 28] [--backend auto|cpu|cuda] [--seed 0]
    mpirun -n 8 python launch/tools/accuracy.py conditions [--size 24] ...
    mpirun -n 8 python launch/tools/accuracy.py logs [--size 22] ...
    mpirun -n 8 python launch/tools/accuracy.py fsum [--size 14] [--arrays 4] [--json FILE] ...

Each scans 2^SIZE values, and prints the largest error of any prefix. The libraries that are
installed run on rank 0 alone, on the GPU where there is one. The values depend on the seed alone.

sum
    float32, uniform in [0, 1): multiples of 2^-24, so that float64 holds each prefix of up to 2^29
    of them exactly.
conditions
    The same over condition numbers. The condition number of a sum is the sum of all |x| divided by
    |the sum|. It bounds the relative error of the sum by that of its terms (Higham, Accuracy and
    Stability of Numerical Algorithms, 2002, section 4.2). The second half of the values takes
    nearly all of the first half back: the last prefix has the condition number of the column, and
    earlier prefixes have smaller ones.
logs
    logcumsumexp of float32, beside ``numpy.logaddexp.accumulate`` in float64. The values are
    uniform in [-RANGE, RANGE), or rise from -RANGE to RANGE, or fall. An error of the result y is a
    relative error of the sum. Above 1, y is also rounded to float32. So the error is divided by
    max(1, |y|). It is printed in units of 2^-24, half of float32's spacing at 1.
fsum
    "fsum" and "sum" of float64 and float32, over condition numbers up to 10^300, each by ARRAYS
    arrays. Exact sums and errors are integers of Python: no float comes between. --json writes the
    table as a file of docs/measured/; ``python docs/errors.py FILE`` draws it.

A sum's error also grows with the roundings of a prefix one after the other (Higham, likewise). In a
cumsum that adds element to element, these are as many as the elements before. distscan scans tiles,
adds up their totals in a fixed order, then those of ranks. On a CPU, distscan and PyTorch add in
float64, and round each prefix once; on GPUs distscan does so with dtype=np.float64.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tables
from numpy.typing import NDArray

import distscan
from distscan import binding, cli
from distscan.core.form import bounds
from distscan.mpi.agree import agreed
from distscan.mpi.communicators import Comm

Floats = NDArray[Any]
Peer = Callable[[Floats], tuple[str, Floats]]  # returns where it ran, and all prefixes
Judge = Callable[[Floats], Any]  # returns the errors of all prefixes: a number, or several


class Series(NamedTuple):
    """The scans of one table, and the data of its columns."""

    scans: Mapping[str, Callable[..., object]]  # such as distscan.scan
    peers: Mapping[str, Peer]
    columns: Sequence[tuple[Any, Callable[[], Floats]]]  # a name, and what draws all values
    judge: Callable[[Floats], Judge]  # of the values


class Row(NamedTuple):
    """A row of a table: a scan, and where it ran."""

    name: str
    ranks: int
    where: str  # "CPU" or "GPU"


Table = dict[Row, dict[Any, Any]]  # the largest errors by row and column


def measure(comm: Comm, bound: binding.Binding, series: Series) -> Table:
    """Return the largest errors on rank 0; collective. Columns of one name become one column."""
    table: Table = {}
    for column, draw in series.columns:
        with agreed(comm):
            x = draw() if comm.rank == 0 else None
            judge = None if x is None else series.judge(x)
        for row, y in prefixes(comm, bound, series, x):
            if judge is not None and y is not None:
                errors, cells = judge(y), table.setdefault(row, {})
                cells[column] = np.maximum(cells.get(column, 0.0), errors)  # NaN outlasts
    return table


def prefixes(
    comm: Comm, bound: binding.Binding, series: Series, x: Floats | None
) -> Iterator[tuple[Row, Floats | None]]:
    """Yield the prefixes of ``x`` [n] by each scan: both are on rank 0 alone; collective."""
    where = "GPU" if bound.name == "cuda" else "CPU"
    for name, scan in series.scans.items():
        yield Row(name, comm.size, where), scan_on_all(comm, bound, x, scan)
    for name, peer in series.peers.items():
        if x is not None:
            try:
                place, y = peer(x)
            except ImportError:
                continue
            yield Row(name, 1, place), y


def scan_on_all(
    comm: Comm, bound: binding.Binding, x: Floats | None, scan: Callable[..., object]
) -> Floats | None:
    """Scan ``x`` [n] of rank 0 in shards on all ranks; return the result on rank 0; collective."""
    n, dtype = comm.bcast(None if x is None else (len(x), x.dtype))
    with agreed(comm):
        y = None if x is None else np.empty_like(x)
        limits = [bounds(n, comm.size, rank) for rank in range(comm.size)]
        counts = [high - low for low, high in limits]
        shard = bound.memory.empty(counts[comm.rank], dtype)
        lane = bound.memory.Lane(max(shard.nbytes, 1))
        part = np.empty(shard.shape, dtype)
    comm.Scatterv((x, counts), part)
    with agreed(comm):
        lane.landing(shard)[:] = part
        lane.upload(shard)
    scan(shard, out=shard, comm=comm)
    with agreed(comm):
        bound.memory.synchronize()  # a lane does not wait for the scan
        part[:] = lane.download(shard)
    comm.Gatherv(part, (y, counts))
    return y


# ---- the array libraries -------------------------------------------------------------------


def by_numpy(scan: Callable[[Floats], Floats]) -> Peer:
    """Scan with NumPy."""
    return lambda x: ("CPU", scan(x))


def by_torch(name: str) -> Peer:
    """Scan with PyTorch, which adds float32 in float64 on a CPU."""

    def scan(x: Floats) -> tuple[str, Floats]:
        import torch  # noqa: PLC0415 - it may be absent

        device = "cuda" if torch.cuda.is_available() else "cpu"
        y = getattr(torch, name)(torch.from_numpy(x).to(device), 0).cpu().numpy()
        return "GPU" if device == "cuda" else "CPU", y

    return scan


def by_cupy(x: Floats) -> tuple[str, Floats]:
    """Add with CuPy."""
    import cupy  # noqa: PLC0415 - it may be absent

    try:
        return "GPU", cupy.cumsum(cupy.asarray(x)).get()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise ImportError(f"no GPU for CuPy: {error}") from error


SUMS: dict[str, Peer] = {
    "numpy.cumsum": by_numpy(np.cumsum),
    "torch.cumsum": by_torch("cumsum"),
    "cupy.cumsum": by_cupy,
}

# ---- sum, conditions -----------------------------------------------------------------------

CONDITIONS = (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000)
PIECE = 1 << 20  # elements that are judged at a time


def uniform(n: int, condition: int, seed: int) -> Floats:
    """Return ``n`` float32; the sum of all has the ``condition`` number."""
    x = np.random.default_rng(seed).random(n, np.float32)
    if condition > 1:
        # (1 + back) / (1 - back) is the condition number.
        back = (condition - 1) / (condition + 1)
        x[n // 2 :] = np.rint(x[: n - n // 2] * 2.0**24 * back) / -(2.0**24)
    return x


def relative_errors(x: Floats, y: Floats) -> tuple[float, float]:
    """Return the largest errors of prefixes: divided by the prefix, and by that of all |x|."""
    relative = scaled = plain = absolute = 0.0
    for low in range(0, len(x), PIECE):
        piece = x[low : low + PIECE]
        exact = np.cumsum(piece, dtype=np.float64) + plain
        sizes = np.cumsum(np.abs(piece), dtype=np.float64) + absolute
        plain, absolute = float(exact[-1]), float(sizes[-1])
        error = np.abs(y[low : low + PIECE] - exact)
        relative, scaled = _largest(relative, error, np.abs(exact)), _largest(scaled, error, sizes)
    return relative, scaled


def _largest(worst: float, error: Floats, size: Floats) -> float:
    with np.errstate(divide="ignore"):  # where the prefix is 0, any error is infinite
        shares = np.divide(error, size, out=np.zeros_like(error), where=error != 0)
    return float(np.maximum(worst, shares.max()))  # NaN outlasts


def measure_sums(comm: Comm, bound: binding.Binding, args: argparse.Namespace) -> None:
    """Print the errors of float32 sums; collective."""
    n, conditions = 1 << args.size, CONDITIONS if args.kind == "conditions" else (1,)
    columns = [(c, partial(uniform, n, c, args.seed)) for c in conditions]
    scans = {
        "distscan.scan": distscan.scan,
        "distscan.scan, dtype=np.float64": partial(distscan.scan, dtype=np.float64),
    }
    series = Series(scans, SUMS, columns, lambda x: partial(relative_errors, x))
    table = measure(comm, bound, series)
    if comm.rank > 0:
        return
    shape = "that rise and fall" if args.kind == "conditions" else "uniform in [0, 1)"
    print(f"sum of 2^{args.size} float32 {shape}, seed {args.seed}; unit roundoff 2^-24")
    titles = ["largest relative error"]
    if args.kind == "conditions":
        titles = [f"{titles[0]}, by condition number",
                  "the same, divided by each prefix's condition number"]  # fmt: skip
    for i, title in enumerate(titles):
        print_table(title, conditions, table, lambda errors, i=i: f"{errors[i]:.2e}")


# ---- logs ----------------------------------------------------------------------------------

RANGES = (0.01, 1, 10, 80, 300, 10_000)
ORDERS = ("random", "rising", "falling")


def ordered(order: str, extent: float, n: int, seed: int) -> Floats:
    """Return ``n`` float32 from -extent to extent, in an order."""
    if order == "random":
        x = np.random.default_rng(seed).uniform(-extent, extent, n)
    else:
        x = np.linspace(-extent, extent, n) * (1 if order == "rising" else -1)
    return x.astype(np.float32)


def log_error(exact: NDArray[np.float64], y: Floats) -> float:
    """Return the largest error of results, in units of 2^-24 of max(1, |y|)."""
    errors = np.abs(y - exact) / np.maximum(1, np.abs(exact))
    return float(errors.max(initial=0) * 2**24)  # NaN outlasts


def measure_logs(comm: Comm, bound: binding.Binding, args: argparse.Namespace) -> None:
    """Print the errors of logcumsumexp; collective."""
    peers = {
        "numpy.logaddexp.accumulate": by_numpy(np.logaddexp.accumulate),
        "torch.logcumsumexp": by_torch("logcumsumexp"),
    }

    scans = {"distscan.logcumsumexp": distscan.logcumsumexp}

    def judge(x: Floats) -> Judge:
        return partial(log_error, np.logaddexp.accumulate(x, dtype=np.float64))

    if comm.rank == 0:
        print(f"logcumsumexp of 2^{args.size} float32, seed {args.seed}; errors in 2^-24")
    for order in ORDERS:
        columns = [(e, partial(ordered, order, e, 1 << args.size, args.seed)) for e in RANGES]
        table = measure(comm, bound, Series(scans, peers, columns, judge))
        if comm.rank == 0:
            print_table(f"{order}, range", RANGES, table, "{:.1f}".format)


# ---- fsum ----------------------------------------------------------------------------------
# The method is that of Ogita, Rump and Oishi ("Accurate Sum and Dot Product", 2005, algorithm 6.1),
# for sums instead of dot products, and without its last step, a permutation.

POWERS = (0, 4, 8, 12, 16, 20, 40, 70, 100, 200, 300)  # condition numbers, as powers of 10
UNIT = 1074  # bits: every float64 is an integer times 2^-1074


class Kind(NamedTuple):
    """A type of floats, and the values that it allows."""

    dtype: type
    most: int  # the largest power of 10 among condition numbers
    top: int  # values are below 2^top, so that no sum of them overflows


KINDS = {"float64": Kind(np.float64, 300, 1000), "float32": Kind(np.float32, 70, 104)}


def integer(value: float) -> int:
    """Return a float in units of 2^-UNIT."""
    numerator, denominator = float(value).as_integer_ratio()
    return (numerator << UNIT) // denominator


def conditioned(kind: Kind, power: int, n: int, seed: Sequence[int]) -> Floats:
    """Return ``n`` values; the sum of all has the condition number 10^power.

    The first half is positive, of random exponents that fill the range. Each value of the second
    half takes the exact sum of those before it to where the condition number is a chosen one, as
    far as one float can. These numbers rise from 1 by equal factors, with a random part in each.
    """
    random = np.random.default_rng([*seed, power])
    bits = int(np.ceil(power * np.log2(10)))
    rises = n if power == 0 else n // 2
    exponents = random.integers(kind.top - bits, kind.top, rises, endpoint=True)
    exponents[:1] = kind.top  # the sum of the first half has the size of its range
    x = np.ldexp(random.uniform(0.5, 1, rises), exponents).astype(kind.dtype)
    values = [float(value) for value in x]
    total = absolute = sum(map(integer, values))
    steps = n - rises
    for i, share in enumerate(random.random(steps)):
        # The condition number after this value: 10^log.
        log = power if i == steps - 1 else power * (i + share) / steps
        condition = round(2.0**60 * 10 ** (log % 1)) * 10 ** int(log)
        units = (absolute << 60) // condition - total
        values.append(float(kind.dtype(units / (1 << UNIT))))
        total += integer(values[-1])
        absolute += abs(integer(values[-1]))
    return np.array(values, kind.dtype)


def exact_sums(x: Floats) -> list[int]:
    """Return all prefix sums in units of 2^-UNIT."""
    return list(accumulate(map(integer, x.tolist())))


def exact_errors(sums: Sequence[int], y: Floats) -> Iterator[float]:
    """Yield the relative error of each prefix."""
    for value, total in zip(y.tolist(), sums, strict=True):
        if not np.isfinite(value):
            yield np.inf
        elif difference := abs(integer(value) - total):
            yield difference / abs(total) if total else np.inf
        else:
            yield 0.0


def measure_fsum(comm: Comm, bound: binding.Binding, args: argparse.Namespace) -> None:
    """Print the errors of exact sums; collective."""
    names, rows = ["", "ranks", "on", *(f"10^{power}" for power in POWERS)], []
    scans = {"distscan, fsum": partial(distscan.scan, op="fsum"), "distscan, sum": distscan.scan}

    def judge(x: Floats) -> Judge:
        sums = exact_sums(x)
        return lambda y: max(exact_errors(sums, y))

    for title, kind in KINDS.items():
        columns = [
            (power, partial(conditioned, kind, power, 1 << args.size, (args.seed, number)))
            for power in POWERS
            for number in range(args.arrays)
            if power <= kind.most
        ]
        table = measure(comm, bound, Series(scans, SUMS, columns, judge))
        for (name, ranks, where), errors in table.items():
            cells = [f"{errors[power]:.1e}" if power in errors else None for power in POWERS]
            rows.append([f"{name}, {title}", ranks, where, *cells])
    if comm.rank > 0:
        return
    print("\n".join([tables.head(names), *map(tables.line, rows)]))
    if args.json is not None:
        launcher = f"mpirun -n {comm.size} " * (comm.size > 1)
        contents = {
            "title": f"Largest relative error of prefix sums over condition numbers, {args.arrays} "
            f"arrays of 2^{args.size} values",
            "command": f"{launcher}python launch/tools/accuracy.py fsum --backend "
            f"{bound.name} --json {args.json}; python docs/errors.py {args.json}",
            "columns": names,
            "rows": rows,
        }
        tables.update(args.json, contents)


# ---- the command line ----------------------------------------------------------------------

MEASUREMENTS = {
    "sum": measure_sums,
    "conditions": measure_sums,
    "logs": measure_logs,
    "fsum": measure_fsum,
}
SIZES = {  # the least, the default and the largest power of 2
    "sum": (1, 28, 29),
    "conditions": (1, 24, 29),
    "logs": (1, 22, 30),
    "fsum": (8, 14, 20),  # 2^20 integers of 2,000 bits are 300 MB
}


def print_table(
    title: str, columns: Sequence[Any], table: Table, text: Callable[[Any], str]
) -> None:
    """Print a line for each scan, with a cell for each column."""
    names = [title] if len(columns) == 1 else [f"{column:g}" for column in columns]
    print(f"\n{title}\n" if len(columns) > 1 else "")
    print(tables.head(["", "ranks", "on", *names]))
    for row, errors in table.items():
        print(tables.line([*row, *(text(errors[column]) for column in columns)]), flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Run on every rank; return the exit status, the same on each."""
    return cli.run("accuracy", _main, argv)


def _main(comm: Comm, argv: Sequence[str]) -> int:
    args = cli.arguments(comm, argv, _parser(), _check)
    if args is None:
        return 0
    MEASUREMENTS[args.kind](comm, binding.bind(comm, args.backend, lambda message: None), args)
    return 0


def _parser() -> cli.Parser:
    about = (__doc__ or "").partition("\n")[0]
    parser = cli.Parser(prog="accuracy.py", description=about)
    add = parser.add_argument
    add("kind", choices=MEASUREMENTS)
    defaults = ", ".join(f"{size} for {kind}" for kind, (_, size, _) in SIZES.items())
    add("--size", type=int, help=f"2^SIZE values (default: {defaults})")
    add("--backend", choices=("auto", "cpu", "cuda"), default="auto")
    add("--seed", type=int, default=0)
    add("--arrays", type=int, default=4, help="of fsum, for each column (default: 4)")
    add("--json", type=Path, metavar="FILE", help="write the table of fsum to FILE, too")
    return parser


def _check(args: argparse.Namespace) -> None:
    least, size, most = SIZES[args.kind]
    args.size = size if args.size is None else args.size
    if not least <= args.size <= most or args.arrays < 1 or args.seed < 0:
        raise ValueError(f"--size is from {least} to {most}, --arrays from 1, --seed not negative")
    if args.json is not None and args.kind != "fsum":
        raise ValueError("--json is for fsum")


if __name__ == "__main__":
    sys.exit(main())
