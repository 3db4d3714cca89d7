"""Segments by keys of every type that kernels compare, at every edge, against plain loops."""

import numpy as np
import pytest

import distscan
from distscan.core import segments
from distscan.core.form import Form
from support import reference
from support.cuts import two_cuts
from support.forms import FORMS, forms
from support.host import host
from support.keys import HOST_TYPES, TYPES, keys_of
from support.maps import COMPOSE, maps

DENSITIES = [0, 0.003, 0.2, 1]
every_type = pytest.mark.parametrize("dtype", TYPES)


def check(x, keys, mine, xp, form, **options):
    """Scan this rank's part by a function and by both halves of a plan; compare with a loop."""
    want = reference.scan(
        COMPOSE.numpy, x, identity=1 << 32, heads=reference.heads_of(keys), **form
    )[mine]
    shard, ours = xp.asarray(x[mine]), xp.asarray(keys[mine])
    y = distscan.scan(shard, COMPOSE, segments=ours, **form, **options)
    np.testing.assert_array_equal(host(y), want)
    plan = distscan.Plan(None, len(shard), x.dtype, COMPOSE, segments=keys.dtype,
                         backend="cpu" if xp is np else "cuda", **form, **options)  # fmt: skip
    plan.start(shard, shard, ours)
    np.testing.assert_array_equal(host(plan.wait()), want)
    assert host(ours).tobytes() == keys[mine].tobytes()


@forms
@two_cuts
@every_type
def test_types(dtype, form, xp, cut, rng):
    n = 1501
    form = form | {"initial": form["initial"] and int(maps(rng, 1)[0])}
    keys = keys_of(rng, n, rng.choice(DENSITIES), dtype)
    check(maps(rng, n), keys, cut(n), xp, form)


@two_cuts
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", HOST_TYPES)
def test_types_of_the_host(dtype, reverse, cut, rng):
    """NumPy finds heads among keys that no kernel compares."""
    n = 700
    for density in DENSITIES:
        keys = keys_of(rng, n, density, dtype)
        check(maps(rng, n), keys, cut(n), np, {"reverse": reverse})


def sums(x, keys, reverse):
    """Sums of whole numbers, which are exact: those of all, without those before the segment."""
    heads = np.concatenate([[True], keys[1:] != keys[:-1]])
    if reverse:
        x, heads = x[::-1], np.concatenate([heads[1:], [True]])[::-1]
    total = np.cumsum(x)
    begin = np.maximum.accumulate(np.where(heads, np.arange(x.size), 0))
    found = total - total[begin] + x[begin]
    return found[::-1] if reverse else found


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
            want = sums(x.astype("f8"), keys, reverse)[mine]
            y = distscan.scan(shard, segments=xp.asarray(keys[mine]), reverse=reverse, dtype=dtype)
            np.testing.assert_array_equal(host(y).astype("f8"), want)


def cut_in_step(place, n):
    """The same place on every rank: rank 0's."""
    from mpi4py import MPI

    return MPI.COMM_WORLD.bcast(min(max(int(place), 0), n))


@two_cuts
@every_type
@pytest.mark.parametrize("reverse", [False, True])
def test_places_in_memory(dtype, reverse, xp, cut, rng):
    """Keys at any address, strided and backwards; x elsewhere; the result over x, or over keys."""
    n = 3000
    x, keys = rng.integers(-9, 9, n), keys_of(rng, n, 0.05, dtype)
    mine = cut(n)
    want = sums(x, keys, reverse)[mine]
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
@every_type
def test_one_element_on_each_rank(dtype, reverse, xp, comm, rng):
    """All heads are between ranks."""
    n = comm.size
    for density in (0.5, 1):
        x, keys = rng.integers(1, 9, n), keys_of(rng, n, density, dtype)
        mine = slice(comm.rank, comm.rank + 1)
        y = distscan.scan(xp.asarray(x[mine]), segments=xp.asarray(keys[mine]), reverse=reverse)
        np.testing.assert_array_equal(host(y), sums(x, keys, reverse)[mine])


@pytest.mark.one_rank
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("form", FORMS)
def test_many_blocks(form, threads, rng):
    """Of a CPU, several threads, which look at the key before their block."""
    n, form = 200_003, form | {"initial": None}
    x = rng.integers(0, 3, n).astype("f8")
    for strategy in ("single-pass", "reduce-scan"):
        for density in (0, 1e-4, 0.02):
            keys = keys_of(rng, n, density, "i4")
            y = distscan.scan(x, segments=keys, strategy=strategy, threads=threads, **form)
            want = sums(x, keys, form["reverse"]) - (x if form["exclusive"] else 0)
            np.testing.assert_array_equal(y, want)


@pytest.mark.one_rank
def test_which_keys_are_compared_by_kernels():
    """Those of 1 to 8 bytes that have an order, in the byte order of the machine."""
    for dtype in (*TYPES, *HOST_TYPES[:3]):
        keys = np.zeros(3, dtype)
        assert segments.are_read_in_place(keys, Form(keys=segments.compared(keys.dtype)))
    for dtype in (">i4", ">f8", "g", "F", "D", "?", "U3", "S2"):
        assert segments.compared(np.dtype(dtype)) is None
