"""Exact and reproducible sums, side by side: nanoseconds per element, and the error of the total.

    python launch/tools/compare_fsum.py [--sizes 20 24] [--repeat 3] [--reproblas FOLDER]
                                        [--json FILE]

Adds 2^SIZE float64 on one core, in three kinds of data:

    uniform      multiples of 2^-53 in [0, 1)
    wide         normal numbers times powers of 2 from 2^-100 to 2^100
    cancelling   wide numbers, their negatives, and some 2^-100: the sum is that of the latter

NumPy, Python's ``math.fsum``, Neal's superaccumulators (pip install xsum) and ReproBLAS give one
total. The scans of NumPy and distscan give all prefixes; the last one is compared. The time is the
processor's, so that other processes disturb less.

FOLDER is a checkout of ReproBLAS that was built for shared libraries:

    make update && make CC='cc -fPIC'

The error is given in units in the last place of the exact total, which is computed in integers of
Python. A total that is rounded correctly has an error of at most 0.5.
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
from time import process_time
from typing import Any

import numpy as np
import tables
from numpy.typing import NDArray

import distscan

UNIT = 1200  # exact sums are integers times 2^-UNIT
_HALF = 27  # bits of the lower half of a significand
_LARGEST = 26  # sums of 2^26 halves are exact in float64
Floats = NDArray[np.float64]
Sum = Callable[[Floats], float]


# ---- data, and its exact sum ---------------------------------------------------------------


def uniform(n: int, random: np.random.Generator) -> Floats:
    """Return multiples of 2^-53 in [0, 1)."""
    return random.random(n)


def wide(n: int, random: np.random.Generator) -> Floats:
    """Return numbers over a range of some 2^200."""
    found: Floats = np.ldexp(random.standard_normal(n), random.integers(-100, 101, n))
    return found


def cancelling(n: int, random: np.random.Generator) -> Floats:
    """Return numbers whose sum is far smaller than each."""
    some = wide(3 * n // 8, random)
    small = np.ldexp(random.random(n - 2 * len(some)), -100)
    found: Floats = random.permutation(np.concatenate([some, -some, small]))
    return found


DATA = {"uniform": uniform, "wide": wide, "cancelling": cancelling}
UNIFORM = (-53, 0)  # the window of uniform numbers


def exact(x: Floats) -> int:
    """Return the sum in units of 2^-UNIT: halves of significands, added up for each exponent."""
    fractions, exponents = np.frexp(x)
    whole = np.ldexp(fractions, 53).astype(np.int64)
    lowest = int(exponents.min())
    places = exponents - lowest
    # Weights are float64, which holds these sums exactly.
    high = np.bincount(places, whole >> _HALF)
    low = np.bincount(places, whole & ((1 << _HALF) - 1))
    up = UNIT - 53 + lowest
    return sum(
        ((int(upper) << _HALF) + int(lower)) << (place + up)
        for place, (upper, lower) in enumerate(zip(high, low, strict=True))
    )


def error(total: float, true: int) -> float:
    """Return how far a total is from the exact one, in units in the last place of that one."""
    if not math.isfinite(total):
        return math.inf
    numerator, denominator = float(total).as_integer_ratio()
    off = abs((numerator << UNIT) // denominator - true)
    ulp = abs(true).bit_length() - 53
    return off / (1 << ulp) if true else math.inf * bool(off)


# ---- who is compared -----------------------------------------------------------------------


def contenders(n: int, archive: Path | None) -> Iterator[tuple[str, str, Sum]]:
    """Yield the name, what the result is, and the function that returns the total."""
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
        command = ["cc", "-shared", "-o", target, "-Wl,--whole-archive", archive]
        subprocess.run([*command, "-Wl,--no-whole-archive", "-lm"], check=True)
        dsum = ctypes.CDLL(str(target)).reproBLAS_dsum
    dsum.restype, dsum.argtypes = ctypes.c_double, [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
    return lambda x: float(dsum(x.size, x.ctypes.data, 1))


# ---- the table -----------------------------------------------------------------------------


def fastest(work: Callable[[], float], repeat: int) -> tuple[float, float]:
    """Return the processor's seconds of the fastest call, and its result; one call warms up."""
    result, seconds = work(), math.inf
    for _ in range(repeat):
        begin = process_time()
        result = work()
        seconds = min(seconds, process_time() - begin)
    return seconds, result


def measure(size: int, repeat: int, archive: Path | None) -> list[list[Any]]:
    """Return the rows of the table for 2^size elements."""
    n = 1 << size
    data = {name: make(n, np.random.default_rng([size, 7])) for name, make in DATA.items()}
    sums = {name: exact(x) for name, x in data.items()}
    rows = []
    for title, result, add in contenders(n, archive):
        row: list[Any] = [title, result, f"2^{size}"]
        for name, x in data.items():
            if "window" in title and name != "uniform":
                row += [None, None]
                continue
            seconds, total = fastest(partial(add, x), repeat)
            off = error(total, sums[name])
            row += [f"{seconds / n * 1e9:.2f}", f"{off:.2f}" if off < 1000 else f"{off:.0e}"]
        print(tables.line(row), flush=True)
        rows.append(row)
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and write the JSON file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--sizes", type=int, nargs="+", default=[20, 24], help="2^SIZE elements (default: 20 24)")
    add("--repeat", type=int, default=3, help="calls, of which the fastest counts (default: 3)")
    add("--reproblas", type=Path, metavar="FOLDER", help="a checkout of ReproBLAS that was built")
    add("--json", type=Path, metavar="FILE", help="write the table to FILE, too")
    args = parser.parse_args(argv)
    if not all(4 <= size <= _LARGEST for size in args.sizes) or args.repeat < 1:
        parser.error(f"--sizes are from 4 to {_LARGEST}, --repeat is from 1")
    archive = None
    if args.reproblas is not None:
        archive = next(args.reproblas.glob("build/**/libreproblas.a"), None)
        if archive is None:
            parser.error(f"{args.reproblas} has no libreproblas.a; --help says how to build it")
    columns = ["", "result", "n"]
    for name in DATA:
        columns += [f"{name}: ns", "ulp"]
    print(tables.head(columns))
    rows = [row for size in args.sizes for row in measure(size, args.repeat, archive)]
    if args.json is not None:
        made = {
            "command": tables.command("compare_fsum.py", argv),
            "spread": f"processor time, the fastest of {args.repeat} calls",
            "columns": columns,
            "rows": rows,
        }
        tables.update(args.json, made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
