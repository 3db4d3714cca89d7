"""What exact sums cost: "fsum" beside "sum" of the same type, in nanoseconds per element.

    python launch/tools/fsum_speed.py [--size LOG2] [--backend cpu|cuda] [--parts] [--digits]
                                [--repeat 5] [--json FILE]

One rank scans 2^SIZE elements, on one core or one GPU, by whole calls: 2^28 on a GPU, 2^24 without
one. The kinds of data differ in the bits that their sums need:

    one word      float32 and float64, multiples of 2^-24 in [0, 1); float16 of nearly all sizes
    two words     float32, from 2^-11 to 2^10; float64, multiples of 2^-53 in [0, 1)
    the same      of elements that have two words each: float32, from 2^-1 to 2^40; float64, from
                  2^-11 to 2^10
    digits        with --digits: float64, from 2^-100 to 2^100, and over nearly the whole range
                  (up to a microsecond an element)

"window=" is fsum with the window given: its elements are checked. With --parts, the parts of a call
are timed, too: the pass that finds the window, and, where kernels add, their scans by two
strategies with the window known. All of a row take turns; the times are medians. On a GPU they are
the device's, on a CPU the processor's, so that other processes disturb less.
"""

import argparse
import math
import sys
from collections.abc import Callable, Sequence
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


class Kind(NamedTuple):
    """A kind of data: floats whose exponents are uniform in low..high, or multiples in [0, 1)."""

    title: str
    dtype: type
    exponents: tuple[int, int] | None
    window: tuple[int, int]

    def values(self, n: int) -> NDArray[Any]:
        """Return ``n`` values, all in the window."""
        random = np.random.default_rng(7)
        if self.exponents is None:
            low, _ = self.window
            return np.ldexp(random.integers(1 << -low, size=n), low).astype(self.dtype)
        found = random.uniform(0.5, 1, n)
        signs = random.choice([-1.0, 1.0], n)
        up = random.integers(*self.exponents, n, endpoint=True)
        return np.ldexp(found * signs, up).astype(self.dtype)


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


def columns(machine: Host, parts: bool) -> list[str]:
    """Return the names of what is timed."""
    whole = ["copy", f"{machine.xp.__name__}.cumsum", "sum", "fsum", "window="]
    return whole + [*PARTS, "finding the window"] * parts


def compiled(x: Any, y: Any, strategy: str) -> Call | None:
    """Return the exact scan of ``x`` into ``y`` by kernels; None where digits are added."""
    op = narrowest_accumulator(window_of(x)[0], x.dtype, y.dtype)
    if op is None or not shard_scan.adds_exactly(x.dtype, y.dtype, arrays.gpu(x)):
        return None
    options = ScanOptions(op, dtype=y.dtype), RunOptions(strategy=strategy, threads=1)
    extents = Extents.of(x.shape, None)
    scan = shard_scan.make(extents, x.dtype, arrays.gpu(x), *options, ranks=1)
    return lambda: scan.steps.finish(scan.steps.begin(x, y), scan.form.seed)


def timed(machine: Host, call: Call) -> float:
    """Return the seconds of a call."""
    machine.flush()
    device = machine.elapsed(call)
    if device is not None:
        return device
    begin = process_time()
    call()
    return process_time() - begin


def measure(machine: Host, kind: Kind, n: int, repeat: int, parts: bool) -> list[Any]:
    """Return a row of the table."""
    x = machine.xp.asarray(kind.values(n))
    y = machine.xp.empty_like(x)
    ours = partial(distscan.scan, x, out=y, comm=MPI.COMM_SELF, threads=1)
    names = columns(machine, parts)
    each: list[Call | None] = [
        partial(machine.xp.copyto, y, x),
        partial(machine.xp.cumsum, x, dtype=x.dtype, out=y),
        partial(ours, "sum"),
        partial(ours, "fsum"),
        partial(ours, "fsum", window=kind.window),
    ]
    if parts:
        each += [*(compiled(x, y, strategy) for strategy in PARTS), partial(window_of, x)]
    calls = {name: call for name, call in zip(names, each, strict=True) if call is not None}
    found: dict[str, list[float]] = {name: [] for name in calls}
    few = min(n, 1 << 16)
    want = x.dtype.type(math.fsum(x[:few].tolist()))
    for turn in range(-1, repeat):  # the first is not counted
        for name, call in calls.items():
            y[few - 1] = np.nan
            seconds = timed(machine, call)
            if name in {"fsum", "window=", *PARTS} and y[few - 1] != want:
                raise ArithmeticError(f"{kind.title}, {name}: {y[few - 1]} instead of {want}")
            if turn >= 0:
                found[name].append(seconds)
    times = {name: median(each) * 1e9 / n for name, each in found.items()}
    cells = [_three_digits(times[name]) if name in times else None for name in names]
    shares = [f"{times[name] / times['sum']:.2f}" for name in ("fsum", "window=")]
    return [kind.title, *cells, *shares]


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and write the JSON file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--size", type=int, help="2^SIZE elements (default: 28 on a GPU, 24 without one)")
    add("--backend", choices=("cpu", "cuda"), help="(default: cuda where there is a GPU)")
    add("--parts", action="store_true", help="time the parts of a call, too")
    add("--digits", action="store_true", help="also data whose sums need digits, which takes long")
    add("--repeat", type=int, default=5, help="times of each (default: 5)")
    add("--json", type=Path, metavar="FILE", help="write the table to FILE, too")
    args = parser.parse_args(argv)
    if not 0 <= (args.size or 0) <= 30 or args.repeat < 1:
        parser.error("--size is from 0 to 30, --repeat from 1")
    machine = _machine(args.backend)
    size = args.size if args.size is not None else 28 if machine.backend == "cuda" else 24
    names = ["", *columns(machine, args.parts), "fsum / sum", "window= / sum"]
    print(tables.head(names))
    rows = []
    for kind in KINDS + OF_DIGITS * args.digits:
        rows.append(measure(machine, kind, 1 << size, args.repeat, args.parts))
        print(tables.line(rows[-1]), flush=True)
        machine.release()
    if args.json is not None:
        made = {
            "title": f"Exact sums beside plain ones, 2^{size} elements, ns an element",
            "command": tables.command("fsum_speed.py", argv),
            "spread": f"medians of {args.repeat}",
            "columns": names,
            "rows": rows,
        }
        tables.update(args.json, made)
    return 0


def _machine(backend: str | None) -> Host:
    """Return the GPU, or the CPU where it is asked for, or there is no other."""
    if backend != "cpu":
        try:
            return Gpu("")
        except Exception:
            if backend == "cuda":
                raise
    return Host("")


if __name__ == "__main__":
    sys.exit(main())
