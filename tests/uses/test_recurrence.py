"""linear_recurrence against a loop, however the array is dealt out."""

import functools

import numpy as np
import pytest
from hypothesis import strategies as st
from mpi4py import MPI

import distscan
from distscan import DisagreementError
from support import reference
from support.arrays import host
from support.campaigns import run_campaign
from support.cases import pairs
from support.processes import everywhere
from support.uses import by_hand, exact


@pairs(code="fdFD", m=[None, 0, 1, 3], n=[0, 1, 2, 300, 9001])
def test_against_a_loop(n, m, code, xp, cut, rng):
    shape = (n,) if m is None else (n, m)
    a, b = exact(rng, shape, code)
    mine = cut(n)
    h = distscan.linear_recurrence(xp.asarray(a[mine]), xp.asarray(b[mine]))
    assert h.dtype == np.dtype(code)
    assert isinstance(h, xp.ndarray)
    np.testing.assert_array_equal(host(h), by_hand(a, b)[mine])


@pairs(code="fD", reverse=[False, True], form=["plain", "initial", "segments", "last"])
def test_more_dimensions(code, reverse, form, xp, cut, rng):
    """The axes after the first are those of columns."""
    a, b = exact(rng, (60, 2, 3), code)
    columns = [array.reshape(60, 6) for array in (a, b)]
    mine, flags = cut(60), np.arange(60) % 7 == 3
    options: dict = {"reverse": reverse, "return_last": form == "last"}
    if form == "segments":
        options["segments"] = xp.asarray(flags[mine])
    initial = np.arange(6).astype(code) if form == "initial" else None
    want = distscan.linear_recurrence(
        *(xp.asarray(each[mine]) for each in columns), initial, **options
    )
    initial = None if initial is None else initial.reshape(2, 3)
    got = distscan.linear_recurrence(xp.asarray(a[mine]), xp.asarray(b[mine]), initial, **options)
    if form == "last":
        assert got[1].shape == (2, 3)
        np.testing.assert_array_equal(host(got[1]).reshape(-1), host(want[1]))
        got, want = got[0], want[0]
    np.testing.assert_array_equal(host(got).reshape(-1, 6), host(want))


@pairs(axis=[1, 2, -1], reverse=[False, True], code="fdF", initial=[None, 0, 3])
def test_other_axes(axis, reverse, code, initial, xp, rng):
    """Each rank's recurrences are its own."""
    a, b = exact(rng, (3, 40, 5) if axis == 1 else (2, 3, 40), code)
    step = -1 if reverse else 1
    along = [np.moveaxis(array, axis, 0)[::step] for array in (a, b)]
    seed = np.dtype(code).type(initial or 0)
    want = np.moveaxis(by_hand(*along, seed)[::step], 0, axis)
    h = distscan.linear_recurrence(
        xp.asarray(a), xp.asarray(b), initial, axis=axis, reverse=reverse
    )
    np.testing.assert_array_equal(host(h), want)


def test_what_other_axes_do_not_take(comm, xp):
    b = xp.ones((2, 3))
    for options in (
        {"segments": xp.zeros(2, bool)},
        {"return_last": True},
        {"initial": np.ones(3)},
    ):
        solve = functools.partial(distscan.linear_recurrence, 0.5, b, axis=1, **options)
        everywhere(comm, ValueError, "for the axis that is spread", solve)


@pytest.mark.parametrize("initial", [0, 3, np.float32(-2), [1, 2, 3]])
def test_initial(initial, xp, cut, rng):
    a, b = exact(rng, (500, 3) if np.ndim(initial) else 500, "d")
    mine = cut(500)
    h = distscan.linear_recurrence(xp.asarray(a[mine]), xp.asarray(b[mine]), initial)
    np.testing.assert_array_equal(host(h), by_hand(a, b, np.asarray(initial, "d"))[mine])


