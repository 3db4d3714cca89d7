"""The names that people look for, against NumPy's functions of the same names."""

import inspect

import numpy as np
import pytest
from hypothesis import strategies as st
from mpi4py import MPI

import distscan
from distscan import DisagreementError
from support import reference
from support.arrays import Foreign, host
from support.campaigns import run_campaign
from support.cases import pairs
from support.processes import everywhere

NAN = {"nancumsum": np.nancumsum, "nancumprod": np.nancumprod}
CUMULATIVE = ("cumulative_sum", "cumulative_prod")


@pytest.mark.parametrize("name", NAN)
@pytest.mark.parametrize("code", "?bLefdFD")
def test_nan_is_nothing(name, code, xp, cut, rng):
    x = rng.choice([-1, 1, 1], 2001).astype(code)
    if np.dtype(code).kind in "fc":
        x[rng.random(2001) < 0.2] = np.nan
        if np.dtype(code).kind == "c":
            x[::7] = complex(1, np.nan)
    mine = cut(2001)
    y = getattr(distscan, name)(xp.asarray(x[mine]))
    want = NAN[name](x)
    assert y.dtype == want.dtype
    np.testing.assert_array_equal(host(y), want[mine])


@pytest.mark.parametrize("name", NAN)
def test_nan_with_axis_dtype_and_out(name, cut, rng):
    x = rng.choice([-1, 1, np.nan], (100, 3))
    mine = cut(100)
    given = x[mine].copy()
    given.flags.writeable = False
    out = np.zeros((mine.stop - mine.start, 3), "f")
    assert getattr(distscan, name)(given, 0, "d", out) is out
    np.testing.assert_array_equal(out, NAN[name](x, axis=0)[mine])
    y = getattr(distscan, name)(given, axis=0, exclusive=True, initial=5)
    replaced = np.where(np.isnan(x), name == "nancumprod", x)
    step = np.cumprod if name == "nancumprod" else np.cumsum
    want = step(np.concatenate([np.full((1, 3), 5.0), replaced]), axis=0)[:-1]
    np.testing.assert_array_equal(y, want[mine])


@st.composite
def cases(draw):
    """Draw a scan without NaN; the numbers in it are drawn from its seed."""
    size, axis = MPI.COMM_WORLD.size, draw(st.sampled_from([None, None, 0, 1]))
    options = {name: draw(st.booleans()) for name in ("exclusive", "reverse")}
    return {
        "seed": draw(st.integers(0, 2**31)),
        "sizes": draw(st.lists(st.integers(0, 40), min_size=size, max_size=size)),
        "m": draw(st.sampled_from([1, 3, 17])) if axis is not None else None,
        "name": draw(st.sampled_from(sorted(NAN))),
        "code": draw(st.sampled_from("efdFD")),
        "segmented": axis is None and draw(st.booleans()),
        "options": options | {"axis": axis, "initial": draw(st.sampled_from([None, 3]))},
    }


def test_nan_is_nothing_in_any_case(xp, comm):
    """Shards of any lengths, also empty ones; infinities and -0.0 are among the elements."""

    def check(case):
        rng, sizes, name = np.random.default_rng(case["seed"]), case["sizes"], case["name"]
        n, start, rest = sum(sizes), sum(sizes[: comm.rank]), () if case["m"] is None else case["m"]
        shape, mine = (n, *np.atleast_1d(rest).astype(int)), slice(start, start + sizes[comm.rank])
        x = rng.choice([-1, 1, 1, -0.0, np.nan, np.inf], shape, p=[0.4, 0.3, 0.2, 0.04, 0.05, 0.01])
        x, heads = x.astype(case["code"]), rng.random(n) < 0.1
        segments = heads if case["segmented"] else None
        acc = "f" if case["code"] == "e" else case["code"]
        product = name == "nancumprod"
        if product and np.dtype(acc).kind == "c":  # the product of infinities depends on the order
            x[np.isinf(x)] = 2
        want = reference.scan(
            np.multiply if product else np.add, np.where(np.isnan(x), product, x).astype(acc),
            identity=int(product), heads=segments, **case["options"],
        ).astype(case["code"])  # fmt: skip
        y = getattr(distscan, name)(
            xp.asarray(x[mine]), comm=comm, **case["options"],
            segments=None if segments is None else xp.asarray(segments[mine]),
        )  # fmt: skip
        assert y.dtype == np.dtype(case["code"])
        np.testing.assert_array_equal(host(y), want[mine])

    run_campaign(comm, cases(), check, 100 if xp is np else 40)


