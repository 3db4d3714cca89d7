"""compact and select against NumPy's x[mask], over ranks; on a GPU, too, if there is one."""

import numpy as np
import pytest
from hypothesis import strategies as st
from mpi4py import MPI

import distscan
from distscan import DisagreementError, RankError
from support.arrays import Foreign, host
from support.campaigns import run_campaign
from support.cases import pairs
from support.processes import everywhere
from support.uses import MASKS, mask_of, noise, same_bits

pytestmark = pytest.mark.fast

ROWS = [(), (1,), (2,), (3,), (4,), (0,), (2, 3), (17,)]
LAYOUTS = ["contiguous", "second element on", "every second", "backwards", "Fortran"]
SIZES = st.one_of(st.integers(0, 70), st.integers(0, 3000), st.sampled_from([4096, 6144, 20001]))


@st.composite
def cases(draw):
    """Draw one call: all that a rank must know to make its part of it."""
    n, size = draw(SIZES), MPI.COMM_WORLD.size
    cuts = sorted(draw(st.lists(st.integers(0, n), min_size=size - 1, max_size=size - 1)))
    array = st.tuples(st.sampled_from("?bHeifdFD"), st.sampled_from(ROWS), st.sampled_from(LAYOUTS))
    return {
        "seed": draw(st.integers(0, 99999)),
        "n": n,
        "cuts": [0, *cuts, n],
        "mask": draw(st.sampled_from(MASKS)),
        "mask layout": draw(st.sampled_from(LAYOUTS[:4])),
        "arrays": draw(st.lists(array, min_size=1, max_size=3)),
        "several": draw(st.booleans()),
    }


def laid_out(xp, x, layout):
    """The same elements, one behind the other or not, at any address."""
    if layout == "second element on":
        return xp.asarray(np.concatenate([x[:1], x]))[len(x[:1]) :]
    if layout == "every second":
        return xp.asarray(x.repeat(2, axis=0))[::2]
    if layout == "backwards":
        return xp.asarray(x[::-1].copy())[::-1]
    if layout == "Fortran":
        return xp.asarray(x.T.copy()).T  # asfortranarray of CuPy changes bits of NaNs
    return xp.asarray(x)


@pytest.mark.timeout(300)
def test_against_numpy(xp, comm):
    def check(case):
        rng = np.random.default_rng(case["seed"])
        n, first, last = case["n"], *case["cuts"][comm.rank : comm.rank + 2]
        mask = mask_of(case["mask"], n, rng)
        wholes = [noise((n, *row), code, rng) for code, row, _ in case["arrays"]]
        given = [
            laid_out(xp, whole[first:last], layout)
            for whole, (_, _, layout) in zip(wholes, case["arrays"], strict=True)
        ]
        before = [host(each).copy() for each in given]
        keep = laid_out(xp, mask[first:last], case["mask layout"])
        if case["several"]:
            kept, start = distscan.compact(tuple(given), keep)
            assert isinstance(kept, tuple)
        else:
            both = [distscan.compact(each, keep) for each in given]
            kept, starts = zip(*both, strict=True)
            (start,) = set(starts)
        assert (type(start), start) == (int, mask[:first].sum())
        for whole, result, each, was in zip(wholes, kept, given, before, strict=True):
            assert isinstance(result, xp.ndarray)
            assert same_bits(host(result), whole[first:last][mask[first:last]])
            assert result.flags.c_contiguous
            assert not xp.may_share_memory(result, each)
            assert same_bits(host(each), was)  # arguments are only read

    run_campaign(comm, cases(), check, 200 if xp is np else 60)


