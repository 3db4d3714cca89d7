"""``fsum`` in a thread that flushes subnormal numbers: they count, as elements and as sums."""

import numpy as np
import pytest

import distscan
from distscan.cpu import compiled, library, reductions
from support.cpu_scans import anew, levels
from support.cuts import two_cuts
from support.exact import FORMATS, dtype_of, same, scanned
from support.flushed import flushed, needs_flush
from support.forms import FORMS
from support.pairs import pairs

pytestmark = needs_flush

names = pytest.mark.parametrize("name", list(FORMATS))


def near_zero(rng, name, n, width):
    """Draw multiples of the lowest bit of a type below 2^width of it, most of them subnormal."""
    least = FORMATS[name][1]
    x = np.ldexp(rng.integers(-(1 << width), 1 << width, n).astype(float), least)
    x[rng.random(n) < 0.1] = np.ldexp(1.0, least)
    return x.astype(dtype_of(name))


@two_cuts
@pairs(name=FORMATS, form=FORMS)
def test_scans(name, form, cut, rng):
    """In narrow windows, and in one that has digits; ``initial`` is subnormal, too."""
    precision, least, end = FORMATS[name]
    mine, form = cut(301), form | {"initial": form["initial"] and 2.0**least}
    for width, large in ((3, None), (precision - 1, None), (3, 2.0 ** (end - 2))):
        x = near_zero(rng, name, 301, width)
        if large:
            x[[5, 200]] = large, -large
        for result in (name, "float32", "float64"):
            with flushed():
                y = distscan.scan(x[mine].copy(), "fsum", dtype=dtype_of(result), **form)
            assert same(y, scanned(x, result, **form)[mine]), (width, large, result)


@pytest.mark.one_rank
@pytest.mark.skipif(library.load() is None, reason="no compiled kernels")
@pytest.mark.parametrize("threads", [1, 3])
@names
def test_kernels(name, threads, rng, monkeypatch):
    """Rows, columns and windows, at every level of instructions, by one thread and by three."""
    monkeypatch.setattr(compiled, "BLOCK", 1 << 10)
    monkeypatch.setattr(reductions, "PART", 1 << 9)
    x = near_zero(rng, name, 960, FORMATS[name][0] - 1).reshape(-1, 30)
    window = reductions.find_window(x, 1)
    assert window[0].low == FORMATS[name][1]
    for level in levels():
        with anew(monkeypatch, level=level, threads=threads):
            for axis in (None, 0, 1):
                with flushed():
                    found = reductions.find_window(x, threads)
                    y = distscan.scan(x, "fsum", axis=axis)
                assert found == window
                assert same(y, scanned(x, name, axis=axis)), (level, axis)


@pytest.mark.parametrize("window", [None, (-1074, 0)])
@pytest.mark.parametrize("code", "dD")
def test_plans(window, code, comm):
    """``initial`` is checked and kept when the plan is made."""
    x = np.full(3, 5e-324, code)
    given = {"initial": 5e-324, "window": window, "backend": "cpu"}
    with flushed():
        y = distscan.Plan(comm, 3, code, "fsum", **given)(x)
    assert same(y, np.arange(2 + 3 * comm.rank, 5 + 3 * comm.rank) * x)
