"""partition: cuts by the weights of elements, against the definition; wrong weights."""

import numpy as np
import pytest
from hypothesis import strategies as st

import distscan
from distscan import DisagreementError
from distscan.cpu import reductions
from support.arrays import Foreign
from support.campaigns import run_campaign
from support.cases import pairs
from support.processes import everywhere
from support.uses import check_rounded, exact_cuts


def partition(weights, parts, comm, **options):
    """The cuts, which are the same on every rank."""
    cuts = distscan.partition(weights, parts, comm=comm, **options)
    assert isinstance(cuts, np.ndarray)
    assert (cuts.shape, cuts.dtype) == ((parts + 1,), np.int64)
    assert len(set(comm.allgather(cuts.tobytes()))) == 1
    return cuts


@pairs(group_by="parts", parts=[1, 2, 7, 40], code="?bBhHiIlLefd", n=[0, 1, 5, 3000, 20000])
def test_integers_of_every_type(n, code, parts, xp, cut, comm, rng):
    weights = (rng.random(n) * 9 * (rng.random(n) < 0.7)).astype(int).astype(code)
    cuts = partition(xp.asarray(weights[cut(n)]), parts, comm)
    np.testing.assert_array_equal(cuts, exact_cuts(weights, parts))


@pairs(parts=[1, 3, 64], code="efd", n=[1, 100, 40000])
def test_fractions(n, code, parts, xp, cut, comm, rng):
    weights = rng.random(n) * np.exp(rng.normal(size=n) * (1 if code == "e" else 5))
    weights = weights.astype(code)
    check_rounded(weights, partition(xp.asarray(weights[cut(n)]), parts, comm))


@st.composite
def cases(draw, size):
    """Weights, parts, the length of a tile, and where shards end."""
    n = draw(st.integers(0, 200))
    cuts = sorted(draw(st.lists(st.integers(0, n), min_size=size - 1, max_size=size - 1)))
    return {
        "seed": draw(st.integers(0, 9999)),
        "edges": [0, *cuts, n],
        "parts": draw(st.integers(1, 30)),
        "tile": draw(st.sampled_from([1, 2, 3, 16, 64])),
        "most": draw(st.sampled_from([0, 1, 3, 10**6])),
        "density": draw(st.sampled_from([0.02, 0.3, 1])),
        "code": draw(st.sampled_from("BilLfd")),
        "huge": draw(st.booleans()),
    }


def test_against_a_loop(xp, comm, monkeypatch):
    """Integers, in tiles of few elements."""

    def check(case):
        rng, n = np.random.default_rng(case["seed"]), case["edges"][-1]
        weights = rng.integers(0, case["most"] + 1, n) * (rng.random(n) < case["density"])
        if case["huge"] and n:
            weights[rng.integers(n)] = 10**9
        weights = weights.astype(case["code"])
        monkeypatch.setattr(reductions, "TILE", case["tile"])
        mine = slice(*case["edges"][comm.rank : comm.rank + 2])
        cuts = partition(xp.asarray(weights[mine]), case["parts"], comm)
        np.testing.assert_array_equal(cuts, exact_cuts(weights, case["parts"]))

    run_campaign(comm, cases(comm.size), check, 200)


def test_floats_against_a_loop(xp, comm, monkeypatch):
    """Any floats, in tiles of few elements; then the same weights times a power of 2."""

    def check(case):
        rng, n = np.random.default_rng(case["seed"]), case["edges"][-1]
        weights = np.exp(rng.normal(size=n) * 9) * (rng.random(n) < case["density"])
        monkeypatch.setattr(reductions, "TILE", case["tile"])
        mine = slice(*case["edges"][comm.rank : comm.rank + 2])
        cuts = partition(xp.asarray(weights[mine]), case["parts"], comm)
        if weights.any():
            check_rounded(weights, cuts)
        else:
            np.testing.assert_array_equal(cuts, exact_cuts(weights, case["parts"]))
        for power in (-900, 900):
            scaled = np.ldexp(weights, power)
            np.testing.assert_array_equal(
                partition(xp.asarray(scaled[mine]), case["parts"], comm), cuts
            )

    run_campaign(comm, cases(comm.size), check, 60)