def test_sequences_and_tuples(cut, rng):
    """A sequence is an array, and so is a tuple of numbers."""
    kept, start = distscan.compact([[1, 2], [3, 4]], [False, True])
    assert kept.tolist() == [[3, 4]]
    assert start == MPI.COMM_WORLD.rank
    kept, _ = distscan.compact((1, 2, 3), (True, False, True))
    assert kept.tolist() == [1, 3]
    kept, _ = distscan.compact((np.float32(1), np.float32(2)), (True, False))
    assert kept.tolist() == [1]
    kept, _ = distscan.compact((), np.zeros(0, bool))
    assert kept.shape == (0,)
    x, mask = rng.integers(0, 99, (50, 2)), rng.random(50) < 0.5
    mine = cut(50)
    (kept, numbers), _ = distscan.compact((Foreign(x[mine]), np.arange(50)[mine]), mask[mine])
    assert isinstance(kept, Foreign)
    np.testing.assert_array_equal(kept.array, x[mine][mask[mine]])
    np.testing.assert_array_equal(numbers, np.arange(50)[mine][mask[mine]])


def test_types_of_numpy_alone(cut, rng):
    """Structures, text and objects."""
    x, mask = rng.integers(0, 99, 400), rng.random(400) < 0.5
    mine = cut(400)
    particles = np.zeros(400, [("position", "f4", 3), ("id", "i8")])
    particles["id"] = x
    for array in (particles, x.astype(str), x.astype(object), x.astype(">i4"), x.astype("M8[s]")):
        kept, start = distscan.compact(array[mine], mask[mine])
        assert kept.dtype == array.dtype
        np.testing.assert_array_equal(kept, array[mine][mask[mine]])
        assert start == mask[: mine.start].sum()


# ---- select -----------------------------------------------------------------------------------

POSITIVE = distscan.Predicate("positive", numpy=lambda x: x > 0, cuda="x > 0")
ODD = distscan.Predicate("odd", numpy=lambda x: x % 2 != 0, cuda="{ return x % 2 != 0; }")
NAN = distscan.Predicate("nan", numpy=np.isnan, cuda="x != x")
LEFT = distscan.Predicate("left", numpy=lambda x: x.real < 0, cuda="x.re < 0")
NONE = distscan.Predicate("none", numpy=lambda x: np.zeros(x.shape, bool), cuda="false")
SELECTED = [("f", POSITIVE), ("d", POSITIVE), ("e", POSITIVE), ("b", POSITIVE), ("I", ODD),
            ("l", ODD), ("e", NAN), ("f", NAN), ("F", LEFT), ("D", LEFT), ("?", POSITIVE),
            ("h", NONE)]  # fmt: skip


@pairs(group_by="n", of=SELECTED, n=[0, 1, 33, 20001])
def test_select(n, of, xp, cut, rng):
    code, predicate = of
    x, mine = noise((n,), code, rng), cut(n)
    mask = predicate.mask(x)
    kept, start = distscan.select(xp.asarray(x[mine]), predicate)
    assert isinstance(kept, xp.ndarray)
    assert same_bits(host(kept), x[mine][mask[mine]])
    assert (type(start), start) == (int, mask[: mine.start].sum())


def test_select_of_other_arrays(cut, rng):
    x = rng.normal(size=300)
    mine = cut(300)
    kept, _ = distscan.select(Foreign(x[mine]), POSITIVE)
    assert isinstance(kept, Foreign)
    np.testing.assert_array_equal(kept.array, x[mine][x[mine] > 0])
    np.testing.assert_array_equal(distscan.select([3, -1, 4], POSITIVE)[0], [3, 4])
    np.testing.assert_array_equal(
        distscan.select(x[mine][::-1], POSITIVE)[0], x[mine][::-1][x[mine][::-1] > 0]
    )


def writes(x):
    x[0] = 1
    return x > 0


WRONG = {
    "result type": (TypeError, "returned int64", lambda x: x.astype(int)),
    "result shape": (TypeError, r"returned bool \(2,\)", lambda x: (x > 0)[:2]),
    "result none": (TypeError, "'wrong' returned object", lambda x: None),
    "a write": (ValueError, "read-only", writes),
}


