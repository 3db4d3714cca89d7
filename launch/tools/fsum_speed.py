"""The cost of exact sums, beside plain sums and other libraries, in nanoseconds per element.

    python launch/tools/fsum_speed.py scans [--size LOG2] [--backend cpu|cuda] [--parts] [--digits]
                                            [--repeat 5] [--json FILE]
    python launch/tools/fsum_speed.py totals [--sizes 20 24] [--reproblas FOLDER]
                                             [--repeat 3] [--json FILE]

scans
    "fsum" beside "sum" of the same type. One rank scans 2^SIZE elements, on one core or one GPU, by
    whole calls: 2^28 on a GPU, 2^24 without one. The kinds of data differ in the bits that their
    sums need:

    one word      float32 and float64, multiples of 2^-24 in [0, 1); float16 of nearly all sizes
    two words     float32, from 2^-11 to 2^10; float64, multiples of 2^-53 in [0, 1)
    the same      of elements that have two words each: float32, from 2^-1 to 2^40; float64, from
                  2^-11 to 2^10
    digits        with --digits: float64, from 2^-100 to 2^100, and over nearly the whole range
                  (up to a microsecond an element)

    "window=" is fsum with a window: its elements are checked. With --parts, the parts of a call are
    timed, too: the pass that finds the window, and, where kernels add, their scans by two
    strategies with the window known. All of a row take turns; the times are medians. On a GPU they
    are the device's, on a CPU the processor's, so that other processes disturb less.
totals
    The time and the error of the total of 2^SIZE float64 on one core, in three kinds of data:

    uniform      multiples of 2^-53 in [0, 1)
    wide         normal numbers times powers of 2 from 2^-100 to 2^100
    cancelling   wide numbers, their negatives, and some 2^-100: the sum is that of the latter

    NumPy, Python's ``math.fsum``, Neal's superaccumulators (pip install xsum) and ReproBLAS give
    one total. The scans of NumPy and distscan give all prefixes; the last one is compared. The time
    is the processor's. The error is given in units in the last place of the exact total: the sum of
    the elements and -total, which ``math.fsum`` rounds once. A total that is rounded correctly has
    an error of at most 0.5.
    FOLDER is a checkout of ReproBLAS that was built for shared libraries:

        make update && make CC='cc -fPIC'
"""

import argparse
import ctypes
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any, NamedTuple

import numpy as np
import tables
from mpi4py import MPI
from numpy.typing import NDArray

import distscan
from distscan.bench.timing import Gpu, Host
from distscan.core import arrays
from distscan.core.form import Extents
from distscan.engine import shard_scan
from distscan.engine.fsum_scan import window_of
from distscan.fsum.words import narrowest_accumulator
from distscan.options import RunOptions, ScanOptions

Call = Callable[[], object]
Floats = NDArray[Any]
Sum = Callable[[Floats], float]
Rows = list[list[Any]]

# ---- scans: exact sums beside plain ones ---------------------------------------------------


class Kind(NamedTuple):
    """A kind of data: floats whose exponents are uniform in low..high, or multiples in [0, 1)."""

    title: str
    dtype: type
    exponents: tuple[int, int] | None
    window: tuple[int, int]

    def values(self, n: int) -> Floats:
        """Return ``n`` values, all in the window."""
        random = np.random.default_rng(7)
        if self.exponents is None:
            low, _ = self.window
            return np.ldexp(random.integers(1 << -low, size=n), low).astype(self.dtype)
        fractions = random.uniform(0.5, 1, n) * random.choice([-1.0, 1.0], n)
        exponents = random.integers(*self.exponents, n, endpoint=True)
        return np.ldexp(fractions, exponents).astype(self.dtype)


KINDS = [
    Kind("float16, one word", np.float16, (-13, 4), (-24, 5)),
    Kind("float32, one word", np.float32, None, (-24, 0)),
    Kind("float32, two words", np.float32, (-10, 10), (-34, 10)),
    Kind("float32, elements of two words", np.float32, (0, 40), (-24, 41)),
    Kind("float64, one word", np.float64, None, (-24, 0)),
    Kind("float64, two words", np.float64, None, (-53, 0)),
    Kind("float64, elements of two words", np.float64, (-10, 10), (-63, 10)),
]
OF_DIGITS = [
    Kind("float64, 2^-100 to 2^100", np.float64, (-99, 100), (-153, 101)),
    Kind("float64, 2^-900 to 2^900", np.float64, (-899, 900), (-953, 901)),
]
PARTS = ["single-pass", "reduce-scan"]


def compiled(x: Any, y: Any, strategy: str) -> Call | None:
    """Return the exact scan of ``x`` into ``y`` by kernels; None where digits are added."""
    op = narrowest_accumulator(window_of(x)[0], x.dtype, y.dtype)
    if op is None or not shard_scan.adds_exactly(x.dtype, y.dtype, arrays.gpu(x)):
        return None
    options = ScanOptions(op, dtype=y.dtype), RunOptions(strategy=strategy, threads=1)
    extents = Extents.of(x.shape, None)
    scan = shard_scan.make(extents, x.dtype, arrays.gpu(x), *options, ranks=1)
    return lambda: scan.steps.finish(scan.steps.begin(x, y), scan.form.seed)


