"""What is wrong with a plan, or with a call of it, and who hears of that."""

from contextlib import suppress

import numpy as np
import pytest

import distscan
from distscan import BackendError, DisagreementError, RankError
from support import stand_in
from support.data import OPS
from support.maps import COMPOSE, maps, one_by_one
from support.together import everywhere

FLAGS_AND_ADD = {"segments": True, "strategy": "scan-add"}
BAD = {
    "type": (TypeError, "x is object", lambda: {"dtype": object}),
    "no type": (TypeError, "nonsense", lambda: {"dtype": "nonsense"}),
    "out type": (TypeError, "dtype is <U", lambda: {"out_dtype": "U3"}),
    "negative": (
        ValueError,
        "each length of shape must be an integer of at least 0, not -3",
        lambda: {"shape": (2, -3)},
    ),
    "shape": (TypeError, "integer", lambda: {"shape": 2.5}),
    "op": (ValueError, "unknown operator", lambda: {"op": "mean"}),
    "axis": (np.exceptions.AxisError, "axis 1", lambda: {"axis": 1}),
    "strategy": (ValueError, "unknown strategy", lambda: {"strategy": "fast"}),
    "backend": (ValueError, "unknown backend", lambda: {"backend": "tpu"}),
    "initial": (TypeError, "initial is <U5", lambda: {"initial": "three"}),
    "segments": (ValueError, "'scan-add' does not take segments", lambda: FLAGS_AND_ADD),
    "N-d segments": (
        ValueError,
        "axis=None",
        lambda: {"shape": (2, 2), "axis": 1, "segments": "?"},
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments_raise_everywhere(case, comm):
    """Also where one rank alone is at fault."""
    kind, message, bad = BAD[case]
    given = {"shape": 3, "dtype": "d", "backend": "cpu"}
    if comm.rank == comm.size - 1:
        given |= bad()
    everywhere(comm, kind, message, lambda: distscan.Plan(comm, **given))


def test_ranks_that_disagree(comm):
    if comm.size == 1:
        pytest.skip("one rank cannot disagree")
    last = comm.rank == comm.size - 1
    for name, ours, theirs, what in (
        ("dtype", "d", "f", "dtype of x"),
        ("op", "sum", "max", "on op"),
        ("out_dtype", "d", "D", "accumulating dtype"),
        ("shape", (2, 3), (3, 2), "shape beyond axis 0"),
        ("strategy", "scan-add", "reduce-scan", "strategy"),
        ("backend", "cpu", "auto", "backend"),
    ):
        given = {"shape": 6, "dtype": "d", "backend": "cpu"} | {name: theirs if last else ours}
        everywhere(comm, DisagreementError, what, lambda g=given: distscan.Plan(comm, **g))


def test_a_backend_for_every_rank(comm, monkeypatch):
    """The CPU, or an error, on all ranks where one has no GPU."""

    def count():
        if comm.rank == comm.size - 1:
            raise BackendError("no NVIDIA GPU is visible")
        return 1

    stand_in.gpus(monkeypatch, count=count)
    assert distscan.Plan(comm, 3, "d").backend == "cpu"
    everywhere(comm, BackendError, "no NVIDIA", lambda: distscan.Plan(comm, 3, "d", backend="cuda"))


def readonly(array):
    array.flags.writeable = False
    return array


def overlapping(x):
    base = x.repeat(2)
    return base[:6], base[5:11]


FAULTS = {  # of an array of six elements, what is wrong about (x, out)
    "shape": (ValueError, "x has shape", lambda x: (x.reshape(2, 3), None)),
    "type": (TypeError, "x is float32", lambda x: (x.astype("f"), None)),
    "list": (TypeError, "x is a list", lambda x: (x.tolist(), None)),
    "masked": (TypeError, "masked", lambda x: (np.ma.masked_array(x), None)),
    "strides": (ValueError, "x is not contiguous", lambda x: (x[::-1], None)),
    "out shape": (ValueError, "out has shape", lambda x: (x, np.zeros(7))),
    "out type": (TypeError, "out is float32", lambda x: (x, x.astype("f"))),
    "out list": (TypeError, "out is a list", lambda x: (x, x.tolist())),
    "out strides": (ValueError, "out is not contiguous", lambda x: (x, x.repeat(2)[::2])),
    "out read-only": (ValueError, "read-only", lambda x: (x, readonly(x.copy()))),
    "overlap": (ValueError, "overlaps", overlapping),
}


@pytest.mark.parametrize("op", ["sum", "max", COMPOSE])
@pytest.mark.parametrize("case", FAULTS)
def test_a_fault_of_one_rank_is_its_own(case, op, strategy, comm, rng):
    """It raises there, and behind it; before it, behind the next call; and the plan goes on."""
    kind, message, bad = FAULTS[case]
    dtype = np.uint64 if op is COMPOSE else np.float64
    run = distscan.Plan(comm, 6, dtype, op, strategy=strategy, backend="cpu")
    x = maps(rng, 6 * comm.size) if op is COMPOSE else rng.integers(-9, 9, 6 * comm.size) * 1.0
    guilty = comm.size // 2
    mine = slice(6 * comm.rank, 6 * comm.rank + 6)
    want = (one_by_one if op is COMPOSE else OPS[op].accumulate)(x)[mine]

    def halves(x, out):
        run.start(x, out)
        return run.wait()

    for call in (run, halves):
        if comm.rank == guilty:
            with pytest.raises(kind, match=message):
                call(*bad(x[mine]))
        elif comm.rank > guilty:
            with pytest.raises(RankError, match="an earlier rank failed in this call"):
                call(x[mine], None)
        else:
            np.testing.assert_array_equal(call(x[mine], None), want)
        comm.Barrier()
        out = np.zeros_like(want)
        if comm.rank < guilty:
            with pytest.raises(RankError, match=f"rank {guilty}: {kind.__name__}: .*{message}"):
                call(x[mine], out)
        else:
            call(x[mine], out)
        np.testing.assert_array_equal(out, want)
        np.testing.assert_array_equal(call(x[mine], None), want)


def test_an_operator_that_fails_in_the_exchange(comm):
    """No rank is given a wrong result: behind the fault, each raises."""
    if comm.size < 3:
        pytest.skip("two ranks have no totals to combine")

    def combine(a, b):
        if np.ndim(b) == 0 and broken:
            raise ZeroDivisionError("totals do not combine")
        return a + b

    op = distscan.Operator("fails", combine, "a + b", lambda dtype: dtype.type(0))
    run = distscan.Plan(comm, 2, "l", op, backend="cpu")
    x = np.array([comm.rank, 1])
    for halves in (False, True):
        raised, broken = False, True
        try:
            if halves:
                run.start(x)
                run.wait()
            else:
                run(x)
        except (ZeroDivisionError, RuntimeError):
            raised = True
        assert raised or comm.rank < 2
        broken = False
        comm.Barrier()
        y = np.zeros_like(x)
        with suppress(RankError):  # which ranks before it hear now
            run(x, y)
        assert y[-1] == sum(range(comm.rank + 1)) + comm.rank + 1