def test_nan_of_another_library(cut, rng):
    x = rng.choice([1, np.nan], 50)
    y = distscan.nancumsum(Foreign(x[cut(50)]))
    assert isinstance(y, Foreign)
    np.testing.assert_array_equal(y.array, np.nancumsum(x)[cut(50)])


def test_nan_of_bfloat16(cut, rng):
    small = pytest.importorskip("ml_dtypes").bfloat16
    x = rng.choice([1, np.nan], 50)
    y = distscan.nancumsum(x.astype(small)[cut(50)])
    assert y.dtype == small
    np.testing.assert_array_equal(y.astype("d"), np.nancumsum(x)[cut(50)])


def test_logcumsumexp(xp, cut, rng):
    x = rng.normal(size=1000) * 300
    mine = cut(1000)
    y = distscan.logcumsumexp(xp.asarray(x[mine]))
    np.testing.assert_allclose(host(y), np.logaddexp.accumulate(x)[mine], rtol=1e-12)


@pairs(name=CUMULATIVE, initial=[False, True], code="?bfD", n=[0, 1, 500])
def test_cumulative(name, initial, code, n, xp, cut, comm, rng):
    x = rng.choice([0, 1] if code == "?" else [-1, 1], n).astype(code)
    mine = cut(n)
    y = getattr(distscan, name)(xp.asarray(x[mine]), include_initial=initial)
    want = getattr(np, name)(x, include_initial=initial)
    assert y.dtype == want.dtype
    assert isinstance(y, xp.ndarray)
    # The first element of the whole is rank 0's; all others stand one further.
    start = mine.start + (initial and comm.rank > 0)
    np.testing.assert_array_equal(host(y), want[start : mine.stop + initial])


@pytest.mark.parametrize("name", CUMULATIVE)
@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
def test_cumulative_along_an_axis(name, axis, xp, cut, comm, rng):
    x = rng.choice([-1, 1], (60, 3, 4))
    mine = cut(60)
    y = getattr(distscan, name)(xp.asarray(x[mine]), axis=axis, include_initial=True)
    want = getattr(np, name)(x, axis=axis, include_initial=True)
    if axis % 3 == 0:
        mine = slice(mine.start + (comm.rank > 0), mine.stop + 1)
    np.testing.assert_array_equal(host(y), want[mine])


@pairs(name=CUMULATIVE, initial=[False, True], axis=[None, 0, 1, -1], code="lfb")
def test_cumulative_out(name, initial, axis, code, xp, cut, comm, rng):
    x = rng.choice([-1, 1], 60 if axis is None else (60, 4))
    mine = cut(60)
    want = getattr(np, name)(x, axis=axis, out=filled(x.shape, axis, initial, code),
                             include_initial=initial)  # fmt: skip
    part = slice(mine.start + (initial and comm.rank > 0), mine.stop + initial)
    want = want[part if axis in (None, 0) else mine]
    out = xp.asarray(filled(want.shape, axis, False, code))
    shard = xp.asarray(x[mine])
    y = getattr(distscan, name)(shard, axis=axis, out=out, include_initial=initial)
    assert y is out
    np.testing.assert_array_equal(host(out), want)
    np.testing.assert_array_equal(host(shard), x[mine])


def filled(shape, axis, initial, code):
    shape = list(shape)
    shape[axis or 0] += initial
    return np.full(shape, 77, code)


@pytest.mark.parametrize("name", CUMULATIVE)
@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("axis", [0, 1])
def test_cumulative_out_in_the_memory_of_x(name, place, axis, cut, comm, rng):
    """x where the result's elements are, or one before: 0 or 1 is written behind the last read."""
    x = rng.choice([-1, 1], (50, 3))
    mine = cut(50)
    want = getattr(np, name)(x, axis=axis, include_initial=True)
    rows = slice(mine.start + (comm.rank > 0), mine.stop + 1) if axis == 0 else mine
    out = np.zeros_like(want[rows])
    longer = axis == 1 or comm.rank == 0
    begin = place if longer else 0
    view = np.moveaxis(np.moveaxis(out, axis, 0)[begin : begin + x[mine].shape[axis]], 0, axis)
    view[...] = x[mine]
    getattr(distscan, name)(view, axis=axis, include_initial=True, out=out)
    np.testing.assert_array_equal(out, want[rows])


