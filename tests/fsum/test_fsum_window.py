"""``window=`` of ``fsum``, and its plans."""

from contextlib import suppress
from fractions import Fraction

import numpy as np
import pytest
from mpi4py import MPI

import distscan
from distscan.engine import fsum_scan
from support.arrays import host
from support.cases import FORMS, length, one_cut, pairs, two_cuts
from support.exact import FORMATS, dtype_of, finite_bits, grid, normal, same, scanned, special

# ---- ``window=`` of ``fsum``: elements are checked as they are added, in every form --------------

# A type, and a window that takes one word, two words with elements of one, or two. The last ones of
# a type end where it ends.
WINDOWS = [
    ("float32", (-10, 11)),
    ("float32", (-30, 28)),
    ("float32", (-60, 20)),
    ("float32", (-149, -100)),
    ("float32", (100, 128)),
    ("float64", (-10, 11)),
    ("float64", (-30, 28)),
    ("float64", (-60, 35)),
    ("float64", (-1074, -1000)),
    ("float64", (960, 1024)),
    ("float16", (-24, 16)),
    ("bfloat16", (-20, 10)),
]
# Axis, shape, whether there are segments.
SHAPES = {
    "plain": (None, (1009,), False),
    "short": (None, (7,), False),
    "segments": (None, (517,), True),
    "rows": (1, (23, 61), False),
    "columns": (0, (61, 23), False),
    "a column": (0, (1009, 1), False),
    "matrices": (1, (5, 17, 6), False),
    "many columns": (0, (5, 3000), False),
}


def inside(rng, name, window, shape):
    """Numbers of a window, its smallest and its largest ones among them."""
    low, high = window
    precision = np.finfo(np.float64).nmant + 1 if name == "float64" else 24
    precision = {"float16": 11, "bfloat16": 8}.get(name, precision)
    bits = rng.integers(1, min(precision, high - low) + 1, shape)  # of each significand
    whole = rng.integers(0, 1 << 62, shape) >> (62 - bits)
    shift = rng.integers(0, high - low + 1 - bits)
    x = np.ldexp(whole.astype(np.float64), low + shift) * rng.choice([1, -1], shape)
    flat = x.reshape(-1)
    places = rng.integers(1, flat.size, 4)
    flat[places[:2]] = np.ldexp(1.0, low), -np.ldexp(1.0, low)
    largest = np.ldexp(float((1 << min(precision, high - low)) - 1), 0)
    flat[places[2:]] = np.ldexp(largest, high - min(precision, high - low)), 0.0
    return x.astype(dtype_of(name))


def outside(name, window):
    """Numbers that are not in a window, as far as the type has them."""
    low, high = window
    found = [np.inf, -np.inf, np.nan]
    with np.errstate(over="ignore"):
        found += [np.ldexp(1.0, high), -np.ldexp(1.0, high), np.ldexp(1.0, low - 1)]
        found += [3 * np.ldexp(1.0, low - 1), np.ldexp(-1.0, low - 40)]
        # Ones in all bits of a significand, the last of which is too fine.
        ones = [Fraction((1 << bits) - 1) * Fraction(2) ** (low - 1) for bits in (8, 11, 24, 53)]
        found += [float(number) for number in ones if float(number) == number]
        return [x for x in found if np.isnan(x) or float(dtype_of(name).type(x)) == x != 0]


@pytest.fixture
def no_pass(monkeypatch):
    """Count the passes over elements."""
    passes = []

    def counted(*given):
        passes.append(given)
        return found(*given)

    found = fsum_scan.window_of
    monkeypatch.setattr(fsum_scan, "window_of", counted)
    return passes


def directions(rng):
    """Any of the forms."""
    return {"exclusive": bool(rng.integers(2)), "reverse": bool(rng.integers(2))}


def strategy(rng):
    """That of several ranks finds a total first, on one rank, too."""
    return str(rng.choice(["auto", "reduce-scan"]))


