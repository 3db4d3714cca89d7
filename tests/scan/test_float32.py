"""Sums of float32: CPUs accumulate in float64 and round once."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

import distscan
from distscan.core import dtypes, operators
from distscan.core.form import Extents
from distscan.cpu import chunked, library
from distscan.cpu import steps as cpu
from distscan.engine import shard_scan
from distscan.engine.array_scan import run
from distscan.mpi.agree import Agreement, Votes
from distscan.mpi.exscan import Exscan
from distscan.options import RunOptions, ScanOptions
from support import reference
from support.pending import Known

SUM = operators.BUILTIN["sum"]
FORMS = [
    {},
    {"exclusive": True},
    {"reverse": True},
    {"initial": 2**30 + 1},  # which float32 cannot hold
    {"exclusive": True, "initial": 2**30 + 1, "reverse": True},
]


def drawn(rng, shape):
    """Numbers whose sums float64 holds exactly and float32 does not."""
    return rng.integers(-(2**23), 2**23, shape).astype("f")


# ---- what is wide, and what is not ---------------------------------------------------------


def test_types():
    def acc(op, *types):
        return dtypes.resolve(op, *types, wide=True).acc

    for op, operator in operators.BUILTIN.items():
        if not op.startswith(("bitwise", "logical")):
            assert acc(operator, "f") == ("d" if op == "sum" else "f")
            assert dtypes.resolve(operator, "f").acc == "f"
    assert acc(SUM, "F") == "F"
    assert acc(SUM, "e") == "f"
    assert acc(SUM, "l", "f") == "d"
    assert acc(SUM, "l", None, "f") == "d"
    assert acc(SUM, "f", "f", "d") == "d"
    assert acc(SUM, "f", "e", "f") == "f"
    assert acc(SUM, "b") == np.cumsum(np.zeros(0, "b")).dtype
    assert acc(distscan.Operator("plus", np.add), "f") == "f"
    assert dtypes.resolve(SUM, "f", wide=True).out == "f"


def test_no_buffer_by_default(comm):
    def strategy(code, op):
        return distscan.Plan(None, 9, code, op, backend="cpu").strategy

    if comm.size == 1:
        assert strategy("e", "sum") == "single-pass"
        return
    assert (
        strategy("f", "sum") == strategy("e", "sum") == strategy("e", "logaddexp") == "reduce-scan"
    )
    assert strategy("g", "sum") == "scan-add"  # by NumPy
    for op in ("sum", "logaddexp"):
        assert strategy("d", op) == ("reduce-scan" if library.load() else "scan-add")


# ---- ranks whose running value is narrower, as on GPUs -------------------------------------


@pytest.fixture
def narrow(comm, monkeypatch):
    """This rank's GPU, or None: every second rank has one, whose steps NumPy does."""

    def steps(kind):
        def make(op, types, form):
            assert types.acc == types.out
            return kind(op, types, form, threads=1)

        return make

    kinds = {kind.__name__: steps(kind) for kind in (cpu.ScanAdd, cpu.ReduceScan, cpu.SinglePass)}
    fake = SimpleNamespace(**kinds)
    monkeypatch.setitem(sys.modules, "distscan.cuda.steps", fake)
    monkeypatch.setattr("distscan.cuda.steps", fake, raising=False)
    return 0 if comm.rank % 2 else None


@pytest.mark.parametrize("form", FORMS)
def test_with_narrower_ranks(form, narrow, comm, cut, rng):
    """They agree; totals meet in float64, so that on CPUs every result is right to the last bit."""
    x = drawn(rng, 20011)
    mine = cut(x.size)
    for low, high in comm.allgather((mine.start, mine.stop))[1::2]:
        x[low:high] = np.rint(x[low:high] * 2.0**-18)  # whose sums float32 holds
    exact = reference.scan(np.add, x, acc=np.dtype("d"), identity=0, **form)
    options, extents = ScanOptions(SUM, **form), Extents(length=mine.stop - mine.start)
    run_options = RunOptions(strategy="reduce-scan")
    plan = shard_scan.make(extents, x.dtype, narrow, options, run_options, ranks=comm.size)
    assert plan.types.acc == ("d" if narrow is None else "f")
    assert len(set(comm.allgather(plan.terms.key))) == 1
    y = np.zeros_like(x[mine])
    with Agreement(Votes.of(comm)) as call:
        run(plan, call, x[mine], y)
    if narrow is None:
        np.testing.assert_array_equal(y, exact.astype("f")[mine])
    else:
        longest = 2 + min(len(y), chunked.CHUNK)  # chain of roundings
        assert (np.abs(y - exact[mine]) <= longest * 2.0**-24 * np.abs(exact).max()).all()


@pytest.mark.parametrize("gpu", [None, 0])
@pytest.mark.parametrize("beyond", [(), (1,), (3,), (3, 4), (0, 3)])
def test_shards_of_any_length_agree(beyond, gpu, narrow, comm):
    for axis in (None, *range(len(beyond) + 1)):
        shapes = [(n, *beyond) for n in (0, 1, 2, 7)]
        every = [Extents.of(shape, axis) for shape in shapes]
        given = np.dtype("f"), gpu, ScanOptions(SUM), RunOptions()
        plans = [shard_scan.make(each, *given, ranks=comm.size) for each in every]
        assert len({plan.terms.key for plan in plans}) == 1


def test_rows_with_narrower_ranks(narrow, comm):
    """Rows of totals are exchanged as each rank has them: CPUs and GPUs do not agree on a type."""
    given = np.dtype("f"), narrow, ScanOptions(SUM), RunOptions()
    plan = shard_scan.make(Extents.of((9, 5), 0), *given, ranks=comm.size)
    agreement = Agreement(Votes.of(comm))
    agreement.same = plan.terms
    if comm.size == 1:
        agreement.settle()
    else:
        with pytest.raises(distscan.DisagreementError, match="the dtype of totals"):
            agreement.settle()


@pytest.mark.parametrize("op", [SUM, distscan.Operator("plus", np.add)])
def test_offsets_of_narrower_ranks(op, comm):
    """They are rounded, or infinite, without a warning; whoever combines them."""
    exscan = Exscan(op, np.dtype("d"), seeds=np.dtype("f"))
    for value in (2.0**30 + 1, 3e38):
        total = np.array(value)
        with np.errstate(all="raise"):
            offset = exscan(comm, Known(total))
        if comm.rank:
            with np.errstate(over="ignore"):
                want = (comm.rank * total).astype("f")
            assert offset.dtype == "f"
            np.testing.assert_array_equal(offset, want)
    assert offset is None or comm.rank < 2 or np.isinf(offset)