def test_cumulative_out_of_other_kinds(cut, comm, rng):
    x = rng.integers(0, 9, 80)
    mine = cut(80)
    want = np.cumulative_sum(x, include_initial=True)
    want = want[mine.start + (comm.rank > 0) : mine.stop + 1]
    out = Foreign(np.zeros(want.size))
    assert distscan.cumulative_sum(x[mine], out=out, include_initial=True) is out
    np.testing.assert_array_equal(out.array, want)
    spread = np.zeros(2 * want.size, "f")[::2]
    assert distscan.cumulative_sum(Foreign(x[mine]), out=spread, include_initial=True) is spread
    np.testing.assert_array_equal(spread, want)
    with pytest.raises(TypeError, match="out must be an array, not list"):
        distscan.cumulative_sum(x[mine], out=[0] * want.size, include_initial=True)


@pytest.mark.parametrize("name", CUMULATIVE)
def test_cumulative_out_that_does_not_fit(name, comm):
    """On rank 0 one element is missing; or it is read-only."""
    call, longer = getattr(distscan, name), comm.rank == 0
    text = everywhere(comm, ValueError, r"out has shape \(3,\); the result has \(4,\)",
                      lambda: call(np.zeros(3), out=np.zeros(3), include_initial=True))  # fmt: skip
    assert comm.size == 1 or text.startswith("rank 0: ")
    out = np.zeros(3 + longer)
    out.flags.writeable = False
    everywhere(comm, ValueError, "out is read-only",
               lambda: call(np.zeros(3), out=out, include_initial=True))  # fmt: skip


def test_cumulative_types(cut, rng):
    x = rng.integers(0, 9, 99)
    y = distscan.cumulative_sum(x[cut(99)], dtype="f")
    assert y.dtype == np.float32
    np.testing.assert_array_equal(y, np.cumsum(x)[cut(99)])
    y = distscan.cumulative_prod(Foreign(x[cut(99)]), dtype="d", include_initial=True)
    assert isinstance(y, Foreign)
    assert y.array.dtype == np.float64


def test_cumulative_faults(comm):
    for name in CUMULATIVE:
        call = getattr(distscan, name)
        everywhere(comm, ValueError, r"x has shape \(2, 2\); axis= is needed",
                   lambda call=call: call(np.zeros((2, 2))))  # fmt: skip
        options = {"axis": 2, "include_initial": True}
        everywhere(comm, np.exceptions.AxisError, "axis 2 is out of bounds",
                   lambda c=call, o=options: c(np.zeros((2, 2)), **o))  # fmt: skip
        everywhere(comm, TypeError, "axis must be an integer or None, not a tuple",
                   lambda c=call: c(np.zeros((2, 2)), axis=(0, 1)))  # fmt: skip
        everywhere(comm, TypeError, "axis must be an integer or None, not a bool",
                   lambda c=call: c(np.zeros((2, 2)), axis=True))  # fmt: skip
        if comm.size > 1:
            options = {"include_initial": comm.rank % 2 == 1}
            everywhere(comm, DisagreementError, "disagree on include_initial",
                       lambda call=call, options=options: call(np.zeros(2), **options))  # fmt: skip


@pytest.mark.parametrize("name", ["cumsum", "cumprod", *NAN])
def test_signatures_are_numpys(name):
    ours = list(inspect.signature(getattr(distscan, name)).parameters)[1:4]
    assert ours == list(inspect.signature(getattr(np, name)).parameters)[1:4]


@pytest.mark.parametrize("name", CUMULATIVE)
def test_signatures_are_the_standards_and_numpys(name):
    parameters = inspect.signature(getattr(distscan, name)).parameters.values()
    assert [p.name for p in parameters][:5] == ["x", "axis", "dtype", "out", "include_initial"]
    assert [p.name for p in parameters][:5] == list(inspect.signature(getattr(np, name)).parameters)
    kinds = [p.kind.name for p in parameters]
    assert kinds[0] == "POSITIONAL_ONLY"
    assert set(kinds[1:]) == {"KEYWORD_ONLY"}