def sharded(shape, cut):
    """The rows, or elements, of this rank; of an axis that is not spread, all have all."""
    return cut(SHAPES[shape][1][0])


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("initial", [None, 0.0])
def test_smallest_windows_of_subnormal_numbers(name, initial, xp, comm):
    """The window that the numbers fill is taken, and any smaller one refused by its name."""
    if name == "bfloat16" and xp is not np:
        pytest.skip("CuPy has no bfloat16")
    precision, lowest, _ = FORMATS[name]
    form = {"comm": comm, "initial": initial}
    for low in {lowest, lowest + 1, lowest + precision - 2}:
        for width in {1, 2, precision - 2, precision, precision + 9}:
            high = low + width
            ones = np.ldexp(float((1 << min(width, precision)) - 1), high - min(width, precision))
            x = np.array([0.0, np.ldexp(1.0, low), ones, -ones, 0.0]).astype(dtype_of(name))
            result = distscan.scan(xp.asarray(x), "fsum", window=(low, high), **form)
            want = scanned(np.tile(x, comm.size), name, initial=initial)
            assert same(host(result), want[5 * comm.rank :][:5])
            for smaller in [(low + 1, high), (low, high - 1)] if width > 1 else []:
                with pytest.raises(ValueError, match=f"needs window=.{low}, {high}."):
                    distscan.scan(xp.asarray(x), "fsum", window=smaller, **form)


@pairs(group_by="of", of=WINDOWS, shape=SHAPES, initial=[None, 0.0])
@one_cut
def test_inside_and_outside(of, shape, initial, xp, cut, rng, no_pass):
    (name, window), (axis, size, segmented) = of, SHAPES[shape]
    if name == "bfloat16" and xp is not np:
        return  # which CuPy does not have
    no_pass.clear()
    mine, x = sharded(shape, cut), inside(rng, name, window, size)
    heads = rng.random(size[0]) < 0.05 if segmented else None
    if segmented:
        heads[0] = True
    fixed = {"axis": axis, "segments": None if heads is None else xp.asarray(heads[mine])}
    form = {"initial": initial} | directions(rng)
    want = scanned(x, name, axis=axis, heads=heads, **form)[mine]
    options = fixed | form | {"strategy": strategy(rng)}
    y = distscan.scan(xp.asarray(x[mine]), "fsum", window=window, **options)
    assert same(host(y), want)
    knows = heads is None or initial is not None  # that no sum is -0.0
    if y.size > 0 and kernels(name, xp):
        # Of several rows, a rank may have one.
        one_scan = not segmented and (axis is None or y.size == y.shape[axis])
        on_gpu = one_scan and dtype_of(name).itemsize >= 4
        assert len(no_pass) == (not (knows and (xp is np or on_gpu)))

    numbers = outside(name, window)
    assert numbers
    for number in numbers:
        wrong = x.copy()
        place = rng.choice([0, x.size - 1, rng.integers(x.size)])
        wrong.reshape(-1)[place] = number
        options = fixed | {"initial": 0.0, "strategy": strategy(rng)} | directions(rng)
        shard = xp.array(wrong[mine])  # a copy
        for out in (None, shard):
            with pytest.raises(ValueError, match=r"beyond window=|not finite everywhere"):
                distscan.scan(shard, "fsum", out=out, window=window, **options)


@pytest.mark.parametrize("name", ["float32", "float64"])
@one_cut
def test_in_place(name, xp, cut, rng, no_pass):
    """Where a total is found first, elements are checked before they are overwritten."""
    mine, window = cut(300), (-20, 5)
    x = inside(rng, name, window, 300)
    for first in ("single-pass", "reduce-scan"):
        if first == "single-pass" and MPI.COMM_WORLD.size > 1:
            continue
        shard = xp.array(x[mine])  # a copy
        no_pass.clear()
        y = distscan.scan(shard, "fsum", out=shard, window=window, strategy=first)
        assert y is shard
        assert same(host(y), scanned(x, name)[mine])
        if y.size > 0 and kernels(name, xp):
            assert len(no_pass) == (first == "single-pass")


def kernels(name, xp):
    """Whether kernels add such numbers: on a GPU, and on CPUs if there are compiled ones."""
    return xp is not np or fsum_scan.adds_exactly(dtype_of(name), dtype_of(name), None)


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("reverse", [False, True])
@one_cut
def test_sums_of_negative_zeros(axis, reverse, xp, cut, rng):
    """A sum is -0.0 if all its elements are."""
    x, mine = np.full((40, 9), -0.0), cut(40)
    for changes in range(4):
        for exclusive in (False, True):
            form = {"reverse": reverse, "exclusive": exclusive}
            y = distscan.scan(xp.asarray(x[mine]), "fsum", axis=axis, window=(-3, 9), **form)
            want = scanned(x, "float64", axis=axis, **form)
            rows = slice(mine.start * 9, mine.stop * 9) if axis is None else mine
            assert same(host(y), want[rows])
        x[rng.integers(40), rng.integers(9)] = changes


