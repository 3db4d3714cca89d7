"""Plans of ``fsum``: by the operator of a known window, or of the window that each call finds."""

import numpy as np
import pytest

import distscan
from support.addends import grid, normal, special
from support.cuts import length, two_cuts
from support.exact import same, scanned
from support.forms import FORMS
from support.host import host
from support.pairs import pairs
from support.patterns import finite_bits

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
