"""The exchange of totals, and what ranks learn of each other."""

import tracemalloc
from functools import partial

import numpy as np
import pytest
from mpi4py import MPI

import distscan
from distscan import DisagreementError, RankError
from distscan.core import operators
from distscan.core.form import Extents, Form
from distscan.mpi import agree, communicators, exscan
from distscan.mpi.agree import Agreement, Votes, agreed, is_agreed
from distscan.mpi.notices import Notices
from support.cases import pairs
from support.data import HOST_CODES, OPS, TYPES, elements
from support.processes import everywhere
from support.reference import UFUNCS
from support.steps import Known

# ---- the exchange of totals, and agreement -------------------------------------------------------

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


# ---- what ranks learn of each other: numbers of agreements, status of totals, notices of plans ---


@pytest.fixture
def own(comm):
    """A communicator of the test's own, which may end out of step."""
    dup = comm.Dup()
    yield dup
    dup.Free()


def test_ranks_that_are_out_of_step_say_so_in_every_call(own, comm):
    if comm.size == 1:
        pytest.skip("one rank is in step with itself")
    x = np.arange(3)
    distscan.scan(x, comm=own)
    if own.rank == own.size - 1:
        agree.Agreement(agree.Votes.of(own))  # begins a step, raises alone, and goes on
    for _ in range(3):
        everywhere(own, DisagreementError, f"out of step.* rank {own.size - 1}: step",
                   lambda: distscan.scan(x, comm=own))  # fmt: skip
    distscan.scan(x, comm=comm)  # others are in step


FUNCTIONS = {
    "scan": lambda x, own: distscan.scan(x, comm=own),
    "compact": lambda x, own: distscan.compact(x, x > 1, comm=own),
    "partition": lambda x, own: distscan.partition(x, 2, comm=own),
    "offsets": lambda x, own: distscan.offsets(3, comm=own),
    "nancumsum": lambda x, own: distscan.nancumsum(x, comm=own),
    "cumulative_prod": lambda x, own: distscan.cumulative_prod(x, comm=own),
    "Plan": lambda x, own: distscan.Plan(own, 3, "d", backend="cpu"),
    "linear_recurrence": lambda x, own: distscan.linear_recurrence(x, x, comm=own),
}


@pytest.mark.parametrize("first", FUNCTIONS)
def test_ranks_in_different_functions(first, own):
    """The message names each rank, and what it called."""
    if own.size == 1:
        pytest.skip("one rank calls one function")
    x, other = np.arange(3.0), "offsets" if first == "scan" else "scan"
    call = FUNCTIONS[first if own.rank == 0 else other]
    text = everywhere(own, DisagreementError, "disagree on the function", lambda: call(x, own))
    assert f"rank 0: {first};" in text
    others = "rank 1" if own.size == 2 else f"ranks 1-{own.size - 1}"
    assert text.endswith(f"{others}: {other}")


def test_a_rank_that_closes_its_plan_alone(own):
    if own.size == 1:
        pytest.skip("one rank calls one function")
    plan, x = distscan.Plan(own, 3, "d", backend="cpu"), np.ones(3)
    call = plan.close if own.rank == 0 else lambda: distscan.scan(x, comm=own)
    text = everywhere(own, DisagreementError, "disagree on the function", call)
    assert "rank 0: Plan.close;" in text


def test_a_term_that_some_ranks_lack(own):
    if own.size == 1:
        pytest.skip("one rank agrees with itself")

    def call():
        with agree.agreed(own) as same:
            if own.rank > 0:
                same["the dtype of x"] = "float64"

    text = everywhere(own, DisagreementError, "disagree on the dtype of x", call)
    assert "rank 0: none; rank" in text
    assert text.endswith(": float64")


def _left():
    """Take all of MPI's operators in Python that are left; an MPI process has 32."""
    taken = []
    try:
        while True:
            taken.append(MPI.Op.Create(lambda a, b, t: None, commute=False))
    except RuntimeError:
        return taken


