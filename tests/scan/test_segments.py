"""Segments: by flags and by keys of every type, inside shards, across them, over many of them."""

from contextlib import suppress

import numpy as np
import pytest
from mpi4py import MPI

import distscan
from distscan import DisagreementError, RankError
from support import reference
from support.arrays import host
from support.cases import CUTS, FORMS, pairs, two_cuts
from support.data import (
    HOST_KEY_TYPES,
    KEY_TYPES,
    OPERATORS,
    elements,
    initial_of,
    keys_at,
    keys_of,
)
from support.operators import COMPOSE, maps
from support.processes import everywhere
from support.reference import CALLS, check, types_of, wanted

pytestmark = pytest.mark.fast

DENSITIES = [0, 0.003, 0.1, 1]
ELEMENTS = [("compose", "L"), ("nibbles", "B"), ("sum", "b"), ("sum", "e"), ("sum", "f"),
            ("sum", "D"), ("prod", "L"), ("max", "?"), ("max", "d"), ("min", "D"), ("squares", "i"),
            ("bitwise_xor", "H"), ("logical_and", "?")]  # fmt: skip


def marks_of(rng, heads, kind):
    """Flags, or keys that change where segments begin, to values that come again and again."""
    if kind == "flags":
        return heads
    if isinstance(kind, str) and kind[0] in "US":
        return ((np.cumsum(heads) * 2 + 1) % 7).astype(kind)
    return keys_at(rng, heads, kind)


def check_segments(op, n, kind, density, form, call, xp, cut, rng, **options):
    name, code = op
    x, heads = elements(rng, name, code, n), rng.random(n) < density
    if density == 0.003:  # few, which span many ranks
        heads = np.isin(np.arange(n), rng.integers(0, max(n, 1), 2))
    acc = types_of(OPERATORS[name], x.dtype)[0]
    initial = None if form["initial"] is None else initial_of(rng, name, acc)
    check(x, OPERATORS[name], xp=xp, cut=cut, call=call, segments=marks_of(rng, heads, kind),
          **(form | {"initial": initial}), **options)  # fmt: skip


@pairs(
    group_by="kind",
    indirect=["cut"],
    op=ELEMENTS,
    kind=["flags", *KEY_TYPES],
    density=DENSITIES,
    form=FORMS,
    n=[0, 1, 2, 300, 1501],
    call=CALLS,
    cut=CUTS,
)
def test_every_kind(op, kind, density, form, n, call, cut, xp, rng):
    check_segments(op, n, kind, density, form, call, xp, cut, rng)


@pairs(
    group_by="kind",
    indirect=["cut"],
    op=ELEMENTS[:5],
    kind=[*HOST_KEY_TYPES, "U3", "S2"],
    density=DENSITIES,
    form=FORMS,
    n=[2, 700],
    call=CALLS,
    cut=CUTS,
)
def test_kinds_of_the_host(op, kind, density, form, n, call, cut, rng):
    """NumPy finds heads among keys that no kernel compares."""
    check_segments(op, n, kind, density, form, call, np, cut, rng)


@pytest.mark.one_rank
@pairs(
    group_by="strategy",
    form=FORMS,
    threads=[1, 3],
    density=[0, 1e-4, 0.02],
    strategy=["single-pass", "reduce-scan"],
)
def test_many_blocks(form, threads, density, strategy, rng):
    """Of a CPU, several threads, which look at the key before their block."""
    n, form = 200_003, form | {"initial": None}
    x, keys = rng.integers(0, 3, n).astype("f8"), keys_of(rng, n, density, "i4")
    check(x, segments=keys, strategy=strategy, threads=threads, **form)


WORDS = ["a", "b", "ab", "abc", "", "a" * 40, "a" * 39 + "b"]
LETTERS = ["a", "\udcff", "\u00e4", "\U0001f600", "\u00e4\u00e4", "c" * 300, "c" * 299 + "d"]


# Keys of text: their width is that of the longest of a rank, and no two ranks' need be the same.
@two_cuts
@pairs(
    group_by="kind",
    kind=["text", "letters", "bytes"],
    reverse=[False, True],
    density=[0.002, 0.2, 1],
)
def test_text_keys_of_another_width_on_each_rank(kind, reverse, density, cut, rng):
    n, words = 600, LETTERS if kind == "letters" else WORDS
    words = [word.encode() for word in words] if kind == "bytes" else words
    x, runs = rng.integers(-9, 9, n), np.cumsum(rng.random(n) < density)
    keys = np.array(words)[rng.integers(0, len(words), n + 1)[runs]]
    mine = cut(n)
    ours = np.array(keys[mine].tolist(), keys.dtype.kind)  # as wide as the longest here
    want = wanted(x, segments=keys, reverse=reverse)
    y = distscan.scan(x[mine], segments=ours, reverse=reverse)
    np.testing.assert_array_equal(y, want[mine])
    plan = distscan.Plan(None, y.shape, x.dtype, segments=ours.dtype, reverse=reverse,
                         backend="cpu")  # fmt: skip
    np.testing.assert_array_equal(plan(x[mine], segments=ours), want[mine])


