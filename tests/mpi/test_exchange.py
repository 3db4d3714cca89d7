"""The exchange of totals, and agreement."""

import tracemalloc

import numpy as np
import pytest
from mpi4py import MPI

from distscan.core import operators
from distscan.core.form import Extents, Form
from distscan.mpi import communicators, exscan
from distscan.mpi.agree import Agreement, Votes, agreed, is_agreed
from support.data import HOST_CODES, OPS, TYPES, elements
from support.maps import COMPOSE, maps, one_by_one
from support.pending import Known
from support.reference import UFUNCS

# The types of totals: logical ones are truth values; sums of exponentials round.
OPERATORS = {
    op: HOST_CODES if op in OPS else "?" if op.startswith("logical") else TYPES[op]
    for op in UFUNCS
    if op != "logaddexp"
}


@pytest.mark.parametrize("op", OPERATORS)
def test_offsets_are_numpys(op, comm, rng):
    """What rank r gets is the scan of the totals, one element behind; some shards are empty."""
    for code in OPERATORS[op]:
        totals = elements(rng, op, code, comm.size)
        empty = rng.random(comm.size) < 0.4
        mine = Known(None if empty[comm.rank] else np.array(totals[comm.rank]))
        offset = exscan.Exscan(operators.BUILTIN[op], np.dtype(code))(comm, mine)
        before = totals[: comm.rank][~empty[: comm.rank]]
        if comm.rank == 0:
            assert offset is None
        elif before.size:
            assert offset.dtype == totals.dtype
            assert offset[()] == UFUNCS[op].reduce(before, dtype=totals.dtype)
        elif offset is not None:  # the exact identity
            assert offset[()] == operators.BUILTIN[op].identity(np.dtype(code))


def test_order_of_ranks(comm, rng):
    totals = maps(rng, comm.size)
    offset = exscan.Exscan(COMPOSE, totals.dtype)(comm, Known(np.array(totals[comm.rank])))
    if comm.rank:
        assert offset[()] == one_by_one(totals)[comm.rank - 1]


def test_maximum_of_nan(comm):
    """MPI_MAX may lose a NaN; NumPy's maximum may not."""
    total = np.array(np.nan if comm.rank == 0 else float(comm.rank))
    offset = exscan.Exscan(operators.BUILTIN["max"], total.dtype)(comm, Known(total))
    assert comm.rank == 0 or np.isnan(offset[()])


@pytest.mark.parametrize("op", OPERATORS)
def test_identity_changes_nothing(op, rng):
    operator = operators.BUILTIN[op]
    for code in OPERATORS[op]:
        x = elements(rng, op, code, 50)
        if x.dtype.kind in "fc" and op == "sum":
            x[:2] = [-0.0, 0.0]
        identity = operator.identity(x.dtype)
        for y in (operator.combine(identity, x), operator.combine(x, identity)):
            assert y.dtype == x.dtype
            np.testing.assert_array_equal(y, x)
            if x.dtype.kind == "f":
                np.testing.assert_array_equal(np.signbit(y), np.signbit(x))


def test_node(comm, monkeypatch):
    node = communicators.node(comm)
    assert 0 <= node.local_rank < comm.size
    assert 1 <= node.nodes <= comm.size
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_RANK", str(comm.rank + 7))
    assert communicators.node(comm).local_rank == comm.rank + 7


@pytest.mark.parametrize(
    ("op", "code"), [("sum", "d"), ("max", "d"), ("logaddexp", "d"), ("max", "h"), ("sum", "i")]
)
def test_what_is_allocated_is_counted(op, code):
    """Before it is allocated, too; narrow integers travel as wider ones."""
    long = exscan.Exscan(operators.BUILTIN[op], np.dtype(code), Form(Extents(inner=1 << 20)))
    counted = long.nbytes
    tracemalloc.start()
    try:
        long.reserve()
        assert tracemalloc.get_traced_memory()[0] == pytest.approx(counted, rel=0.01)
    finally:
        tracemalloc.stop()
    assert long.nbytes == counted


def test_op_names():
    ops = MPI.SUM, MPI.PROD, MPI.MAX, MPI.MIN, MPI.BAND, MPI.LXOR
    names = ["sum", "prod", "max", "min", "bitwise_and", "logical_xor"]
    assert [communicators.op_name(op) for op in ops] == names
    assert communicators.op_name("sum") == "sum"
    with pytest.raises(TypeError, match=r"op is MPI\.REPLACE; of MPI's ops a scan takes SUM"):
        communicators.op_name(MPI.REPLACE)


def test_agreed_lets_success_through(comm):
    with agreed(comm) as same:
        same["a"] = 1
        value = comm.rank
    assert value == comm.rank


def test_agreed_marks_what_all_raise(comm):
    with pytest.raises(KeyError if comm.size == 1 else LookupError) as caught, agreed(comm):
        raise KeyError("everywhere")
    assert is_agreed(caught.value) == (comm.size > 1)


def test_numbers_begin_anew_on_a_new_communicator(comm):
    """Also where MPI gives it the handle of one that was freed; a copy of the object goes on."""
    if comm.size == 1:
        pytest.skip("one rank agrees with itself: nothing is numbered")
    for _ in range(3):
        other = comm.Dup()
        same = MPI.Comm.fromhandle(other.handle)
        every = [Agreement(Votes.of(each)).number for each in (other, same, other)]
        assert every == [1, 2, 3]
        other.Free()