@pytest.mark.parametrize("started", [False, True])
def test_no_operators_are_left_on_one_rank(started, comm):
    """They are made once, for all exchanges."""
    x = np.arange(3.0) + 10 * comm.rank
    want = x  # no earlier rank has larger ones
    np.testing.assert_array_equal(distscan.scan(x, "max"), want)  # makes it
    taken = _left() if comm.rank == comm.size - 1 else []
    try:
        np.testing.assert_array_equal(distscan.scan(x, "max"), want)
        plan = distscan.Plan(comm, 3, "d", "max", backend="cpu")
        if started:
            plan.start(x)
            np.testing.assert_array_equal(plan.wait(), want)
        else:
            np.testing.assert_array_equal(plan(x), want)
    finally:
        for op in taken:
            op.Free()


def test_many_plans_in_flight(comm, rng):
    """More than MPI has room for operators; waited for in another order on each rank."""
    x = rng.normal(size=(comm.size, 5))
    want = np.maximum.accumulate(x.reshape(-1)).reshape(x.shape)[comm.rank]
    plans = [distscan.Plan(comm, 5, "d", "max", backend="cpu") for _ in range(40)]
    for plan in plans:
        plan.start(x[comm.rank])
    for i in np.random.default_rng(comm.rank).permutation(40):
        np.testing.assert_array_equal(plans[i].wait(), want)


STATUS = [("sum", "l"), ("sum", "f"), ("sum", "D"), ("sum", "b"), ("prod", "d"), ("prod", "B"),
          ("max", "i"), ("min", "H"), ("bitwise_and", "I"), ("bitwise_or", "l"),
          ("bitwise_xor", "L"), ("logical_and", "?"), ("logical_or", "?"), ("logical_xor", "?"),
          ("max", "d")]  # fmt: skip