def test_text_keys_at_every_edge(comm):
    """The same key to both sides, of another width; then another, which begins as the first."""
    x = np.ones(2, int)
    ours = np.array(["a" if comm.rank == 0 else "ab", "ab"], f"U{2 + comm.rank}")
    y = distscan.scan(x, segments=ours)
    np.testing.assert_array_equal(y, [1, 1] if comm.rank == 0 else 2 * comm.rank + x.cumsum() - 1)


@pytest.mark.parametrize("reverse", [False, True])
def test_nan_keys_differ_from_everything(reverse, xp, cut):
    mine = cut(40)
    x = xp.ones(mine.stop - mine.start, int)
    keys = xp.full(mine.stop - mine.start, np.nan)
    y = distscan.scan(x, segments=keys, reverse=reverse, exclusive=True, initial=7)
    np.testing.assert_array_equal(host(y), np.full(mine.stop - mine.start, 7))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
def test_a_segment_at_every_rank_edge(reverse, exclusive, comm):
    """One segment for each rank; and one that ends in the middle of each."""
    n = 6
    x = np.arange(n * comm.size) + 1
    mine = slice(n * comm.rank, n * comm.rank + n)
    for shift in (0, n // 2):
        flags = np.arange(x.size) % n == shift
        keys = np.cumsum(flags)
        want = reference.scan(np.add, x, exclusive=exclusive, identity=0, reverse=reverse,
                              heads=flags)  # fmt: skip
        for marks in (flags, keys):
            y = distscan.scan(x[mine], segments=marks[mine], exclusive=exclusive, reverse=reverse)
            np.testing.assert_array_equal(y, want[mine])


@two_cuts
@pytest.mark.parametrize("density", [0.0003, 0.004, 0.02, 0.3])
@pytest.mark.parametrize("op", ["sum", COMPOSE], ids=["ufunc", "function"])
def test_many_chunks(density, op, xp, cut, rng):
    n = 50001
    x, flags = maps(rng, n), rng.random(n) < density
    combine = np.add if op == "sum" else COMPOSE.numpy
    want = reference.scan(combine, x, heads=flags)
    mine = cut(n)
    y = distscan.scan(xp.asarray(x[mine]), op, segments=xp.asarray(flags[mine]))
    np.testing.assert_array_equal(host(y), want[mine])


def test_flattened(comm, rng):
    """Of the shape of x, or of its elements."""
    x, keys = rng.integers(-9, 9, (2 * comm.size, 3)), rng.integers(0, 2, (2 * comm.size, 3))
    want = reference.scan(np.add, x, heads=reference.heads_of(keys))
    mine = slice(2 * comm.rank, 2 * comm.rank + 2)
    for marks in (keys[mine], keys[mine].reshape(-1), keys[mine].tolist()):
        y = distscan.scan(x[mine], segments=marks)
        np.testing.assert_array_equal(y, want[6 * comm.rank :][:6])


def test_infinity_stays_in_its_segment(xp, cut):
    x = np.ones(30)
    x[[5, 15, 16]] = [np.inf, np.inf, -np.inf]
    flags = np.arange(30) % 10 == 0
    mine = cut(30)
    y = distscan.scan(xp.asarray(x[mine]), segments=xp.asarray(flags[mine]))
    with np.errstate(all="ignore"):
        want = np.cumsum(x.reshape(3, 10), axis=1).reshape(-1)
    np.testing.assert_array_equal(host(y), want[mine])


@two_cuts
@pytest.mark.parametrize("density", [0.002, 0.3])
@pytest.mark.parametrize("reverse", [False, True])
def test_what_overflows_or_is_nan_stays_in_its_segment(density, reverse, xp, cut, rng):
    """In every association: 1 is lost beside 1e308, and two of that are infinite."""
    n = 20001
    x = rng.choice([1, 1e308, np.nan], n, p=[0.9, 0.08, 0.02])
    flags = rng.random(n) < density
    mine = cut(n)
    want = reference.scan(np.add, x, heads=flags, reverse=reverse)
    assert len(set(np.isfinite(want).tolist())) == 2
    y = distscan.scan(xp.asarray(x[mine]), segments=xp.asarray(flags[mine]), reverse=reverse)
    np.testing.assert_array_equal(host(y), want[mine])


def test_operators_may_be_called_with_elements_of_two_segments(comm):
    """As help(scan) says; their combination is dropped."""
    x, heads = np.arange(4000) // 10, np.arange(4000) % 10 == 0
    met = []

    def combine(a, b):
        met.append(np.any(a != b))
        return b

    y = distscan.scan(x, distscan.Operator("latest", combine), segments=heads)
    np.testing.assert_array_equal(y, x)
    assert any(met)


def test_segments_in_the_memory_of_the_result(cut, rng):
    flags = rng.random(300) < 0.1
    x = rng.integers(0, 2, 300).astype("b")
    mine = cut(300)
    want = reference.scan(np.add, x, heads=flags)
    both = np.zeros(mine.stop - mine.start + 1, bool)
    marks = both[:-1]
    marks[...] = flags[mine]
    y = distscan.scan(x[mine], segments=marks, out=both.view("b")[1:])
    np.testing.assert_array_equal(y, want[mine])


# Of the kernels' vectors, tiles and blocks.
EDGES = [16, 64, 256, 512, 1024, 2048, 4096, 6144, 8192, 16384, 32768]


@two_cuts
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("types", [("f8", "i4"), ("f4", "u1"), ("i1", "i8"), ("i4", "f4"),
                                   ("f2", "f8")])  # fmt: skip
def test_heads_at_edges(types, reverse, xp, cut, rng):
    """One head at a time, before and behind the places where pieces of a scan meet."""
    n = 40_000
    x = rng.integers(0, 2, n).astype(types[0])
    mine = cut(n)
    shard = xp.asarray(x[mine])
    near = [
        mine.start,
        mine.stop,
        *(mine.start + e for e in EDGES),
        *(mine.stop - e for e in EDGES),
    ]
    dtype = "f8" if types[0] == "f2" else None  # halves would round
    for edge in rng.permutation(near)[:12]:
        for near_it in (edge - 1, edge, edge + 1):
            place = cut_in_step(near_it, n)
            keys = (np.arange(n) >= place).astype(types[1])
            want = wanted(x.astype("f8"), segments=keys, reverse=reverse)[mine]
            y = distscan.scan(shard, segments=xp.asarray(keys[mine]), reverse=reverse, dtype=dtype)
            np.testing.assert_array_equal(host(y).astype("f8"), want)


def cut_in_step(place, n):
    """The same place on every rank: rank 0's."""
    return MPI.COMM_WORLD.bcast(min(max(int(place), 0), n))


@two_cuts
@pytest.mark.parametrize("dtype", KEY_TYPES)
@pytest.mark.parametrize("reverse", [False, True])
def test_places_in_memory(dtype, reverse, xp, cut, rng):
    """Keys at any address, strided and backwards; x elsewhere; the result over x, or over keys."""
    n = 3000
    x, keys = rng.integers(-9, 9, n), keys_of(rng, n, 0.05, dtype)
    mine = cut(n)
    want = wanted(x, segments=keys, reverse=reverse)[mine]
    shard, ours = xp.asarray(x[mine]), xp.asarray(keys[mine])
    pad = xp.zeros(3, ours.dtype)
    for shift in (1, 3):
        shifted = xp.concatenate([pad[:shift], ours])[shift:]
        moved = xp.concatenate([xp.zeros(1, shard.dtype), shard])[1:]
        y = distscan.scan(moved, segments=shifted, reverse=reverse)
        np.testing.assert_array_equal(host(y), want)
    strided, backwards = xp.repeat(ours, 2)[::2], ours[::-1].copy()[::-1]
    for given in (strided, backwards):
        y = distscan.scan(shard, segments=given, reverse=reverse)
        np.testing.assert_array_equal(host(y), want)
    out = shard.copy()
    assert distscan.scan(out, segments=ours, reverse=reverse, out=out) is out
    np.testing.assert_array_equal(host(out), want)
    if np.dtype(dtype).itemsize == 8:
        both = ours.copy()
        distscan.scan(shard, segments=both, reverse=reverse, out=both.view("i8"))
        np.testing.assert_array_equal(host(both.view("i8")), want)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("code", ["i4", "i8", "f8"])
def test_results_in_the_place_of_keys(code, reverse, xp, comm):
    """A key is compared with its neighbour, which a result must not have overwritten."""
    n = 1 << 20
    x = xp.ones(n, code)
    want = np.arange(1 + comm.rank * n, 1 + (comm.rank + 1) * n)
    if reverse:
        want = np.arange((comm.size - comm.rank) * n, (comm.size - comm.rank - 1) * n, -1)
    keys = xp.full(n, -5, code)
    distscan.scan(x, segments=keys, reverse=reverse, out=keys)
    np.testing.assert_array_equal(host(keys), want)
    keys = xp.full(n, -5, code)
    pair = distscan.Operator(
        "pair", lambda a, b: (a[0] + b[0], b[1]), "{a.x0 + b.x0, b.x1}", arity=2
    )
    distscan.scan((x, x), pair, segments=keys, reverse=reverse, out=(keys, xp.empty_like(x)))
    np.testing.assert_array_equal(host(keys), want)
    backend = "cpu" if xp is np else "cuda"
    given = {"segments": code, "reverse": reverse, "backend": backend, "agree": True}
    plan = distscan.Plan(comm, n, code, "max", **given)  # whose results have the type of x
    with pytest.raises(ValueError, match="out overlaps segments"):
        plan(x, keys, segments=keys)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", KEY_TYPES)
def test_one_element_on_each_rank(dtype, reverse, xp, comm, rng):
    """All heads are between ranks."""
    n = comm.size
    for density in (0.5, 1):
        x, keys = rng.integers(1, 9, n), keys_of(rng, n, density, dtype)
        mine = slice(comm.rank, comm.rank + 1)
        y = distscan.scan(xp.asarray(x[mine]), segments=xp.asarray(keys[mine]), reverse=reverse)
        np.testing.assert_array_equal(host(y), wanted(x, segments=keys, reverse=reverse)[mine])


# ---- faults --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "message", "given"),
    [
        (ValueError, "'scan-add' does not take segments=; use 'reduce-scan'",
         lambda: {"segments": np.zeros(6, bool), "strategy": "scan-add"}),
        (ValueError, "segments has shape", lambda: {"segments": np.zeros(5, bool)}),
        (ValueError, "along axis 0", lambda: {"segments": np.zeros(6, bool), "axis": 0}),
        (TypeError, "segments is object", lambda: {"segments": np.array([None] * 2), "axis": 0}),
        (TypeError, "segments is object", lambda: {"segments": np.array([None] * 6)}),
        (TypeError, "segments is ", lambda: {"segments": np.zeros(6, "i,i")}),
        (TypeError, "masked", lambda: {"segments": np.ma.masked_array(np.zeros(6))}),
    ],
)  # fmt: skip
def test_bad_segments(kind, message, given, comm):
    given = given() if comm.rank == comm.size - 1 else {"segments": np.zeros(6, bool)}
    everywhere(comm, kind, message, lambda: distscan.scan(np.zeros((2, 3)), **given))