def duration(machine: Host, call: Call) -> float:
    """Return the seconds of a call."""
    machine.flush()
    device = machine.seconds([call])
    if device is not None:
        return device
    begin = process_time()
    call()
    return process_time() - begin


def measure_scans(
    machine: Host, kind: Kind, n: int, repeat: int, parts: bool
) -> dict[str, str | None]:
    """Return a row of the table, by column."""
    x = machine.xp.asarray(kind.values(n))
    y = machine.xp.empty_like(x)
    scan = partial(distscan.scan, x, out=y, comm=MPI.COMM_SELF, threads=1)
    calls: dict[str, Call | None] = {
        "copy": partial(machine.xp.copyto, y, x),
        f"{machine.xp.__name__}.cumsum": partial(machine.xp.cumsum, x, dtype=x.dtype, out=y),
        "sum": partial(scan, "sum"),
        "fsum": partial(scan, "fsum"),
        "window=": partial(scan, "fsum", window=kind.window),
    }
    if parts:
        calls |= {strategy: compiled(x, y, strategy) for strategy in PARTS}
        calls["finding the window"] = partial(window_of, x)
    samples: dict[str, list[float]] = {name: [] for name in calls}
    few = min(n, 1 << 16)
    want = x.dtype.type(math.fsum(x[:few].tolist()))
    for turn in range(-1, repeat):  # the first is not counted
        for name, call in calls.items():
            if call is None:
                continue
            y[few - 1] = np.nan
            seconds = duration(machine, call)
            if name in {"fsum", "window=", *PARTS} and y[few - 1] != want:
                raise ArithmeticError(f"{kind.title}, {name}: {y[few - 1]} instead of {want}")
            if turn >= 0:
                samples[name].append(seconds)
    times = {
        name: median(seconds) * 1e9 / n if seconds else None for name, seconds in samples.items()
    }
    cells = {name: time and _three_digits(time) for name, time in times.items()}
    shares = {f"{name} / sum": f"{times[name] / times['sum']:.2f}" for name in ("fsum", "window=")}
    return {"": kind.title, **cells, **shares}


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def scans(args: argparse.Namespace) -> dict[str, Any]:
    """Print the table, and return it."""
    machine = _machine(args.backend)
    size = args.size if args.size is not None else 28 if machine.backend == "cuda" else 24
    rows: Rows = []
    for kind in KINDS + OF_DIGITS * args.digits:
        row = measure_scans(machine, kind, 1 << size, args.repeat, args.parts)
        if not rows:
            print(tables.head(list(row)))
        rows.append([*row.values()])
        print(tables.line(rows[-1]), flush=True)
        machine.release()
    return {
        "title": f"Exact sums beside plain ones, 2^{size} elements, ns an element",
        "spread": f"medians of {args.repeat}",
        "columns": list(row),
        "rows": rows,
    }


def _machine(backend: str | None) -> Host:
    """Return the GPU, or the CPU where it is asked for, or there is no other."""
    if backend != "cpu":
        try:
            return Gpu("")
        except Exception:
            if backend == "cuda":
                raise
    return Host("")


# ---- totals: exact and reproducible sums, side by side -------------------------------------


def uniform(n: int, random: np.random.Generator) -> Floats:
    """Return multiples of 2^-53 in [0, 1)."""
    return random.random(n)


def wide(n: int, random: np.random.Generator) -> Floats:
    """Return numbers over a range of some 2^200."""
    return np.ldexp(random.standard_normal(n), random.integers(-100, 101, n))


