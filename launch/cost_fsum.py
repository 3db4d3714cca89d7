"""What exact sums cost: "fsum" beside "sum" of the same type, in nanoseconds per element.

    python launch/cost_fsum.py [--size 24] [--backend cpu|cuda] [--repeat 5] [--json FILE]

One rank scans 2^SIZE elements, on one core or one GPU, by whole calls. ``fsum_speed.py`` times the
parts of a call. The kinds of data differ in the bits that their sums need:

    one word      float32, multiples of 2^-24 in [0, 1)
    two words     float32, from 2^-1 to 2^40; float64, multiples of 2^-53 in [0, 1)
    digits        float64, from 2^-100 to 2^100, and over nearly the whole range

"window=" is fsum with the window given, so that no pass looks for it. All of a row take turns; the
times are medians. On a GPU they are the device's, on a CPU the processor's, so that other processes
disturb less.
"""

import argparse
import shlex
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
from distscan.bench.machine import Gpu, Host

Call = Callable[[], None]


class Kind(NamedTuple):
    """A kind of data: floats whose exponents are uniform in low..high, or multiples of an ulp."""

    title: str
    dtype: type
    exponents: tuple[int, int] | None
    window: tuple[int, int]

    def values(self, n: int) -> NDArray[Any]:
        """Return ``n`` values, all in the window."""
        random = np.random.default_rng(7)
        if self.exponents is None:
            return random.random(n, self.dtype)
        found = random.uniform(0.5, 1, n)
        signs = random.choice([-1.0, 1.0], n)
        up = random.integers(*self.exponents, n, endpoint=True)
        return np.ldexp(found * signs, up).astype(self.dtype)


KINDS = [
    Kind("float32, one word", np.float32, None, (-24, 0)),
    Kind("float32, two words", np.float32, (0, 40), (-24, 41)),
    Kind("float64, two words", np.float64, None, (-53, 0)),
    Kind("float64, 2^-100 to 2^100", np.float64, (-99, 100), (-153, 101)),
    Kind("float64, 2^-900 to 2^900", np.float64, (-899, 900), (-953, 901)),
]
COLUMNS = ["", "copy", "numpy.cumsum", "sum", "fsum", "window=", "fsum / sum", "window= / sum"]


def timed(machine: Host, call: Call) -> float:
    """Return the seconds of a call."""
    machine.flush()
    device = machine.elapsed(call)
    if device is not None:
        return device
    begin = process_time()
    call()
    return process_time() - begin


def measure(machine: Host, kind: Kind, n: int, repeat: int) -> list[Any]:
    """Return a row of the table."""
    x = machine.xp.asarray(kind.values(n))
    y = machine.xp.empty_like(x)
    ours = partial(distscan.scan, x, out=y, comm=MPI.COMM_SELF, threads=1)
    calls: dict[str, Call] = {
        "copy": partial(machine.xp.copyto, y, x),
        "sum": partial(ours, "sum"),
        "fsum": partial(ours, "fsum"),
        "window=": partial(ours, "fsum", window=kind.window),
    }
    if machine.backend == "cpu":
        calls["numpy.cumsum"] = partial(np.cumsum, x, out=y)
    found: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(-1, repeat):  # the first is not counted
        for name, call in calls.items():
            seconds = timed(machine, call)
            if turn >= 0:
                found[name].append(seconds)
    times = {name: median(each) * 1e9 / n for name, each in found.items()}
    cells = [_three_digits(times[name]) if name in times else None for name in COLUMNS[1:6]]
    shares = [f"{times[name] / times['sum']:.2f}" for name in ("fsum", "window=")]
    return [kind.title, *cells, *shares]


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and write the JSON file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--size", type=int, default=24, help="2^SIZE elements (default: 24)")
    add("--backend", choices=("cpu", "cuda"), default="cpu")
    add("--repeat", type=int, default=5, help="times of each (default: 5)")
    add("--json", type=Path, metavar="FILE", help="write the table to FILE, too")
    args = parser.parse_args(argv)
    if not 0 <= args.size <= 30 or args.repeat < 1:
        parser.error("--size is from 0 to 30, --repeat from 1")
    machine = Gpu("") if args.backend == "cuda" else Host("")
    print(tables.head(COLUMNS))
    rows = []
    for kind in KINDS:
        rows.append(measure(machine, kind, 1 << args.size, args.repeat))
        print(tables.line(rows[-1]), flush=True)
        machine.release()
    if args.json is not None:
        command = shlex.join(sys.argv[1:] if argv is None else argv)
        made = {
            "title": f"Exact sums beside plain ones, 2^{args.size} elements, ns an element",
            "command": f"python launch/cost_fsum.py {command}",
            "spread": f"medians of {args.repeat}",
            "columns": COLUMNS,
            "rows": rows,
        }
        tables.update(args.json, made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