def test_ranks_that_disagree_on_segments(comm):
    if comm.size == 1:
        pytest.skip("one rank cannot disagree")
    for ours, theirs in ((bool, int), ("U3", "S3"), (bool, None)):
        dtype = theirs if comm.rank else ours
        marks = None if dtype is None else np.zeros(3, dtype)
        everywhere(comm, DisagreementError, "the dtype of segments",
                   lambda m=marks: distscan.scan(np.zeros(3), segments=m))  # fmt: skip


PLAN_FAULTS = {
    "none": (TypeError, "none are given", lambda: None),
    "list": (TypeError, "segments is a list", lambda: [True] * 6),
    "type": (TypeError, "segments is int64", lambda: np.zeros(6, int)),
    "shape": (ValueError, "segments has shape", lambda: np.zeros((2, 3), bool)),
    "strides": (ValueError, "segments is not contiguous", lambda: np.zeros(12, bool)[::2]),
}


@pytest.mark.parametrize("case", PLAN_FAULTS)
@pytest.mark.parametrize("reverse", [False, True])
def test_a_fault_of_one_rank_is_its_own(case, reverse, comm, rng):
    """The ranks behind it, in scan order, hear of it; those before it have their results."""
    kind, message, bad = PLAN_FAULTS[case]
    x, flags = rng.integers(-9, 9, 6 * comm.size), rng.random(6 * comm.size) < 0.3
    guilty = comm.size // 2
    own = slice(6 * comm.rank, 6 * comm.rank + 6)
    plan = distscan.Plan(comm, 6, x.dtype, segments=True, reverse=reverse, backend="cpu")
    want = reference.scan(np.add, x, reverse=reverse, heads=flags)[own]
    if comm.rank == guilty:
        with pytest.raises(kind, match=message):
            plan(x[own], segments=bad())
    elif (comm.rank < guilty) == reverse:
        with pytest.raises(RankError, match="an earlier rank failed"):
            plan(x[own], segments=flags[own])
    else:
        np.testing.assert_array_equal(plan(x[own], segments=flags[own]), want)
    comm.Barrier()
    out = np.zeros_like(want)
    with suppress(RankError):  # which ranks before it hear now
        plan(x[own], out, flags[own])
    np.testing.assert_array_equal(out, want)


def test_plans_without_segments_refuse_them(comm):
    plan = distscan.Plan(comm, 3, "d", segments=False, backend="cpu")
    with pytest.raises(TypeError, match="without segments="):
        plan(np.zeros(3), segments=np.zeros(3, bool))