@pairs(group_by="inner", of=STATUS, inner=[1, 5])
def test_a_rank_that_fails_is_heard_of_behind(of, inner, comm):
    """Whatever MPI combines with, and however many fail; the next exchange is right."""
    operator, dtype = operators.BUILTIN[of[0]], np.dtype(of[1])
    exchange = exscan.Exscan(operator, dtype, Form(Extents(inner=inner)))
    total = np.full((inner,) if inner > 1 else (), 1, dtype)
    for failing in ({comm.size // 2}, set(range(0, comm.size, 2)), {0, comm.size - 1}, set()):
        pending = None if comm.rank in failing else Known(total.copy())
        if any(rank < comm.rank for rank in failing):
            with pytest.raises(RankError):
                exchange(comm, pending)
            continue
        offset = exchange(comm, pending)
        if comm.rank > 0 and not failing:
            want = operator.numpy.reduce(np.full((comm.rank, inner), 1, dtype), 0, dtype)
            np.testing.assert_array_equal(offset, want.reshape(total.shape))


def test_close_tells_who_has_not_heard(comm):
    x = np.ones(3)
    plan = distscan.Plan(comm, 3, "d", backend="cpu")
    plan(x)
    fails = comm.size - 1
    if comm.rank == fails:
        with pytest.raises(TypeError):
            plan(np.ones(3, "i"))
    else:
        plan(x)
    if comm.size > 1:
        everywhere(comm, RankError, "failed alone", plan.close)
    else:
        plan.close()
    with pytest.raises(RuntimeError, match="closed"):
        plan(x)


@pytest.mark.parametrize("reverse", [False, True])
def test_close_knows_of_notices_on_their_way(reverse, comm, monkeypatch):
    """Who should have been told, and has not looked."""
    if comm.size == 1:
        pytest.skip("one rank tells nobody")
    plan, x = distscan.Plan(comm, 3, "d", reverse=reverse, backend="cpu"), np.ones(3)
    if comm.rank == (0 if reverse else comm.size - 1):
        with pytest.raises(TypeError):
            plan(x.astype("i"))
    else:
        plan(x)
    monkeypatch.setattr(Notices, "receive", lambda notices: None)
    everywhere(comm, RankError, "its notice is still on its way", plan.close)


def test_in_reverse_later_ranks_are_told(comm):
    """They come first in scan order; those before hear by the total."""
    plan, guilty = distscan.Plan(comm, 3, "d", reverse=True, backend="cpu"), (comm.size - 1) // 2
    x = np.ones(3)
    if comm.rank == guilty:
        with pytest.raises(TypeError):
            plan(x.astype("i"))
    elif comm.rank < guilty:
        with pytest.raises(RankError, match="in this call"):
            plan(x)
    else:
        plan(x)
    comm.Barrier()
    heard = ""
    try:
        plan(x)
    except RankError as error:
        heard = str(error)
    y = plan(x)
    assert (f"rank {guilty}: TypeError" in heard) == (comm.rank > guilty)
    np.testing.assert_array_equal(y, 3 * (comm.size - 1 - comm.rank) + np.arange(3, 0, -1))


def test_notices_of_a_plan_that_is_gone(own):
    """Its tag has come again: they are dropped."""
    early, late = (Notices(own, number, reverse=False) for number in (5, 5 + (1 << 14)))
    if own.rank == own.size - 1:
        early.send(ValueError("of a plan that is gone"))
        late.send(ValueError("of this plan"))
        return
    while not late.receive():
        pass
    with pytest.raises(RankError, match=rf"\(rank {own.size - 1}: ValueError: of this plan\)"):
        late.raise_fault()
    assert not early.receive()


@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize("who", ["first", "last"])
def test_a_plan_that_agrees(who, halves, comm):
    """Every rank raises, or none does; the plan goes on."""
    x, at = np.ones(3), 0 if who == "first" else comm.size - 1
    plan = distscan.Plan(comm, 3, "d", backend="cpu", agree=True)

    def call(given):
        if not halves:
            return plan(given)
        plan.start(given)
        return plan.wait()

    for _ in range(2):
        text = everywhere(comm, TypeError, "x is int32",
                          lambda: call(x.astype("i") if comm.rank == at else x))  # fmt: skip
        assert comm.size == 1 or text.startswith(f"rank {at}: ")
        np.testing.assert_array_equal(call(x), 3 * comm.rank + np.arange(1, 4))


@pytest.mark.timeout(30)
@pytest.mark.parametrize("strategy", ["auto", "reduce-scan"])
def test_rows_of_nothing_are_not_exchanged(strategy, comm):
    x = np.zeros((0, 2**40))
    y = distscan.scan(x, axis=0, strategy=strategy)
    assert (y.shape, y.dtype) == (x.shape, x.dtype)
    plan = distscan.Plan(comm, x.shape, "d", axis=0, strategy=strategy, backend="cpu")
    assert plan(x).shape == x.shape


class NoText:
    def __str__(self):
        raise ValueError("has no text")


@pytest.mark.parametrize("sign", [1, -1])
def test_a_value_without_a_text(sign, comm):
    """Ranks compare values by their texts; Python writes no number of so many digits."""
    given = sign * 10**5000 if comm.rank == 0 else 2
    everywhere(comm, (ValueError, OverflowError, MemoryError), "digits|parts|size|rank",
               lambda: distscan.partition(np.ones(3), given))  # fmt: skip
    np.testing.assert_array_equal(distscan.offsets(1), (comm.rank, comm.size))


def test_names_are_text(comm):
    for make in (distscan.Predicate, distscan.Operator):
        with pytest.raises(TypeError, match=r"name= of an? .* must be text, not NoText"):
            make(NoText(), np.isnan)


def nested(call, where, own):
    """The operator whose function calls distscan on a communicator, in a scan on ``own``."""

    def combine(a, b):
        call(np.arange(3.0), where)
        return a + b

    op = distscan.Operator("nested", combine, identity=0)
    return {
        "scan": lambda x: distscan.scan(x, op, comm=own),
        "cumulative": lambda x: distscan.scan(np.stack([x, x], 1), op, comm=own, axis=0)[:, 0],
        "Plan": distscan.Plan(own, 5, "d", op, agree=True, backend="cpu"),
    }


@pytest.mark.timeout(60)
@pytest.mark.parametrize("inner", FUNCTIONS)
def test_calls_inside_calls(inner, own):
    """An operator's function that calls distscan: the other ranks may not do so at that moment.

    On one rank there are no others; so on a communicator of this rank alone.
    """
    x = np.arange(5.0) + own.rank
    want = np.cumsum(np.concatenate(own.allgather(x)))[5 * own.rank :][:5]
    for name, outer in nested(FUNCTIONS[inner], own, own).items():
        if own.size == 1:
            np.testing.assert_array_equal(outer(x), want, name)
        else:
            message = "inside a call of distscan .*MPI.COMM_SELF"
            everywhere(own, RuntimeError, message, partial(outer, x))
        np.testing.assert_array_equal(distscan.scan(x, comm=own), want, name)
    for name, outer in nested(FUNCTIONS[inner], MPI.COMM_SELF, own).items():
        np.testing.assert_array_equal(outer(x), want, name)