def cancelling(n: int, random: np.random.Generator) -> Floats:
    """Return numbers whose sum is far smaller than each."""
    some = wide(3 * n // 8, random)
    small = np.ldexp(random.random(n - 2 * len(some)), -100)
    return random.permutation(np.concatenate([some, -some, small]))


DATA = {"uniform": uniform, "wide": wide, "cancelling": cancelling}
UNIFORM = (-53, 0)  # the window of uniform numbers


def error(total: float, x: Sequence[float]) -> float:
    """Return how far a total of ``x`` is from the exact one, in units in the last place of that."""
    if not math.isfinite(total):
        return math.inf
    difference, exact = abs(math.fsum([*x, -total])), math.fsum(x)
    if exact == 0:
        return math.inf if difference else 0.0
    return difference / math.ulp(exact)


def sums(n: int, archive: Path | None) -> Iterator[tuple[str, str, Sum]]:
    """Yield the name, the kind of the result, and the function that returns the total."""
    y = np.empty(n)

    def last(scan: Callable[..., object], **options: Any) -> Sum:
        def total(x: Floats) -> float:
            scan(x, out=y, **options)
            return float(y[-1])

        return total

    yield "numpy.sum", "total", lambda x: float(np.sum(x))
    if archive is not None:
        yield "ReproBLAS, reproBLAS_dsum", "total", _reproblas(archive)
    try:
        import xsum  # noqa: PLC0415 - it may be absent
    except ImportError:
        print("no xsum: pip install xsum", file=sys.stderr)
    else:
        for name in ("xsum_large", "xsum_small"):
            yield f"xsum, {name}", "total", _xsum(getattr(xsum, name))
    yield "math.fsum", "total", math.fsum
    yield "numpy.cumsum", "prefixes", last(np.cumsum)
    yield "distscan.cumsum", "prefixes", last(distscan.cumsum, threads=1)
    yield "distscan.fcumsum", "prefixes", last(distscan.fcumsum, threads=1)
    window = last(distscan.fcumsum, threads=1, window=UNIFORM)
    yield f"distscan.fcumsum, window={UNIFORM}", "prefixes", window


def _xsum(accumulator: Callable[[], Any]) -> Sum:
    def total(x: Floats) -> float:
        sums = accumulator()
        sums.add(x)
        return float(sums.round())

    return total


def _reproblas(archive: Path) -> Sum:
    """Link an archive as a shared library, and load it."""
    with tempfile.TemporaryDirectory() as where:
        target = Path(where) / "libreproblas.so"
        command = ["cc", "-shared", "-o", str(target), "-Wl,--whole-archive", str(archive)]
        subprocess.run([*command, "-Wl,--no-whole-archive", "-lm"], check=True)
        dsum = ctypes.CDLL(str(target)).reproBLAS_dsum
    dsum.restype, dsum.argtypes = ctypes.c_double, [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
    return lambda x: float(dsum(x.size, x.ctypes.data, 1))


def fastest(work: Callable[[], float], repeat: int) -> tuple[float, float]:
    """Return the processor's seconds of the fastest call, and its result; one call warms up."""
    result, seconds = work(), math.inf
    for _ in range(repeat):
        begin = process_time()
        result = work()
        seconds = min(seconds, process_time() - begin)
    return seconds, result


def measure_totals(size: int, repeat: int, archive: Path | None) -> Rows:
    """Return the rows of the table for 2^size elements."""
    n = 1 << size
    data = {name: make(n, np.random.default_rng([size, 7])) for name, make in DATA.items()}
    rows: Rows = []
    for title, result, add in sums(n, archive):
        row: list[Any] = [title, result, f"2^{size}"]
        for name, x in data.items():
            if "window" in title and name != "uniform":
                row += [None, None]
                continue
            seconds, total = fastest(partial(add, x), repeat)
            off = error(total, x.tolist())
            row += [f"{seconds / n * 1e9:.2f}", f"{off:.2f}" if off < 1000 else f"{off:.0e}"]
        print(tables.line(row), flush=True)
        rows.append(row)
    return rows


def totals(args: argparse.Namespace) -> dict[str, Any]:
    """Print the table, and return it."""
    names = ["", "result", "n"]
    for name in DATA:
        names += [f"{name}: ns", "ulp"]
    print(tables.head(names))
    rows: Rows = []
    for size in args.sizes:
        rows += measure_totals(size, args.repeat, args.reproblas)
    return {
        "spread": f"processor time, the fastest of {args.repeat} calls",
        "columns": names,
        "rows": rows,
    }


# ---- the command line ----------------------------------------------------------------------


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read and check the arguments."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--repeat", type=int, default=5, help="calls of each (default: 5)")
    common.add_argument("--json", type=Path, metavar="FILE", help="write the table to FILE, too")
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    add = commands.add_parser("scans", parents=[common]).add_argument
    add("--size", type=int, help="2^SIZE elements (default: 28 on a GPU, 24 without one)")
    add("--backend", choices=("cpu", "cuda"), help="(default: cuda where there is a GPU)")
    add("--parts", action="store_true", help="time the parts of a call, too")
    add("--digits", action="store_true", help="also data whose sums need digits, which takes long")
    add = commands.add_parser("totals", parents=[common]).add_argument
    add("--sizes", type=int, nargs="+", default=[20, 24], help="2^SIZE elements (default: 20 24)")
    add("--reproblas", type=Path, metavar="FOLDER", help="a checkout of ReproBLAS that was built")
    args = parser.parse_args(argv)
    if args.repeat < 1:
        parser.error("--repeat is from 1")
    if args.command == "scans" and not 0 <= (args.size or 0) <= 30:
        parser.error("--size is from 0 to 30")
    if args.command == "totals" and not all(4 <= size <= 30 for size in args.sizes):
        parser.error("--sizes are from 4 to 30")
    if args.command == "totals" and args.reproblas is not None:
        args.reproblas = next(args.reproblas.glob("build/**/libreproblas.a"), None)
        if args.reproblas is None:
            parser.error("the FOLDER of --reproblas has no libreproblas.a; --help: how to build it")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and write the JSON file."""
    args = parse(argv)
    contents = scans(args) if args.command == "scans" else totals(args)
    if args.json is not None:
        command = tables.command("fsum_speed.py", argv)
        tables.update(args.json, {**contents, "command": command})
    return 0


if __name__ == "__main__":
    sys.exit(main())