@pytest.mark.parametrize("case", WRONG)
def test_predicates_that_cannot_be(case, comm):
    kind, message, function = WRONG[case]
    wrong = distscan.Predicate("wrong", numpy=function)
    everywhere(comm, kind, message, lambda: distscan.select(np.ones(3), wrong))
    assert distscan.select(np.ones(3), POSITIVE)[1] == 3 * comm.rank


@pytest.mark.one_rank
def test_predicates_are_checked_when_they_are_made():
    with pytest.raises(TypeError, match="'p': numpy= must be a function"):
        distscan.Predicate("p", numpy="x > 0")
    with pytest.raises(TypeError, match="'p': cuda= must be text"):
        distscan.Predicate("p", numpy=np.isnan, cuda=np.isnan)


def test_a_predicate_is_silent():
    with np.errstate(all="raise"):
        kept, _ = distscan.select([0.0, 2.0], distscan.Predicate("large", lambda x: 1 / x < 1))
    assert kept.tolist() == [2.0]


# ---- faults -----------------------------------------------------------------------------------

FLAGS = np.ones(3, bool)
FAULTS = {
    "mask type": (TypeError, "mask is int64", lambda: distscan.compact(np.zeros(3), [0, 1, 1])),
    "mask shape": (ValueError, "mask has shape", lambda: distscan.compact(np.zeros(3), [True])),
    "mask 2-d": (ValueError, r"mask has shape \(3, 2\), x \(3, 2\)",
                 lambda: distscan.compact(np.zeros((3, 2)), np.ones((3, 2), bool))),
    "0-d": (ValueError, r"x \(\)", lambda: distscan.compact(np.zeros(()), np.True_)),
    "second": (ValueError, r"x\[1\] \(2,\)",
               lambda: distscan.compact((np.zeros(3), np.zeros(2)), FLAGS)),
    "select 2-d": (ValueError, r"x has shape \(2, 2\)",
                   lambda: distscan.select(np.zeros((2, 2)), POSITIVE)),
    "select what": (TypeError, "must be a Predicate, not function",
                    lambda: distscan.select(np.zeros(2), lambda x: x > 0)),
}  # fmt: skip


@pytest.mark.parametrize("case", FAULTS)
def test_faults(case, comm):
    """Of one rank: every rank raises."""
    kind, message, call = FAULTS[case]
    if comm.rank != comm.size - 1:
        call = {
            "second": lambda: distscan.compact((np.zeros(3), np.zeros(3)), FLAGS),
            "select": lambda: distscan.select(np.zeros(2), POSITIVE),
        }.get(case.split()[0], lambda: distscan.compact(np.zeros(3), FLAGS))
    everywhere(comm, kind, message, call)
    assert distscan.compact(np.zeros(3), FLAGS)[1] == 3 * comm.rank


def test_disagreement(comm):
    if comm.size == 1:
        pytest.skip("one rank cannot disagree")
    x = np.ones(3, "fd"[comm.rank % 2])
    everywhere(comm, DisagreementError, "disagree on the dtype of x:",
               lambda: distscan.compact(x, x > 0))  # fmt: skip
    everywhere(comm, DisagreementError, r"disagree on the dtype of x\[1\]",
               lambda: distscan.compact((np.ones(3), x), x > 0))  # fmt: skip
    some = tuple(np.ones(3) for _ in range(1 + comm.rank % 2))
    everywhere(comm, DisagreementError, "disagree on the number of arrays",
               lambda: distscan.compact(some, x > 0))  # fmt: skip
    everywhere(comm, DisagreementError, "disagree on predicate",
               lambda: distscan.select(np.ones(3), [POSITIVE, NAN][comm.rank % 2]))  # fmt: skip
    call = [lambda: distscan.select(np.ones(3), POSITIVE), lambda: distscan.compact(x, x > 0)]
    with pytest.raises((DisagreementError, RankError), match="disagree on the function"):
        call[comm.rank % 2]()
