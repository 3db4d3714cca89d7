#!/usr/bin/env python3
"""The time of exact sums beside plain ones, on a GPU or on one CPU core.

    python launch/fsum_speed.py                    # 2^28 elements on a GPU, 2^24 without one
    python launch/fsum_speed.py --elements 22

The scans by kernels are timed with the window known; ``window`` is the pass that finds it, and
``scan()`` is a whole call. Results are compared with exact sums before they are timed.
"""

import argparse
import statistics
import time
from typing import Any

import numpy as np

import distscan
from distscan import build
from distscan.core import arrays
from distscan.core.extents import Extents
from distscan.core.fixed_sum import that_holds
from distscan.core.operators import resolve
from distscan.exact_window import window_of

try:
    import cupy

    cupy.cuda.runtime.getDeviceCount()
except Exception:
    cupy = None


def grid(rng: np.random.Generator, n: int, dtype: str) -> Any:
    """Draw multiples of 2^-12 below 2^12: their sums take one word."""
    return (rng.integers(-(1 << 23), 1 << 23, n) / 4096).astype(dtype)


def normal(rng: np.random.Generator, n: int, dtype: str) -> Any:
    """Draw standard normal numbers: their sums take two words."""
    return rng.standard_normal(n, np.float32 if dtype == "float16" else dtype).astype(dtype)


CASES = [
    ("float32", grid, "one word"),
    ("float32", normal, "two words"),
    ("float64", grid, "one word"),
    ("float64", normal, "two words"),
    ("float16", normal, "one word"),
]


class Clock:
    """The median seconds of a function: on a GPU by events, on a CPU by the wall clock."""

    def __init__(self, xp: Any, repeat: int) -> None:
        self._xp, self._repeat = xp, repeat

    def __call__(self, function: Any) -> float:
        """Return the median seconds of calls."""
        for _ in range(2):
            function()
        return statistics.median(self._once(function) for _ in range(self._repeat))

    def _once(self, function: Any) -> float:
        if self._xp is np:
            begin = time.perf_counter()
            function()
            return time.perf_counter() - begin
        begin, end = (self._xp.cuda.Event() for _ in range(2))
        begin.record()
        function()
        end.record()
        end.synchronize()
        return float(self._xp.cuda.get_elapsed_time(begin, end)) / 1000


def compiled(x: Any, op: Any, strategy: str) -> Any:
    """Return a scan of ``x`` by an operator, and its result."""
    scan = build.make(
        Extents.of(x.shape, None),
        x.dtype,
        arrays.gpu(x),
        op,
        dtype=x.dtype,
        strategy=strategy,
        threads=1,
        ranks=1,
    )
    out = arrays.namespace(x).empty_like(x)

    def run() -> Any:
        scan.steps.finish(scan.steps.begin(x, out), scan.form.first)
        return out

    return run


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--elements", type=int, metavar="LOG2")
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--backend", choices=("cpu", "cuda"))
    asked = parser.parse_args()
    xp: Any = np if asked.backend == "cpu" or cupy is None else cupy
    if asked.backend == "cuda" and cupy is None:
        parser.error("there is no GPU with CuPy")
    n = 1 << (asked.elements or (24 if xp is np else 28))
    print(f"{n} elements, {asked.repeat} times, medians in microseconds (share of sum's time)")
    print(f"{'':24}" + "".join(f"{each:>19}" for each in ROWS))
    rng = np.random.default_rng()
    for dtype, data, words in CASES:
        seconds = timed(Clock(xp, asked.repeat), xp.asarray(data(rng, n, dtype)), words)
        shown = [f"{1e6 * each:10.0f} ({each / seconds[1]:5.2f})" for each in seconds]
        print(f"{dtype + ', ' + words:24}" + "".join(f"{each:>19}" for each in shown), flush=True)


ROWS = ["copy", "sum", "fsum, single-pass", "fsum, reduce-scan", "window", "scan()", "cumsum"]


def timed(clock: Clock, x: Any, words: str) -> list[float]:
    """Return the seconds of each of ``ROWS`` for ``x``, whose sums have so many words."""
    xp = arrays.namespace(x)
    op = that_holds(window_of(x)[0], x.dtype, x.dtype)
    if op is None or (op.acc.names is None) != (words == "one word"):
        raise ValueError(f"{x.dtype} does not take {words}")
    exact, out = compiled(x, op, "single-pass"), xp.empty_like(x)
    check(x, exact())
    return [
        clock(lambda: xp.copyto(out, x)),
        clock(compiled(x, resolve("sum"), "single-pass")),
        clock(exact),
        clock(compiled(x, op, "reduce-scan")),
        clock(lambda: window_of(x)),
        clock(lambda: distscan.scan(x, "fsum", out=out)),
        clock(lambda: xp.cumsum(x, dtype=x.dtype, out=out)),
    ]


def check(x: Any, y: Any) -> None:
    """Compare some results with sums of Python's integers."""
    x, y = (arrays_on_host(each) for each in (x, y))
    scale = 2.0**60
    ends = np.unique(np.geomspace(1, len(x), 8).astype(int))
    total, begin = 0, 0
    for end in ends:
        wide = x[begin:end].astype(np.float64)
        high = np.floor(wide * 2.0**20)
        low = (wide * 2.0**20 - high) * scale  # an integer below 2^60
        sums = [int(high[i : i + 4096].sum()) for i in range(0, len(high), 4096)]
        halves = np.divmod(low, 2.0**30)
        lows = [[int(h[i : i + 4096].sum()) for i in range(0, len(h), 4096)] for h in halves]
        total += (sum(sums) << 60) + (sum(lows[0]) << 30) + sum(lows[1])
        begin = end
        want = np.float64(total / (1 << 80)) if x.dtype == np.float64 else None
        if want is not None:
            assert y[end - 1] == want, (end, y[end - 1], want)
        else:
            assert abs(float(y[end - 1]) - total / (1 << 80)) <= np.spacing(abs(y[end - 1])), end


def arrays_on_host(x: Any) -> Any:
    """Return a NumPy array."""
    return x.get() if arrays.is_cuda(x) else x


if __name__ == "__main__":
    main()