@pytest.mark.parametrize("segmented", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("shape", [40, (40, 3)])
def test_without_initial_the_first_state_before_is_0(shape, reverse, segmented, xp, cut, rng):
    """NaN and infinite factors of first elements count: 0 times these is NaN."""
    mine, step = cut(40), -1 if reverse else 1
    starts = np.isin(np.arange(40), [0, 9, 10, 31]) if segmented else np.arange(40) == 0
    for odd in (np.nan, np.inf, 1.0, -1.0):
        a, b = exact(rng, shape, "d")
        a[::step][starts], b[::step][starts] = odd, rng.choice([-0.0, 2.0])
        want = by_hand(a[::step], b[::step], 0.0, starts)[::step]
        marks = np.append(starts[1:], False)[::-1] if reverse else starts
        for initial in (None, 0):
            h = host(distscan.linear_recurrence(
                xp.asarray(a[mine]), xp.asarray(b[mine]), initial, reverse=reverse,
                segments=xp.asarray(marks[mine]) if segmented else None,
            ))  # fmt: skip
            np.testing.assert_array_equal(h, want[mine])
            np.testing.assert_array_equal(np.signbit(h[h == 0]), np.signbit(want[mine][h == 0]))


@pytest.mark.parametrize("initial", [None, 0, -3])
def test_infinite_factors_at_heads_of_columns(initial, xp, cut):
    a, b, heads = np.ones((30, 2)), np.ones((30, 2)), np.arange(30) % 7 == 3
    a[3], a[17] = np.inf, [-np.inf, 0]
    mine = cut(30)
    h = distscan.linear_recurrence(
        xp.asarray(a[mine]), xp.asarray(b[mine]), initial, segments=xp.asarray(heads[mine])
    )
    np.testing.assert_array_equal(host(h), by_hand(a, b, initial or 0, heads)[mine])


@pytest.mark.parametrize("code", "gG")
def test_initial_row_of_long_doubles(code, comm):
    """Their padding differs from rank to rank; what it pads does not."""
    a = np.ones((2, 1), code)
    for value in range(3):
        noise = np.full((1, np.dtype(code).itemsize), comm.rank + 1, np.uint8)
        initial = noise.view(code).reshape(1)
        initial[...] = np.array([value], "f")  # writes 10 bytes of each 16
        h = distscan.linear_recurrence(a, a, initial)
        np.testing.assert_array_equal(h[:, 0], np.arange(1, 3) + value + 2 * comm.rank)


@pytest.mark.parametrize("code", "fd")
def test_a_filter(code, xp, cut, rng):
    """Real data: an exponential average, which forgets."""
    a, b = rng.uniform(0.5, 0.99, 20001).astype(code), rng.normal(size=20001).astype(code)
    mine = cut(a.size)
    h = distscan.linear_recurrence(xp.asarray(a[mine]), xp.asarray(b[mine]))
    want = by_hand(a.astype(np.longdouble), b.astype(np.longdouble))
    bound = 100 * np.finfo(code).eps * by_hand(a.astype("d"), np.abs(b).astype("d"))
    assert np.all(np.abs(host(h) - want[mine]) <= bound[mine])


@pytest.mark.parametrize(
    ("a", "b", "h"),
    [("i", "i", "d"), ("?", "f", "f"), ("e", "e", "e"), ("f", "D", "D"), (">f8", "d", "d")],
)
def test_types(a, b, h, comm):
    x = np.array([1, 0, 1])
    y = distscan.linear_recurrence(x.astype(a), x.astype(b))
    assert y.dtype == np.dtype(h)
    want = by_hand(np.tile(x, comm.size), np.tile(x, comm.size))
    np.testing.assert_array_equal(y, want[3 * comm.rank :][:3])


@pytest.mark.parametrize("m", [None, 3])
@pytest.mark.parametrize("reverse", [False, True])
def test_factors_of_columns_and_the_last_state(m, reverse, xp, cut, rng):
    shape, mine = (300,) if m is None else (300, m), cut(300)
    _, b = exact(rng, shape, "f")
    for factor in (np.float32(-1), np.ones(shape[1:], "f"), -1):
        step = -1 if reverse else 1
        want = by_hand(np.full(shape, factor), b[::step])[::step]
        given = factor if np.ndim(factor) == 0 else xp.asarray(factor)
        h, last = distscan.linear_recurrence(
            given, xp.asarray(b[mine]), reverse=reverse, return_last=True
        )
        np.testing.assert_array_equal(host(h), want[mine])
        assert isinstance(last, xp.ndarray) or m is None
        np.testing.assert_array_equal(host(xp.asarray(last)), want[0 if reverse else -1])


def test_to_go_on_with_the_last_state(comm, rng):
    a, b = exact(rng, (200, 3), "d")
    first, last = distscan.linear_recurrence(a[:100], b[:100], comm=MPI.COMM_SELF, return_last=True)
    second = distscan.linear_recurrence(a[100:], b[100:], last, comm=MPI.COMM_SELF)
    np.testing.assert_array_equal(np.concatenate([first, second]), by_hand(a, b))
    _, last = distscan.linear_recurrence(a[:0], b[:0], [1, 2, 3], return_last=True)
    np.testing.assert_array_equal(last, [1, 2, 3])


@pairs(
    code="ef",
    m=[None, 1, 3, 20],
    initial=[None, 5],
    reverse=[False, True],
    by=["keys", "flags"],
)
def test_packed_sequences(by, reverse, initial, m, code, xp, cut, rng):
    n = 300
    a, b = exact(rng, n if m is None else (n, m), "f")
    b, lengths = b % 3, rng.multinomial(n, np.ones(9) / 9)
    keys = np.repeat(np.arange(9), lengths)
    want, step = np.empty_like(b), -1 if reverse else 1
    for key in range(9):
        part = keys == key
        want[part] = by_hand(a[part][::step], b[part][::step], initial or 0)[::step]
    mine = cut(n)
    segments = keys if by == "keys" else np.diff(keys, prepend=-1) != 0
    h, last = distscan.linear_recurrence(
        xp.asarray(a[mine].astype(code)), xp.asarray(b[mine].astype(code)), initial,
        reverse=reverse, segments=xp.asarray(segments[mine]), return_last=True,
    )  # fmt: skip
    assert h.dtype == np.dtype(code)
    np.testing.assert_array_equal(host(h), want[mine])
    np.testing.assert_array_equal(host(last), want[0 if reverse else -1])


def test_numbers_of_python_have_no_type(xp, cut, rng):
    mine, b = cut(100), rng.integers(-8, 9, 100)
    for code, a, h in (("f", 0.5, "f"), ("e", -1, "e"), ("f", 1j, "F"), ("i", 2, "d")):
        got = distscan.linear_recurrence(a, xp.asarray(b.astype(code)[mine]))
        assert got.dtype == np.dtype(h)
        if a == -1:
            np.testing.assert_array_equal(host(got), by_hand(np.full(100, a, h), b.astype(h))[mine])


def test_half_types_accumulate_in_float32(cut):
    mine = cut(5000)
    ones = np.ones(5000, "e")
    h = distscan.linear_recurrence(ones[mine], ones[mine])  # in half, 2048 + 1 is 2048
    np.testing.assert_array_equal(h, np.arange(1, 5001).astype("e")[mine])


LAYOUTS = {
    "contiguous": lambda w, n, m, xp: w[:n, :m].copy(),
    "strided": lambda w, n, m, xp: w[: 2 * n : 2, : 2 * m : 2],
    "Fortran": lambda w, n, m, xp: w.T[:m, :n].copy().T,
    "backwards": lambda w, n, m, xp: w[:n, :m][::-1, ::-1],
    "one column": lambda w, n, m, xp: xp.broadcast_to(w[: 2 * n : 2, :1], (n, m)),
    "one row": lambda w, n, m, xp: xp.broadcast_to(w[0, : 2 * m : 2], (n, m)),
    "one number": lambda w, n, m, xp: xp.broadcast_to(w[0, 0], (n, m)),
}


@pairs(group_by="a", a=LAYOUTS, b=LAYOUTS, m=[1, 7], segmented=[False, True])
def test_layouts(a, b, segmented, m, xp, rng):
    """Every layout gives the bits of contiguous arrays, also in one column."""
    n, sign = 40, xp.asarray(rng.choice([-1.0, 1.0], (90, 20)))
    numbers = xp.asarray(rng.integers(-3, 4, (90, 20)).astype(float))
    factors, terms = LAYOUTS[a](sign, n, m, xp), LAYOUTS[b](numbers, n, m, xp)
    flags = xp.asarray(rng.random(n) < 0.1) if segmented else None
    h = distscan.linear_recurrence(factors, terms, segments=flags)
    want = distscan.linear_recurrence(factors.copy(), terms.copy(), segments=flags)
    np.testing.assert_array_equal(host(h), host(want))
    if not segmented:
        h = distscan.linear_recurrence(factors[:, 0], terms[:, 0])
        np.testing.assert_array_equal(host(h), host(want)[:, 0])


def test_inputs_are_left_alone(cut, rng):
    a, b = exact(rng, 100, "d")
    mine = cut(100)
    for array in (a, b):
        array.flags.writeable = False
    h = distscan.linear_recurrence(a[mine][::-1][::-1], b[mine])
    np.testing.assert_array_equal(h, by_hand(a, b)[mine])
    h[...] = 0  # the caller's own


FAULTS = {
    "shapes": (ValueError, "a has shape", lambda: (np.zeros(3), np.zeros(4))),
    "scalars": (ValueError, "b is one number", lambda: (3.0, 4.0)),
    "no axis": (TypeError, "axis must be", lambda: (np.zeros(3), np.zeros(3), 0, None)),
    "axis": (np.exceptions.AxisError, "out of bounds", lambda: (np.zeros(3), np.zeros(3), 0, 1)),
    "text": (TypeError, "a is <U1", lambda: (np.array(["x"]), np.zeros(1))),
    "initial": (ValueError, "initial has shape", lambda: (np.zeros(3), np.zeros(3), [1, 2])),
    "complex": (TypeError, "initial is complex128", lambda: (np.zeros(3), np.zeros(3), 1j)),
}


@pytest.mark.parametrize("case", FAULTS)
def test_faults(case, comm):
    kind, message, make = FAULTS[case]
    arguments = make() if comm.rank == comm.size - 1 else (np.zeros(3), np.zeros(3))
    arguments, axis = arguments[:3], arguments[3] if len(arguments) > 3 else 0
    everywhere(comm, kind, message, lambda: distscan.linear_recurrence(*arguments, axis=axis))


def test_what_no_rank_can_read_is_raised_by_all(comm):
    """Also with segments, whose exchange comes before all others."""
    last, flags = comm.rank == comm.size - 1, np.zeros(2, bool)
    b = [[1.0, 2.0], [3.0]] if last else np.ones((2, 2))
    everywhere(comm, ValueError, "inhomogeneous",
               lambda: distscan.linear_recurrence(0.5, b, segments=flags))  # fmt: skip
    b, odd = np.ones((2, 2)), np.zeros(2) if last else False
    everywhere(comm, ValueError, "ambiguous",
               lambda: distscan.linear_recurrence(0.5, b, segments=flags, reverse=odd))  # fmt: skip
    if comm.size > 1:
        b = np.ones(2) if last else b
        everywhere(comm, DisagreementError, "dimensions",
                   lambda: distscan.linear_recurrence(0.5, b, segments=flags))  # fmt: skip


@pytest.mark.parametrize("shape", [3, (3, 2)])
@pytest.mark.parametrize("length", [2, 4])
def test_segments_of_a_wrong_length(length, shape, xp, comm):
    n = length if comm.rank == comm.size - 1 else 3
    x, flags = xp.ones(shape), xp.zeros(n, bool)
    everywhere(comm, ValueError, "segments has shape",
               lambda: distscan.linear_recurrence(x, x, segments=flags))  # fmt: skip


@st.composite
def cases(draw):
    """Draw a recurrence; the numbers in it are drawn from its seed."""
    size = MPI.COMM_WORLD.size
    m = draw(st.sampled_from([None, 0, 1, 2, 3, 17]))
    segments = draw(st.sampled_from([None, "flags", "keys"]))
    return {
        "seed": draw(st.integers(0, 2**31)),
        "sizes": draw(st.lists(st.integers(0, 40), min_size=size, max_size=size)),
        "m": m,
        "code": draw(st.sampled_from("fdFDe")),
        "reverse": draw(st.booleans()),
        "factors": draw(st.sampled_from(["all", "row", "number"])),
        "segments": segments,
        "initial": draw(st.sampled_from([None, "number", "row" if segments is None else None])),
        "odd": draw(st.booleans()),
    }


def test_any_case(xp, comm):
    """Shards of any lengths, also empty ones; NaN, infinities and -0.0 among the terms."""

    def check(case):
        rng, sizes, m = np.random.default_rng(case["seed"]), case["sizes"], case["m"]
        n, start = sum(sizes), sum(sizes[: comm.rank])
        shape, mine = (n,) if m is None else (n, m), slice(start, start + sizes[comm.rank])
        a, b = exact(rng, shape, case["code"])
        if case["odd"]:
            b[rng.random(shape) < 0.05] = rng.choice([np.nan, np.inf, -np.inf, -0.0])
        given = a[mine]
        if case["factors"] != "all" and n > 0 and 0 not in shape:
            given = a.flat[0] if case["factors"] == "number" or m is None else a[0].copy()
            a = np.broadcast_to(given, shape)
        initial = {None: None, "number": 2, "row": rng.integers(-3, 4, shape[1:])}[case["initial"]]
        heads = rng.random(n) < 0.1
        marks = {None: None, "flags": heads, "keys": np.cumsum(heads) % 3}[case["segments"]]
        starts = None if marks is None else reference.heads_of(marks)
        step = -1 if case["reverse"] else 1
        if marks is not None and step < 0:
            starts = np.append(starts[1:], False)[::-1]
        wide = "f" if case["code"] == "e" else case["code"]
        want = by_hand(
            a.astype(wide)[::step], b.astype(wide)[::step],
            0 if initial is None else np.asarray(initial, wide), starts,
        )[::step].astype(case["code"])  # fmt: skip
        h, last = distscan.linear_recurrence(
            given if np.ndim(given) == 0 else xp.asarray(given), xp.asarray(b[mine]),
            initial, comm=comm, reverse=case["reverse"], return_last=True,
            segments=None if marks is None else xp.asarray(marks[mine]),
        )  # fmt: skip
        assert h.dtype == np.dtype(case["code"])
        np.testing.assert_array_equal(host(h), want[mine])
        end = (
            want[::step][-1]
            if n
            else np.broadcast_to(initial if initial is not None else 0, shape[1:])
        )
        np.testing.assert_array_equal(host(last) if hasattr(last, "get") else last, end)

    run_campaign(comm, cases(), check, 100 if xp is np else 40)


def test_disagreement(comm):
    if comm.size == 1:
        pytest.skip("one rank cannot disagree")
    x, keys = np.ones((3, 2)), None if comm.rank else np.arange(3)
    everywhere(comm, DisagreementError, "disagree on the function",
               lambda: distscan.linear_recurrence(x, x, segments=keys))  # fmt: skip
    x = np.ones(3)
    everywhere(comm, DisagreementError, "disagree on initial",
               lambda: distscan.linear_recurrence(x, x, float(comm.rank)))  # fmt: skip