@two_cuts
@pytest.mark.parametrize("name", ["float32", "float64"])
def test_large(name, xp, cut, rng):
    """Several blocks and tiles; elements outside at any place."""
    n, window = 300_007, (-12, 12)
    mine = cut(n)
    x = (rng.integers(-(1 << 24) + 1, 1 << 24, n) / 4096).astype(name)
    want = np.cumsum(np.rint(x.astype(np.float64) * 4096).astype(np.int64))
    y = distscan.scan(xp.asarray(x[mine]), "fsum", window=window)
    assert same(host(y), (want / 4096).astype(name)[mine])
    for place in (0, n - 1, *rng.integers(0, n, 3)):
        z = x.copy()
        z[place] = rng.choice([2.0**12, 2.0**-13, 1 + 2.0**-13])
        with pytest.raises(ValueError, match="beyond window="):
            distscan.scan(xp.asarray(z[mine]), "fsum", window=window)


@two_cuts
@pytest.mark.parametrize("initial", [None, 0.0, -0.0, 2.5])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
def test_plans(dtype, initial, xp, cut, planned, rng, no_pass):
    n, window = 517, (-20, 5)
    mine, part = cut(n), "float32" if dtype == "float32" else "float64"
    x = inside(rng, part, window, n)
    if dtype == "complex128":
        x = x + 1j * inside(rng, part, window, n)
    plan = planned(length(mine), dtype, "fsum", window=window, initial=initial, agree=True)
    for _ in range(2):
        x[0] = rng.choice([-0.0, 1.0])
        no_pass.clear()
        y = plan(xp.asarray(x[mine]))
        assert same(host(y), scanned(x, part, initial=initial)[mine])
        if kernels(part, xp) and initial in {0.0, 2.5} and dtype != "complex128":
            assert len(no_pass) == 0
        bad = x.copy()
        bad[rng.integers(n)] = 0.3 if part == "float64" else 2.0**5
        with pytest.raises(ValueError, match="beyond window="):
            plan(xp.asarray(bad[mine]))
        in_place = xp.asarray(bad[mine])
        with pytest.raises(ValueError, match="beyond window="):
            plan(in_place, in_place)
    plan.close()


