"""Exclusive, initial, reverse, each with the others; flattened, and along every axis."""

import numpy as np
import pytest
from mpi4py import MPI

import distscan
from distscan import DisagreementError
from distscan.mpi import communicators
from support.arrays import host
from support.cases import STRATEGIES, pairs
from support.processes import everywhere

# ---- exclusive, initial, reverse: each with the others, against the definition -------------------


def test_operator_without_identity(comm, cut, rng):
    """It needs an initial value to be exclusive, and nothing else."""
    op = distscan.Operator("latest", lambda a, b: np.where(True, b, a), "b", None)
    x = rng.integers(0, 99, 50)
    mine = cut(50)
    everywhere(comm, ValueError, "'latest' has no identity",
               lambda: distscan.scan(x[mine], op, exclusive=True))  # fmt: skip
    y = distscan.scan(x[mine], op, exclusive=True, initial=-1)
    np.testing.assert_array_equal(y, np.concatenate([[-1], x[:-1]])[mine])
    np.testing.assert_array_equal(distscan.scan(x[mine], op, reverse=True), x[mine])


@pytest.mark.parametrize(
    ("code", "initial", "kind", "message"),
    [
        ("l", 2.0, TypeError, "initial is float64; the scan accumulates in int64"),
        ("d", 1j, TypeError, "initial is complex128"),
        ("d", "three", TypeError, "initial is <U5"),
        ("d", [1, 2], ValueError, "not an array of shape"),
        ("l", 2**63, OverflowError, "int"),
        ("L", -1, OverflowError, "out of bounds"),
        ("d", {}, TypeError, "initial is object"),
        ("d", np.ma.masked, ValueError, "initial is masked"),
        ("l,l", (1, 2.5), ValueError, "initial has 2.5, which int64 does not have"),
    ],
)
def test_bad_initial(code, initial, kind, message, comm):
    x = np.zeros(3, code)
    op = distscan.Operator("own", lambda a, b: b) if x.dtype.names else "sum"
    op = "max" if code == "f" else op  # sums accumulate in float64
    initial = initial if comm.rank == comm.size - 1 else 0
    everywhere(comm, kind, message, lambda: distscan.scan(x, op, initial=initial))
    options = {"op": op, "initial": initial, "backend": "cpu"}
    everywhere(comm, kind, message, lambda: distscan.Plan(comm, 3, code, **options))


def test_narrow_initial(comm):
    """In the accumulating type: sums of int8 are wide, its maxima are not."""
    x = np.zeros(2, "b")
    assert distscan.scan(x, initial=300)[0] == 300
    everywhere(comm, OverflowError, "300", lambda: distscan.scan(x, "max", initial=300))
    everywhere(comm, OverflowError, "300", lambda: distscan.scan(x, "max", initial=np.int64(300)))
    assert distscan.scan(x, "max", initial=np.float32(0.5), dtype="d").dtype == np.float64
    assert distscan.scan(x, "logical_or", initial=2).all()  # any number but 0 is true
    everywhere(comm, ValueError, "initial is masked",
               lambda: distscan.scan(x, "fsum", initial=np.ma.masked))  # fmt: skip


@pytest.mark.parametrize(
    ("ours", "theirs", "what"),
    [
        ({"exclusive": True}, {}, "exclusive"),
        ({"reverse": True}, {}, "reverse"),
        ({"initial": 1}, {"initial": 2}, "initial"),
        ({"initial": 0.0}, {"initial": -0.0}, "initial"),
        ({"initial": 1.0}, {}, "initial"),
    ],
)
def test_ranks_that_disagree(ours, theirs, what, comm):
    if comm.size == 1:
        pytest.skip("one rank cannot disagree")
    form = theirs if comm.rank == comm.size - 1 else ours
    everywhere(comm, DisagreementError, f"disagree on {what}",
               lambda: distscan.scan(np.zeros(3), **form))  # fmt: skip
    everywhere(comm, DisagreementError, f"disagree on {what}",
               lambda: distscan.Plan(comm, 3, "d", backend="cpu", **form))  # fmt: skip


def test_initial_values_that_compare_equal_are_told_apart(xp, cut):
    """0.0 and -0.0, 1 and True: what scan() remembers is of one of them."""
    mine = cut(9)
    x = xp.full(mine.stop - mine.start, -0.0)
    for initial in (0.0, -0.0, 0.0):
        y = host(distscan.scan(x, initial=initial))
        np.testing.assert_array_equal(np.signbit(y), np.signbit(initial))


