"""Segments: from flags and from keys, inside shards, across them, over many of them."""

import numpy as np
import pytest

import distscan
from distscan.core.operators import BUILTIN
from support import reference
from support.cuts import two_cuts
from support.data import OPS, exact, expected
from support.forms import FORMS, forms
from support.host import host
from support.maps import COMPOSE, maps


def few(rng, n):
    """Segments that span many ranks."""
    return np.isin(np.arange(n), rng.integers(0, max(n, 1), 2))


def many(rng, n):
    return rng.random(n) < 0.1


def every(rng, n):
    return np.ones(n, bool)


def none(rng, n):
    return np.zeros(n, bool)


HEADS = [few, many, every, none]


def keys_of(rng, heads):
    """Keys that change where segments begin, to values that come again and again."""
    return (np.cumsum(heads) * 2 + 1) % 7


KINDS = {
    "flags": lambda rng, heads: heads,
    "int": keys_of,
    "float": lambda rng, heads: keys_of(rng, heads) / 3,
    "text": lambda rng, heads: keys_of(rng, heads).astype("U3"),
    "date": lambda rng, heads: keys_of(rng, heads).astype("M8[s]"),
}


@forms
@two_cuts
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("kind", ["flags", "int"])
def test_order_is_kept(form, heads, kind, xp, cut, rng):
    n = 4001
    x, marks = maps(rng, n), KINDS[kind](rng, heads(rng, n))
    mine = cut(n)
    form = form | {"initial": form["initial"] and int(maps(rng, 1)[0])}
    want = reference.scan(
        COMPOSE.numpy, x, identity=1 << 32, heads=reference.heads_of(marks), **form
    )
    shard, ours = xp.asarray(x[mine]), xp.asarray(marks[mine])
    y = distscan.scan(shard, COMPOSE, segments=ours, **form)
    np.testing.assert_array_equal(host(y), want[mine])
    plan = distscan.Plan(None, len(shard), "u8", COMPOSE, segments=marks.dtype,
                         backend="cpu" if xp is np else "cuda", **form)  # fmt: skip
    np.testing.assert_array_equal(host(plan(shard, segments=ours)), want[mine])
    plan.start(shard, shard, ours)
    np.testing.assert_array_equal(host(plan.wait()), want[mine])
    np.testing.assert_array_equal(host(ours), marks[mine])


@two_cuts
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("code", "?eLD")
@pytest.mark.parametrize("form", [FORMS[0], FORMS[5]])
def test_types(op, code, form, xp, cut, rng):
    x, flags = exact(rng, op, code, 600), rng.random(600) < 0.05
    mine = cut(x.size)
    want = expected(op, x)
    acc = np.dtype("f") if code == "e" else want.dtype
    form = form | {"initial": None if form["initial"] is None else acc.kind != "b" and 3}
    want = reference.scan(
        OPS[op], x, acc=acc, identity=BUILTIN[op].identity(acc), heads=flags, **form
    ).astype(want.dtype)
    y = distscan.scan(xp.asarray(x[mine]), op, segments=xp.asarray(flags[mine]), **form)
    assert y.dtype == want.dtype
    np.testing.assert_array_equal(host(y), want[mine])


@two_cuts
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("n", [2, 300])
def test_every_kind_of_key(kind, reverse, n, cut, rng):
    x, marks = rng.integers(-9, 9, n), KINDS[kind](rng, rng.random(n) < 0.2)
    mine = cut(n)
    want = reference.scan(np.add, x, reverse=reverse, heads=reference.heads_of(marks))
    y = distscan.scan(x[mine], segments=marks[mine], reverse=reverse)
    np.testing.assert_array_equal(y, want[mine])
    np.testing.assert_array_equal(
        distscan.scan(x[mine], segments=marks.repeat(2)[::2][mine], reverse=reverse), want[mine]
    )


WORDS = ["a", "b", "ab", "abc", "", "a" * 40, "a" * 39 + "b"]
LETTERS = ["a", "\udcff", "\u00e4", "\U0001f600", "\u00e4\u00e4", "c" * 300, "c" * 299 + "d"]


# Keys of text: their width is that of the longest of a rank, and no two ranks' need be the same.
@two_cuts
@pytest.mark.parametrize("words", [WORDS, LETTERS, [each.encode() for each in WORDS]],
                         ids=["text", "letters", "bytes"])  # fmt: skip
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("density", [0.002, 0.2, 1])
def test_text_keys_of_another_width_on_each_rank(words, reverse, density, cut, rng):
    n = 600
    x, runs = rng.integers(-9, 9, n), np.cumsum(rng.random(n) < density)
    keys = np.array(words)[rng.integers(0, len(words), n + 1)[runs]]
    mine = cut(n)
    ours = np.array(keys[mine].tolist(), keys.dtype.kind)  # as wide as the longest here
    want = reference.scan(np.add, x, reverse=reverse, heads=reference.heads_of(keys))
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
