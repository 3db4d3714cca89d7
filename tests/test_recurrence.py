"""linear_recurrence against a loop, however the array is dealt out."""

import numpy as np
import pytest

import distscan
from distscan.core.errors import DisagreementError
from support.host import host
from support.together import everywhere


def by_hand(a, b, initial=0):
    h, before = np.empty_like(b), initial
    for t in range(len(b)):
        h[t] = before = a[t] * before + b[t]
    return h


def exact(rng, shape, code):
    """Factors of size 1 and small integers: exact in every order of composition."""
    a = rng.choice([-1, 1, 1], shape).astype(code)
    b = rng.integers(-8, 9, shape).astype(code)
    if np.dtype(code).kind == "c":
        a = (a * 1j ** rng.integers(0, 4, shape)).round().astype(code)
        b = (b + 1j * rng.integers(-8, 9, shape)).astype(code)
    return a, b


@pytest.mark.parametrize("code", "fdFD")
@pytest.mark.parametrize("m", [None, 0, 1, 3])
@pytest.mark.parametrize("n", [0, 1, 2, 300, 9001])
def test_against_a_loop(n, m, code, xp, cut, rng):
    shape = (n,) if m is None else (n, m)
    a, b = exact(rng, shape, code)
    mine = cut(n)
    h = distscan.linear_recurrence(xp.asarray(a[mine]), xp.asarray(b[mine]))
    assert h.dtype == np.dtype(code)
    assert isinstance(h, xp.ndarray)
    np.testing.assert_array_equal(host(h), by_hand(a, b)[mine])


@pytest.mark.parametrize("initial", [0, 3, np.float32(-2), [1, 2, 3]])
def test_initial(initial, xp, cut, rng):
    a, b = exact(rng, (500, 3) if np.ndim(initial) else 500, "d")
    mine = cut(500)
    h = distscan.linear_recurrence(xp.asarray(a[mine]), xp.asarray(b[mine]), initial)
    np.testing.assert_array_equal(host(h), by_hand(a, b, np.asarray(initial, "d"))[mine])


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


def test_reverse(xp, cut, rng):
    a, b = exact(rng, 777, "d")
    mine = cut(777)
    h = distscan.linear_recurrence(xp.asarray(a[mine]), xp.asarray(b[mine]), 5.0, reverse=True)
    np.testing.assert_array_equal(host(h), by_hand(a[::-1], b[::-1], 5.0)[::-1][mine])


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
    [("i", "i", "d"), ("?", "f", "f"), ("e", "e", "f"), ("f", "D", "D"), (">f8", "d", "d")],
)
def test_types(a, b, h, comm):
    x = np.array([1, 0, 1])
    y = distscan.linear_recurrence(x.astype(a), x.astype(b))
    assert y.dtype == np.dtype(h)
    want = by_hand(np.tile(x, comm.size), np.tile(x, comm.size))
    np.testing.assert_array_equal(y, want[3 * comm.rank :][:3])


def test_inputs_are_left_alone(cut, rng):
    a, b = exact(rng, 100, "d")
    mine = cut(100)
    for array in (a, b):
        array.flags.writeable = False
    h = distscan.linear_recurrence(a[mine][::-1][::-1], b[mine])
    np.testing.assert_array_equal(h, by_hand(a, b)[mine])
    h[...] = 0  # the caller's own


FAULTS = {
    "shapes": (ValueError, "a and b have the shapes", lambda: (np.zeros(3), np.zeros(4))),
    "scalars": (ValueError, "a and b have the shapes", lambda: (3.0, 4.0)),
    "3-d": (ValueError, "a and b have the shapes", lambda: (np.zeros((2, 2, 2)),) * 2),
    "text": (TypeError, "a is <U1", lambda: (np.array(["x"]), np.zeros(1))),
    "initial": (ValueError, "initial has shape", lambda: (np.zeros(3), np.zeros(3), [1, 2])),
    "complex": (TypeError, "initial is complex128", lambda: (np.zeros(3), np.zeros(3), 1j)),
}


@pytest.mark.parametrize("case", FAULTS)
def test_faults(case, comm):
    kind, message, make = FAULTS[case]
    arguments = make() if comm.rank == comm.size - 1 else (np.zeros(3), np.zeros(3))
    everywhere(comm, kind, message, lambda: distscan.linear_recurrence(*arguments))


def test_disagreement(comm):
    if comm.size == 1:
        pytest.skip("one rank cannot disagree")
    x = np.ones(3)
    everywhere(comm, DisagreementError, "disagree on initial",
               lambda: distscan.linear_recurrence(x, x, float(comm.rank)))  # fmt: skip