def test_the_opposite_order_is_made_once(comm):
    """A communicator keeps it, and frees it when it is freed itself."""
    own = comm.Dup()
    distscan.scan(np.arange(3), comm=own, reverse=True)
    kept = communicators.backwards(own)
    distscan.scan(np.arange(3), comm=own, reverse=True)
    assert communicators.backwards(own) is kept
    assert (kept.rank, kept.size) == (comm.size - 1 - comm.rank, comm.size)
    own.Free()
    assert kept == MPI.COMM_NULL


# ---- n-d arrays: flattened, along the axis that is spread over the ranks, along every other ------

LAYOUTS = {
    "Fortran": np.asfortranarray,
    "transposed": lambda x: np.moveaxis(np.moveaxis(x, 0, -1).copy(), -1, 0),
}


@pairs(shape=[(9, 8), (6, 5, 4)], axis=[None, 0, 1, -1], strategy=STRATEGIES)
def test_broadcast(axis, shape, strategy, cut, rng):
    """Elements that lie in one place, and rows that run backwards on every axis."""
    mine, row = cut(shape[0]), shape[1:]
    x = np.broadcast_to(rng.integers(-9, 9, (*shape[:-1], 1)), shape)
    flat = slice(mine.start * int(np.prod(row)), mine.stop * int(np.prod(row)))
    for whole in (x, x + np.arange(shape[-1])):
        shard = x[mine] if whole is x else whole[mine][::-1, ..., ::-1].copy()[::-1, ..., ::-1]
        y = distscan.scan(shard, axis=axis, strategy=strategy)
        np.testing.assert_array_equal(y, np.cumsum(whole, axis)[flat if axis is None else mine])


def test_output_overlaps_input(cut, rng):
    """Shifted, and the same memory transposed."""
    x = rng.integers(-9, 9, (30, 7))
    mine = cut(30)
    rows = mine.stop - mine.start
    for axis in (0, 1):
        base = np.zeros((rows + 1, 7), int)
        base[1:] = x[mine]
        distscan.scan(base[1:], axis=axis, out=base[:-1])
        np.testing.assert_array_equal(base[:-1], np.cumsum(x, axis)[mine])
    square = rng.integers(-9, 9, (5, 5))
    want = np.cumsum(square.T, 1)
    distscan.scan(square.T, axis=1, out=square)
    np.testing.assert_array_equal(square, want)


def test_no_copy_where_the_layout_allows(comm, rng):
    """A strided shard as large as memory allows is not doubled by its scan."""
    import tracemalloc

    base = rng.normal(size=(300, 2, 500))
    x, out = base[:, 1], np.empty((300, 500))
    for axis in (0, 1):
        distscan.scan(x, axis=axis, out=out)
        tracemalloc.start()
        try:
            distscan.scan(x, axis=axis, out=out)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < x.nbytes / 2
    x = np.asfortranarray(rng.normal(size=(30, 50, 100)))
    for axis in (1, 2):
        tracemalloc.start()
        try:
            distscan.scan(x, axis=axis)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < x.nbytes * 1.5  # of which 1 is the result


@pytest.mark.parametrize("layout", ["Fortran", "transposed"])
@pytest.mark.parametrize("shape", [(9, 8), (6, 5, 4), (4, 1, 6), (2, 3, 4, 5)])
def test_axes_in_another_order(layout, shape, xp, comm, rng, monkeypatch):
    """Inside each shard the memory is scanned as it lies; no rank asks how it does on another."""
    x = rng.integers(-9, 9, (comm.size, *shape))[comm.rank]
    mixed = LAYOUTS[layout] if comm.rank % 2 else np.ascontiguousarray
    if xp is not np:
        monkeypatch.setattr(xp, "ascontiguousarray", None)
    for axis in [*range(1, len(shape)), *range(1 - len(shape), 0)]:
        want = np.cumsum(LAYOUTS[layout](x), axis)
        y = distscan.scan(lay_out(xp, x, LAYOUTS[layout]), axis=axis)
        np.testing.assert_array_equal(host(y), want)
        assert y.strides == want.strides
        y = distscan.scan(lay_out(xp, x, mixed), axis=axis, reverse=True)
        np.testing.assert_array_equal(host(y), np.flip(np.cumsum(np.flip(x, axis), axis), axis))
        out = lay_out(xp, np.zeros(shape), LAYOUTS[layout])
        given = lay_out(xp, x, LAYOUTS[layout])
        assert distscan.scan(given, axis=axis, dtype="d", out=out) is out
        np.testing.assert_array_equal(host(out), want)
        assert distscan.scan(given, axis=axis, out=given) is given
        np.testing.assert_array_equal(host(given), want)