def test_by_the_middle_of_elements(xp, cut, comm):
    weights = np.array([0, 3, 0, 0, 3, 3, 0, 3])
    mine = xp.asarray(weights[cut(8)])
    np.testing.assert_array_equal(partition(mine, 4, comm), [0, 2, 5, 6, 8])
    np.testing.assert_array_equal(partition(mine, 2, comm), [0, 5, 8])


def test_no_weight(xp, cut, comm):
    """Then elements count, not weights: the cuts are those of equal weights."""
    for n, parts in ((10, 4), (97, 2), (3, 2), (97, 7), (9, 14), (30, 4)):
        zeros, want = xp.zeros(n)[cut(n)], exact_cuts(np.ones(n, int), parts)
        for weights in (zeros, -zeros, zeros + 1, zeros.astype(np.uint8)):
            np.testing.assert_array_equal(partition(weights, parts, comm), want)


@pytest.mark.parametrize("unit", [5e-324, 2.0**-1023, 2.0**-1000, 2.0**1000])
def test_smallest_numbers(unit, xp, cut, comm):
    """Neither half of a weight nor a share of the sum is rounded."""
    for weights, parts in (([1] * 6, 2), ([1] * 3, 2), ([1, 2, 0, 3, 1, 1], 3), ([1, 1], 5)):
        mine = xp.asarray(np.array(weights)[cut(len(weights))] * unit)
        want = exact_cuts(np.array(weights), parts)
        np.testing.assert_array_equal(partition(mine, parts, comm), want)


def test_one_heavy_element(xp, cut, comm):
    weights = np.ones(100)
    weights[60] = 1e6
    cuts = partition(xp.asarray(weights[cut(100)]), 4, comm)
    np.testing.assert_array_equal(cuts, [0, 60, 60, 61, 100])


@pytest.mark.parametrize("parts", [3, 16, 1000])
@pytest.mark.parametrize("more", [-1, 0, 1])
def test_cuts_at_the_edges_of_tiles(parts, more, xp, cut, comm):
    """Weights of 2, so that a target lies between two elements, and others at an element."""
    n = parts * reductions.TILE // 16 + more
    weights = np.full(n, 2, np.float32)
    cuts = partition(xp.asarray(weights[cut(n)]), parts, comm)
    np.testing.assert_array_equal(cuts, exact_cuts(weights, parts))


def test_negative_zeros_weigh_nothing(xp, cut, comm, rng):
    weights = rng.integers(0, 5, 3000).astype("f")
    weights[weights == 0] = -0.0
    mine = xp.asarray(weights[cut(3000)])
    np.testing.assert_array_equal(partition(mine, 9, comm), exact_cuts(weights, 9))
    assert np.signbit(np.asarray(weights[weights == 0])).all()


def test_sums_that_are_nearly_too_large(cut, comm):
    weights = np.full(8, 2.0**1020)
    np.testing.assert_array_equal(partition(weights[cut(8)], 4, comm), [0, 2, 4, 6, 8])
    weights = np.full(8, 5e-324)
    assert partition(weights[cut(8)], 1, comm).tolist() == [0, 8]


def test_shards_of_different_types(comm):
    """Also empty lists, which are float64."""
    own = [[], np.ones(3, "B"), np.full(2, 2.0, "f"), np.arange(4)][comm.rank % 4]
    whole = np.concatenate([np.asarray(each, float) for each in comm.allgather(own)])
    np.testing.assert_array_equal(partition(own, 3, comm), exact_cuts(whole, 3))


def test_arrays_of_other_kinds(xp, cut, comm, rng):
    weights = rng.integers(0, 9, 70000)
    mine, want = weights[cut(70000)], exact_cuts(weights, 5)
    twice = xp.asarray(mine.repeat(2))[::2]
    backwards = xp.asarray(mine[::-1].copy())[::-1]
    others = [twice, backwards]
    if xp is np:
        others += [mine.astype(">f4"), mine.astype("g"), mine.tolist(), Foreign(mine.copy())]
    for other in others:
        np.testing.assert_array_equal(partition(other, 5, comm), want)


def test_bfloat16(cut, comm):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    weights = np.arange(100).astype(ml_dtypes.bfloat16)
    want = exact_cuts(weights.astype(int), 5)
    np.testing.assert_array_equal(partition(weights[cut(100)], 5, comm), want)