@two_cuts
def test_a_plan_tells_the_others(xp, cut, planned, rng):
    """Without ``agree``, the rank at fault raises, and so do the ranks behind it, at once."""
    n = 101
    mine, x = cut(n), np.ones(n)
    plan = planned(length(mine), "float64", "fsum", window=(-3, 5), initial=0.0)
    assert same(host(plan(xp.asarray(x[mine]))), np.cumsum(x)[mine])
    x[n // 2] = 99.0
    if mine.start <= n // 2 < mine.stop:
        with pytest.raises(ValueError, match="beyond window="):
            plan(xp.asarray(x[mine]))
    elif mine.start > n // 2 and length(mine):
        with pytest.raises(distscan.RankError, match="an earlier rank failed"):
            plan(xp.asarray(x[mine]))
    else:
        with suppress(distscan.RankError):  # the notice may be here already
            assert same(host(plan(xp.asarray(x[mine]))), np.cumsum(x)[mine])
    with suppress(distscan.RankError):  # where no call has raised it
        plan.close()


# ---- plans of ``fsum``: by the operator of a known window, or of the window that each call finds -

N = 301


def near(rng, name, n):
    """Numbers of similar size, in a window of two words."""
    x = normal(rng, name, n)
    return np.where(abs(x) < 2.0**-15, x.dtype.type(0), x)


@pytest.fixture
def plan_of(xp, comm):
    """Make a plan on the backend of a test."""
    plans = []

    def plan_of(shape, dtype, **options):
        backend = "cpu" if xp is np else "cuda"
        plans.append(distscan.Plan(comm, shape, dtype, "fsum", backend=backend, **options))
        return plans[-1]

    yield plan_of
    for plan in plans:
        plan.close()


def calls(plan, xp, x, *segments):
    """The results of a call, of a call in place, and of the two halves of a call."""
    yield host(plan(xp.asarray(x), None, *segments))
    y = xp.asarray(x.copy())
    if x.dtype == plan.types.out and x.shape == plan.out_shape:
        assert plan(y, y, *segments) is y
        yield host(y)
    plan.start(xp.asarray(x), None, *segments)
    yield host(plan.wait())


@two_cuts
@pairs(
    group_by="of",
    form=FORMS,
    of=[
        ("float64", grid, (-10, 11)),
        ("float64", finite_bits, (-1074, 1024)),
        ("float64", special, None),
        ("float32", grid, (-10, 11)),
        ("float64", near, (-70, 5)),
        ("float16", special, None),
    ],
)
def test_forms(form, of, xp, cut, plan_of, rng):
    name, data, window = of
    mine = cut(N)
    form = form | {"initial": form["initial"] and 0.5}
    plan = plan_of(length(mine), name, window=window, **form)
    for _ in range(2):
        x = data(rng, name, N)
        for y in calls(plan, xp, x[mine]):
            assert same(y, scanned(x, name, **form)[mine])


def test_a_window_known_at_once(plan_of):
    plan = plan_of(3, "float64", window=(-3, 5))
    assert plan.types.x == plan.types.out == np.float64
    assert "fsum of float64[3] to float64" in repr(plan)


@pytest.mark.parametrize("element", [16.0, 0.125, np.inf, np.nan])
def test_beyond_the_window(element, xp, comm, plan_of):
    """The plan can be used again: no rank waits for another one."""
    x = np.array([1.0, element, 2.0])
    text = "finite everywhere" if not np.isfinite(element) else r"beyond window=\(-2, 4\)"
    plan = plan_of(3, "float64", window=(-2, 4), agree=True)
    with pytest.raises(ValueError, match=f"x .*{text}"):
        plan(xp.asarray(x))
    y = host(plan(xp.asarray(np.ones(3))))
    assert same(y, np.arange(1.0, 4.0) + 3 * comm.rank)


def test_beyond_the_window_on_the_last_rank(xp, comm, plan_of):
    """Without ``agree``, the rank at fault raises, and the others in a later call."""
    last = comm.rank == comm.size - 1
    plan = plan_of(2, "float64", window=(-2, 4), initial=0.0)
    x = xp.asarray(np.array([1.0, 99.0 if last else 1.0]))
    if last:
        with pytest.raises(ValueError, match="beyond window"):
            plan(x)
    else:
        assert same(host(plan(x)), np.array([1.0, 2.0]) + 2 * comm.rank)
    comm.Barrier()
    if last or comm.size == 1:
        plan(xp.asarray(np.ones(2)))
    else:
        with pytest.raises(distscan.RankError, match="beyond window"):
            plan(xp.asarray(np.ones(2)))


def test_a_fault_of_a_call_that_finds_its_window(xp, comm, plan_of):
    """Every rank raises, and the plan can be used again."""
    plan = plan_of(3, "float64")
    wrong = xp.ones(4) if comm.rank == comm.size - 1 else xp.ones(3)
    with pytest.raises(ValueError, match="x has shape"):
        plan(wrong)
    plan.start(xp.ones(3))
    with pytest.raises(RuntimeError, match="this plan was started"):
        plan(xp.ones(3))
    assert same(host(plan.wait()), np.arange(1.0, 4.0) + 3 * comm.rank)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"strategy": "scan-add"}, "'scan-add' adds to rounded results"),
        ({"out_dtype": "int64"}, "dtype is int64; fsum rounds to floats"),
        ({"window": (3, 1)}, "low must be below high"),
        ({"window": "wide"}, "window is two integers"),
        ({"window": (0, 1), "initial": 5}, r"initial needs window=\(0, 3\), beyond"),
        ({"initial": 1j}, "initial is complex128; the result is float64"),
        ({"initial": 1 << 1024}, "initial is an integer of 1025 bits; fsum takes integers up to"),
    ],
)
def test_refusals(options, text, plan_of):
    with pytest.raises((TypeError, ValueError), match=text):
        plan_of(3, "float64", **options)


def test_a_window_of_another_operator(comm):
    with pytest.raises(ValueError, match="window= goes with op='fsum', not 'sum'"):
        distscan.Plan(comm, 3, "float64", window=(0, 1), backend="cpu")


def test_windows_that_differ(comm):
    if comm.size == 1:
        pytest.skip("one rank agrees with itself")
    with pytest.raises(ValueError, match="window"):
        distscan.Plan(comm, 3, "float64", "fsum", window=(0, 1 + comm.rank), backend="cpu")