def lay_out(xp, x, layout):
    """A copy of ``x`` in a layout."""
    x = layout(x.copy())
    order = np.argsort([-stride for stride in x.strides], kind="stable")
    memory = np.ascontiguousarray(x.transpose(order))
    return xp.asarray(memory).transpose(np.argsort(order))


def test_a_result_in_another_order(xp, comm, rng):
    x = rng.integers(-9, 9, (5, 4, 3))
    for axis in (1, 2):
        for source, target in (("F", "C"), ("C", "F")):
            out = xp.zeros(x.shape, "l", order=target)
            assert distscan.scan(xp.array(x, order=source), axis=axis, out=out) is out
            np.testing.assert_array_equal(host(out), np.cumsum(x, axis))
    shard = xp.array(x, order="F")
    everywhere(comm, ValueError, r"out has shape \(3, 4, 5\); the result has \(5, 4, 3\)",
               lambda: distscan.scan(shard, axis=1, out=xp.zeros((3, 4, 5))))  # fmt: skip
    everywhere(comm, ValueError, "along axis 2 of x",
               lambda: distscan.scan(shard, axis=2, segments=xp.zeros(60, "?")))  # fmt: skip
    for axis in (3, -4, 4, -5):
        everywhere(comm, np.exceptions.AxisError, f"axis {axis} is out of bounds",
                   lambda axis=axis: distscan.scan(shard, axis=axis))  # fmt: skip


@pytest.mark.parametrize("axis", [1, 2, -1])
def test_other_axes_need_no_exchange(axis, comm, rng):
    x = rng.integers(-99, 99, (2, 3, 4)).astype(float)
    for strategy in ("auto", "scan-add", "reduce-scan", "single-pass"):
        plan = distscan.Plan(None, x.shape, "d", axis=axis, strategy=strategy, backend="cpu")
        assert plan.strategy == "single-pass"
        assert plan.out_shape == x.shape
        np.testing.assert_array_equal(plan(x), np.cumsum(x, axis))
        np.testing.assert_array_equal(distscan.scan(x, axis=axis, strategy=strategy),
                                      np.cumsum(x, axis))  # fmt: skip


def test_bad_axes(comm):
    x = np.zeros((2, 3))
    for axis in (2, -3):
        everywhere(comm, np.exceptions.AxisError, f"axis {axis} is out of bounds",
                   lambda axis=axis: distscan.scan(x, axis=axis))  # fmt: skip
    everywhere(comm, ValueError, r"out has shape \(6,\); the result has \(2, 3\)",
               lambda: distscan.scan(x, axis=0, out=np.zeros(6)))  # fmt: skip
    everywhere(comm, ValueError, r"out has shape \(2, 3\); the result has \(6,\)",
               lambda: distscan.scan(x, out=np.zeros((2, 3))))  # fmt: skip
    if comm.size > 1:
        for other in (1, None):
            axis = other if comm.rank else 0
            everywhere(comm, DisagreementError, "disagree on axis",
                       lambda axis=axis: distscan.scan(x, axis=axis))  # fmt: skip


def test_a_fault_of_one_rank_along_a_local_axis(comm, monkeypatch):
    """No exchange, but every rank raises all the same."""
    from distscan.cpu import steps as cpu

    def full(*_):
        raise MemoryError("no room")

    if comm.rank == comm.size - 1:
        monkeypatch.setattr(cpu.SinglePass, "finish", full)
    everywhere(comm, MemoryError, "no room", lambda: distscan.scan(np.zeros((2, 3)), axis=1))


def test_an_operator_that_fails_on_rows(comm):
    if comm.size < 3:
        pytest.skip("two ranks have no totals to combine")

    def combine(a, b):
        if np.shape(b) == (4,):
            raise ZeroDivisionError("totals do not combine")
        return a + b

    op = distscan.Operator("fails", combine, "b", lambda dtype: dtype.type(0))
    x = np.ones((5, 4))
    everywhere(comm, ZeroDivisionError, "totals",
               lambda: distscan.scan(x, op, axis=0, strategy="scan-add"))  # fmt: skip