@pytest.mark.parametrize("threads", ["1", "3"])
def test_threads(threads, cut, comm, rng, monkeypatch):
    monkeypatch.setenv("DISTSCAN_THREADS", threads)
    weights = rng.random(200_000)
    check_rounded(weights, partition(weights[cut(weights.size)], 11, comm))


def test_weights_are_left_as_they_are(xp, comm, rng):
    weights = rng.random(50000)
    mine = xp.asarray(weights)
    partition(mine, 3, comm)
    assert bool((mine == xp.asarray(weights)).all())


WRONG = "a weight is negative, infinite or NaN"
FAULTS = {
    "parts": (ValueError, "parts must be an integer of at least 1, not 0", lambda: ([1, 2], 0)),
    "parts type": (
        TypeError,
        "parts must be an integer of at least 1, not 2.0",
        lambda: ([1, 2], 2.0),
    ),
    "negative": (ValueError, WRONG, lambda: ([1, -2], 2)),
    "int8": (ValueError, WRONG, lambda: (np.array([5, -1], "b"), 2)),
    "negative sum": (ValueError, WRONG, lambda: ([1.0, -1.0], 2)),
    "nan": (ValueError, WRONG, lambda: ([1, np.nan], 2)),
    "negative nan": (ValueError, WRONG, lambda: ([1, -np.nan], 2)),
    "infinite": (ValueError, WRONG, lambda: ([1, np.inf], 2)),
    "half": (ValueError, WRONG, lambda: (np.array([1, np.inf], "e"), 2)),
    "infinite and negative": (ValueError, WRONG, lambda: ([np.inf, -np.inf], 2)),
    "complex": (TypeError, "weights is complex", lambda: ([1j], 2)),
    "text": (TypeError, "weights is <U1", lambda: (["a"], 2)),
    "2-d": (ValueError, "weights has shape", lambda: (np.ones((2, 2)), 2)),
    "0-d": (ValueError, "weights has shape", lambda: (3.0, 2)),
}


@pytest.mark.parametrize("case", FAULTS)
def test_faults(case, comm):
    """Of the last rank alone: all raise, and then can go on."""
    kind, message, given = FAULTS[case]
    weights, parts = given() if comm.rank == comm.size - 1 else ([1, 2], 2)
    everywhere(comm, kind, message, lambda: distscan.partition(weights, parts))
    assert partition([1, 2], 1, comm).tolist() == [0, 2 * comm.size]


@pytest.mark.parametrize("where", [0, 1, 4095, 4096, 50_000, -1])
@pytest.mark.parametrize("code", "fd")
def test_a_wrong_weight_anywhere(where, code, xp, comm, rng):
    for wrong in (-1, np.inf, -np.inf, np.nan, -1e-30):
        weights = rng.random(100_000).astype(code)
        if comm.rank == 0:
            weights[where] = wrong
        text = everywhere(comm, ValueError, WRONG,
                          lambda: distscan.partition(xp.asarray(weights), 3))  # fmt: skip  # noqa: B023
        assert comm.size == 1 or text.startswith("rank 0: ")


def test_a_sum_out_of_range(xp, comm):
    """Of one rank's weights, or of all ranks' together."""
    everywhere(comm, ValueError, "sum is not finite",
               lambda: distscan.partition(xp.full(3, 1e308), 2))  # fmt: skip
    if comm.size > 1:
        everywhere(comm, ValueError, "every rank: the weights' sum is not finite",
                   lambda: distscan.partition(xp.full(1, 1e308), 2))  # fmt: skip


def test_too_many_parts(comm):
    everywhere(
        comm,
        (MemoryError, ValueError),
        "allocate|Maximum",
        lambda: distscan.partition([1.0], 10**18),
    )
    assert partition([1, 2], 1, comm).tolist() == [0, 2 * comm.size]


def test_disagreement(comm):
    if comm.size == 1:
        pytest.skip("one rank cannot disagree")
    everywhere(comm, DisagreementError, "disagree on parts",
               lambda: distscan.partition(np.ones(3), 2 + comm.rank))  # fmt: skip
