"""``fsum``: every prefix is the exact sum, rounded once, whatever the ranks and the cuts."""

import numpy as np
import pytest
from mpi4py import MPI

import distscan
from support.arrays import LAYOUTS, host
from support.cases import CUTS, FORMS, pairs, two_cuts
from support.exact import FORMATS, dtype_of, finite_bits, mixed, normal, same, scanned
from support.reference import CALLS, check

pytestmark = pytest.mark.fast


def cancelling(rng, name, n):
    """Each number comes with its opposite, somewhere."""
    x = finite_bits(rng, name, n)
    x[n // 2 :] = -x[: n - n // 2]
    return rng.permutation(x)


def ties(rng, name, n):
    """Sums half-way between two floats, and next to half-way."""
    dtype = dtype_of(name)
    ulp = {"float16": -10, "bfloat16": -7, "float32": -23, "float64": -52}[name]
    small = np.array([2.0 ** (ulp - 1), -(2.0 ** (ulp - 1)), 2.0**ulp, 2.0 ** (2 * ulp), 1.0, -1.0])
    return rng.choice(small, n).astype(dtype)


DATA = [finite_bits, normal, cancelling, ties, mixed]


@pairs(
    group_by="data",
    indirect=["cut"],
    data=DATA,
    name=FORMATS,
    result=[None, *FORMATS],
    form=FORMS,
    call=CALLS,
    layout=LAYOUTS,
    often=[None, 0.0, 0.1, 1.0],
    kind=["?", "i8"],
    cut=CUTS,
)
def test_every_form(data, name, result, form, call, layout, often, kind, cut, xp, rng):
    """Elements enter exactly; the sum is rounded once, to the type of the result."""
    if xp is not np and "bfloat16" in (name, result):
        return  # which CuPy does not have
    form = form | {"initial": form["initial"] and float(rng.standard_normal())}
    heads = None if often is None else (np.cumsum(rng.random(301) < often) % 7).astype("i8")
    if heads is not None and kind == "?":
        heads = np.append(True, heads[1:] != heads[:-1])
    into = "out" if call == "out" else "dtype"
    check(data(rng, name, 301), "fsum", xp=xp, cut=cut, call=call, layout=layout, segments=heads,
          **{into: result and dtype_of(result)}, **form)  # fmt: skip


@pairs(
    group_by="call",
    indirect=["cut"],
    data=[finite_bits, mixed],
    name=["float32", "float64"],
    shape=[(23, 5, 7), (9, 7), (0, 3), (3, 0), (2, 0, 3), (1, 1), (1, 40), (40, 1)],
    axis=[None, 0, 1, 2, -1],
    form=FORMS,
    call=CALLS,
    layout=LAYOUTS,
    cut=CUTS,
    allowed=lambda case: case["axis"] is None or case["axis"] < len(case["shape"]),
)
def test_axes(data, name, shape, axis, form, call, layout, cut, xp, rng):
    n = int(np.prod(shape))
    x = (data if n > 2 else finite_bits)(rng, name, n).reshape(shape)
    check(x, "fsum", xp=xp, cut=cut, call=call, layout=layout, axis=axis, **form)


@two_cuts
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", ["complex64", "complex128"])
def test_complex(name, call, xp, cut, rng):
    part = "float32" if name == "complex64" else "float64"
    x = np.empty(301, name)
    x.real, x.imag = mixed(rng, part, 301), finite_bits(rng, part, 301)
    check(x, "fsum", xp=xp, cut=cut, call=call, initial=1 - 2j)


@two_cuts
def test_window(xp, cut, rng):
    """Data on a common grid; what lies outside of it is an error on every rank."""
    x, mine = rng.integers(-(2**20), 2**20, 301) / 2.0**10, cut(301)
    shard = xp.asarray(x[mine])
    want = scanned(x, "float64")[mine]
    assert same(host(distscan.scan(shard, "fsum", window=(-10, 11))), want)
    assert same(host(distscan.scan(shard, "fsum", window=(-60, 70))), want)
    for window in ((-9, 11), (-10, 9)):
        with pytest.raises(ValueError, match="beyond window="):
            distscan.scan(shard, "fsum", window=window)
    with pytest.raises(ValueError, match="not finite"):
        distscan.scan(xp.asarray(mixed(rng, "float64", 301)[mine]), "fsum", window=(-99, 99))
    with pytest.raises(ValueError, match="beyond window="):
        distscan.scan(shard, "fsum", window=(-10, 11), initial=2.0**11)


WRONG = {
    "strategy": ({"strategy": "scan-add"}, ValueError, "fsum takes 'reduce-scan'"),
    "unknown": ({"strategy": "none"}, ValueError, "unknown strategy"),
    "dtype": ({"dtype": "i8"}, TypeError, "fsum rounds to floats"),
    "initial": ({"initial": "x"}, TypeError, "initial is"),
    "initials": ({"initial": [1, 2]}, ValueError, "one value"),
    "complex": ({"initial": 1j}, TypeError, "initial is"),
    "window": ({"window": 3}, TypeError, "two integers"),
    "order": ({"window": (3, 2)}, ValueError, "low must be below high"),
    "out": ({"out": np.empty(3)}, ValueError, "out has shape"),
    "axis": ({"axis": 2}, ValueError, "axis 2"),
    "text": ({"x": np.array(["a"])}, TypeError, "fsum adds"),
    "None": ({"x": None}, TypeError, "x is None"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong(case):
    given, error, text = WRONG[case]
    with pytest.raises(error, match=text):
        distscan.scan(**({"x": np.ones(5), "op": "fsum"} | given))


def test_window_of_another_operator():
    with pytest.raises(ValueError, match="window= goes with"):
        distscan.scan(np.ones(5), window=(0, 1))


def test_bits_are_always_the_same(xp, comm, rng):
    """Random cuts, both strategies, and the mirrored reverse: one value."""
    x = finite_bits(rng, "float64", 2000)
    want = distscan.scan(x, "fsum", comm=MPI.COMM_SELF).tobytes()
    for i in range(10):
        ends = np.sort(rng.integers(0, 2001, comm.size - 1))
        ends = np.concatenate([[0], ends, [2000]])
        mine = slice(*ends[comm.rank : comm.rank + 2].tolist())
        shard = xp.asarray(x[mine])
        strategy = "reduce-scan" if i % 2 or comm.size > 1 else "single-pass"
        found = comm.allgather(host(distscan.scan(shard, "fsum", strategy=strategy)))
        assert np.concatenate(found).tobytes() == want
        mirrored = distscan.scan(xp.asarray(x[::-1][mine]), "fsum", reverse=True)
        assert np.concatenate(comm.allgather(host(mirrored)))[::-1].tobytes() == want
