"""``fsum``: cases drawn by Hypothesis, against sums of fractions that integers round.

Numbers are drawn in families that are hard to add; see ``support/campaigns.py``. Rank 0 draws, as
in ``test_properties.py``. DISTSCAN_EXAMPLES=2000 looks longer.
"""

import math
import os
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import strategies as st
from mpi4py import MPI

import distscan
from support.arrays import host
from support.campaigns import NAMES, between, hard, of_words, patterns, run_campaign
from support.exact import FORMATS, dtype_of, finite_bits, prefixes, same, scanned

EXAMPLES = int(os.environ.get("DISTSCAN_EXAMPLES", "200"))
SIZE = MPI.COMM_WORLD.size
names = pytest.mark.parametrize("name", NAMES)


@st.composite
def cases(draw, names=NAMES, lists=None):
    """Draw one call: all that a rank must know to make its part of it."""
    name = draw(st.sampled_from(names))
    result = draw(st.sampled_from([None, *names]))
    x = draw(hard(name, result or name, 20) if lists is None else lists(name))
    if draw(st.integers(0, 3)) == 0:
        special = st.sampled_from([math.inf, -math.inf, math.nan, -0.0])
        for value in draw(st.lists(special, max_size=3)):
            x.insert(draw(st.integers(0, len(x))), value)
    times = draw(st.sampled_from([1, 1, 1, 20]))
    width = draw(st.sampled_from([None, None, None, 1, 2, 3]))
    shape = (times * len(x),) if width is None else (times * len(x) // width, width)
    axis = draw(st.sampled_from([None, *range(-len(shape), len(shape))]))
    segments = draw(st.sampled_from([None, "?", "i", "d"])) if axis is None else None
    return {
        "name": name,
        "x": x,
        "times": times,  # as often, one after the other
        "shape": shape,
        "axis": axis,
        "cuts": sorted(
            draw(st.lists(st.integers(0, shape[0]), min_size=SIZE - 1, max_size=SIZE - 1))
        ),
        "exclusive": draw(st.booleans()),
        "reverse": draw(st.booleans()),
        "initial": draw(st.none() | initials()),
        "segments": segments,
        "heads": draw(st.sets(st.integers(0, times * len(x)))) if segments else None,
        "result": result,
        "into": draw(st.sampled_from(["dtype", "out"])),
        "strategy": draw(st.sampled_from(["auto", "reduce-scan", "single-pass"][: 3 - (SIZE > 1)])),
        "wider": draw(st.none() | st.tuples(st.integers(0, 300), st.integers(0, 300))),
    }


def initials():
    """Numbers of Python, as elements are, and others."""
    limits = st.sampled_from([0.0, -0.0, 5e-324, -1.7e308, 1e308, math.inf, -math.inf, math.nan])
    return limits | patterns("float64") | st.integers(-(2**70), 2**70)


def window_of(numbers):
    """The window of numbers: all are multiples of 2^low, and below 2^high in magnitude."""
    some = [abs(Fraction(number)) for number in numbers if number != 0]
    if not some:
        return 0, 1
    unit = max(each.denominator for each in some)
    wholes = [int(each * unit) for each in some]
    shift, lows = unit.bit_length() - 1, [(whole & -whole).bit_length() - 1 for whole in wholes]
    return min(lows) - shift, max(wholes).bit_length() - shift


def check(case, xp, comm):
    """Make the call, and compare this rank's part of the result."""
    shape, axis, name = tuple(case["shape"]), case["axis"], case["name"]
    n, result = math.prod(shape), case["result"] or case["name"]
    with np.errstate(invalid="ignore"):
        x = (
            np.array((case["times"] * case["x"])[:n], np.float64)
            .astype(dtype_of(name))
            .reshape(shape)
        )
    edges = [0, *case["cuts"], shape[0]]
    mine = slice(*edges[comm.rank : comm.rank + 2])
    each = n // shape[0] if shape[0] else 0
    flat = slice(mine.start * each, mine.stop * each)
    form = {key: case[key] for key in ("exclusive", "reverse", "initial", "axis")}
    heads = marks = None
    if case["segments"]:
        marks = heads = np.isin(np.arange(n), list(case["heads"]))
        marks = (
            marks if case["segments"] == "?" else (np.cumsum(heads) % 3).astype(case["segments"])
        )
    want = scanned(x, result, heads=heads, **form)[flat if axis is None else mine]

    options = form | {"strategy": case["strategy"]}
    if marks is not None:
        options["segments"] = xp.asarray(marks[flat])
    numbers = [*x.astype(np.float64).ravel().tolist(), case["initial"] or 0]
    if case["wider"] and all(map(math.isfinite, numbers)):
        low, high = window_of(numbers)
        options["window"] = low - case["wider"][0], high + case["wider"][1]
    if case["into"] == "out":
        options["out"] = xp.asarray(np.full(want.shape, 7, dtype_of(result)))
    elif case["result"]:
        options["dtype"] = dtype_of(result)
    y = distscan.scan(xp.asarray(x[mine]), "fsum", **options)
    assert same(host(y), want), (host(y).tolist(), want.tolist())


def examples(xp):
    """Many on CPUs; fewer on GPUs, where some are kernels to compile, and among many ranks."""
    return max(EXAMPLES // (SIZE if SIZE > 3 else 1 if xp is np else 4), 8)


def types(xp):
    """Those that the library has."""
    return [name for name in NAMES if xp is np or name != "bfloat16"]


@pytest.mark.timeout(300)
def test_every_form(xp, comm):
    """Numbers, forms, types, axes, segments, windows and cuts, all together."""
    run_campaign(comm, cases(types(xp)), lambda case: check(case, xp, comm), 2 * examples(xp))


@names
def test_every_pattern(name, xp, comm, rng):
    """Numbers of all bit patterns, as long as several chunks of digits."""
    if name not in types(xp):
        pytest.skip("CuPy has no bfloat16")
    x = finite_bits(rng, name, 9000)
    mine = slice(9000 * comm.rank // SIZE, 9000 * (comm.rank + 1) // SIZE)
    assert same(host(distscan.scan(xp.asarray(x[mine]), "fsum")), scanned(x, name)[mine])


@pytest.mark.parametrize("words", [1, 2, 3, 4, 5, 8, 16, 17, 33, 34])
def test_words(words, xp, comm):
    """Windows of 1 to 34 words of 64 bits, which float64 needs."""
    name = "float64"
    strategy = cases([name], lambda name: of_words(name, 20, words))
    run_campaign(comm, strategy, lambda case: check(case, xp, comm), examples(xp) // 8)


@pytest.mark.parametrize("power", [10, 50, 100, 200, 300])
def test_condition_numbers(power, xp, comm, rng):
    """Sums that are 10^300 times smaller than their elements; the digits of none are lost."""
    n, most = 60, 10.0 ** (power / 2)
    x = most * rng.uniform(0.5, 1, n) * rng.choice([-1, 1], n)
    x = np.concatenate([x, -x, np.full(1, 1 / most)])[rng.permutation(2 * n + 1)]
    assert math.fsum(abs(x)) / abs(math.fsum(x)) > 10.0**power
    mine = slice(len(x) * comm.rank // SIZE, len(x) * (comm.rank + 1) // SIZE)
    y = host(distscan.scan(xp.asarray(x[mine]), "fsum"))
    assert same(y, scanned(x, "float64")[mine])
    assert y.tolist() == [math.fsum(x[: i + 1]) for i in range(mine.start, mine.stop)]


def test_as_math_fsum(xp, comm):
    """Totals of float64, where ``math.fsum`` has a finite one."""

    def test(x):
        y = distscan.scan(xp.asarray(np.array(x if comm.rank == 0 else [], np.float64)), "fsum")
        if comm.rank == 0 and len(x):
            try:
                assert float(y[-1]) == math.fsum(x)
            except OverflowError:  # of fsum's own intermediate sums
                assert same(host(y), prefixes(x, "float64"))

    run_campaign(comm, hard("float64", "float64", 30), test, examples(xp) // 2)


@pytest.mark.parametrize("result", ["float16", "bfloat16", "float32"])
def test_ties(result, xp, comm):
    """float64 elements whose sums are next to half-way between two floats of a narrower type."""
    if result not in types(xp):
        pytest.skip("CuPy has no bfloat16")
    precision, lowest, end = FORMATS[result]
    rests = [0.0, 2.0**-80, -(2.0**-80), 5e-324, -5e-324]

    def test(case):
        number, rest, sign = case
        exponent = max(math.frexp(number)[1] - precision, lowest)
        x = np.array([number, math.ldexp(sign, exponent - 1), rest])
        mine = slice(3 * comm.rank // SIZE, 3 * (comm.rank + 1) // SIZE)
        y = distscan.scan(xp.asarray(x[mine]), "fsum", dtype=dtype_of(result))
        assert same(host(y), scanned(x, result)[mine])

    numbers = between(result, lowest, end)
    drawn = st.tuples(numbers, st.sampled_from(rests), st.sampled_from([1.0, -1.0]))
    run_campaign(comm, drawn, test, examples(xp) // 2)


@pytest.mark.parametrize("by", [1, 70])
def test_narrower_window(by, xp, comm):
    """A window that elements do not fit is an error on every rank, whoever has the element."""

    def test(x):
        low, high = window_of(x)
        mine = slice(len(x) * comm.rank // SIZE, len(x) * (comm.rank + 1) // SIZE)
        shard = xp.asarray(np.array(x[mine], np.float64))
        for window in ((low + by, max(high, low + by + 1)), (min(low, high - by - 1), high - by)):
            with pytest.raises(ValueError, match="beyond window="):
                distscan.scan(shard, "fsum", window=window)

    numbers = between("float64", -1074, 1024).filter(bool)
    run_campaign(comm, st.lists(numbers, min_size=1, max_size=9), test, examples(xp) // 8)
