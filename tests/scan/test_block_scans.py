"""The block scans of the literature, each in every strategy, against NumPy."""

from typing import get_args

import numpy as np
import pytest
from mpi4py import MPI

import distscan
from distscan import build
from distscan.bench import block_scans
from distscan.core import dtypes, operators
from distscan.core.form import Extents, bounds
from distscan.cuda.policy import TextbookPolicy
from support.data import exact, expected
from support.host import host
from support.maps import COMPOSE, HALVES, NIBBLES, maps, packed_at_once
from support.placed import Placed, check, check_in_place, sums
from support.steps import of_size, whole
from support.tiles import typed

NAMES = [name for name in get_args(build.BlockScan) if name != "auto"]
CHAINS = list(block_scans.CHAINS.values())
THREADS, ROWS = TextbookPolicy("").threads, TextbookPolicy("").rows


def test_the_bench_knows_all():
    assert list(block_scans.BLOCK_SCANS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_not_on_a_cpu(name, comm):
    with pytest.raises(ValueError, match="only GPUs"):
        distscan.Plan(comm, 3, "f", block_scan=name, backend="cpu")


def test_auto_is_on_a_cpu_too(comm):
    plan = distscan.Plan(comm, 3, "f", block_scan="auto", backend="cpu")
    np.testing.assert_array_equal(plan(np.ones(3, "f")), np.arange(1, 4) + 3 * comm.rank)


@pytest.mark.parametrize("name", ["fastest", "KoggeStone", "", None])
def test_unknown(name, comm):
    with pytest.raises(ValueError, match="unknown block_scan"):
        distscan.Plan(comm, 3, "f", block_scan=name, backend="cpu")


def test_one_rank_alone_is_refused_on_each(comm):
    if comm.size == 1:
        pytest.skip("one rank is alone")
    name = "blelloch" if comm.rank == comm.size - 1 else "auto"
    with pytest.raises(ValueError, match=f"rank {comm.size - 1}"):
        distscan.Plan(comm, 3, "f", block_scan=name, backend="cpu")


# ---- on a GPU --------------------------------------------------------------------------------

gpu = pytest.mark.gpu
named = pytest.mark.parametrize("name", NAMES)


def tile_of(types, strategy):
    """Elements of a tile of a sum's scan."""
    if strategy == "scan-add":  # it stores the running value
        types = dtypes.Types(types.x, types.acc, types.acc)
    return THREADS * ROWS * max(16 // max(types.x.itemsize, types.out.itemsize), 1)


class Planned:
    """Like ``distscan.scan``, for the checks of test_gpu_edges."""

    def __init__(self, name):
        self._name = name

    def scan(self, x, *, comm, dtype, out, strategy):
        made = build.make(
            Extents.of(x.shape, None), x.dtype, x.device.id, operators.BUILTIN["sum"],
            dtype=dtype, out=out.dtype, strategy=strategy, block_scan=self._name, ranks=comm.size,
        )  # fmt: skip
        call = whole(made.steps, x, out)
        assert call.empty or call.total().dtype == dtype


@gpu
@pytest.mark.one_rank
@pytest.mark.timeout(300)
@named
@pytest.mark.parametrize("codes", ["fff", "DDD", "bbb", "bll", "efe", "fde", "HHH"])
def test_edges(name, codes, strategy, cp, monkeypatch):
    """One element less, as many, one more: than threads, warps and tiles; at any address."""
    monkeypatch.setattr("test_gpu_edges.distscan", Planned(name))
    types = typed(codes)
    tile = tile_of(types, strategy)
    each = tile // THREADS
    edges = {1, each, 32 * each, tile, 2 * tile, 33 * tile, 65 * tile}
    x, want = sums(types, 66 * tile)
    step = types.out.itemsize
    for shift_x, shift_out in ((0, 0), (types.x.alignment, 3 * step % 16), (0, 16 - step)):
        head = -shift_out % 16 // step
        for n in sorted({0} | {b + e + i for b in (0, head) for e in edges for i in (-1, 0, 1)}):
            check(cp, types, strategy, n, x, want, shift_x, shift_out)
            if types.x == types.out:
                check_in_place(cp, types, strategy, n, x, want, shift_out)


@gpu
@pytest.mark.timeout(120)
@named
@pytest.mark.parametrize("op", ["sum", "prod", "max", "min"])
def test_exact_floats(name, op, strategy, cp, comm, rng):
    """On every rank, through a plan: with offsets."""
    n = 20 * tile_of(typed("fff"), strategy) + 5
    x = exact(rng, op, "f", n * comm.size)
    mine = slice(*bounds(x.size, comm.size, comm.rank))
    plan = distscan.Plan(comm, n, "f", op, strategy=strategy, block_scan=name, backend="cuda")
    y = plan(cp.asarray(x[mine]))
    np.testing.assert_array_equal(host(y), expected(op, x)[mine])


@gpu
@pytest.mark.timeout(120)
@named
@pytest.mark.parametrize(("op", "k"), [(COMPOSE, 32), (NIBBLES, 4)])
def test_order_over_many_tiles(name, op, k, strategy, cp, comm, rng):
    """Several hundred tiles on every rank, each of whose elements has its place."""
    code = {32: "L", 4: "B"}[k]
    n = 700 * tile_of(typed(3 * code), strategy) + 11
    x = maps(rng, n * comm.size, k)
    mine = slice(*bounds(x.size, comm.size, comm.rank))
    plan = distscan.Plan(comm, n, code, op, strategy=strategy, block_scan=name, backend="cuda",
                         out_dtype=code)  # fmt: skip
    out = cp.zeros(n + 1, code)[1:]
    plan(cp.asarray(x[mine]), out)
    np.testing.assert_array_equal(host(out), packed_at_once(x, k)[mine])


@gpu
@pytest.mark.one_rank
@pytest.mark.timeout(120)
@named
def test_in_place(name, strategy, cp, rng):
    n = 40 * tile_of(typed("ddd"), strategy) + 7
    x = exact(rng, "sum", "d", n)
    plan = distscan.Plan(MPI.COMM_SELF, n, "d", strategy=strategy, block_scan=name, backend="cuda")
    placed = Placed(cp, n, "d", 8)
    placed.array[...] = cp.asarray(x)
    assert plan(placed.array, placed.array) is placed.array
    np.testing.assert_array_equal(host(placed.array), np.cumsum(x))
    assert bool(placed.untouched())


@gpu
@pytest.mark.one_rank
@pytest.mark.timeout(120)
@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("threads", block_scans.THREADS)
@pytest.mark.parametrize("struct", [struct for struct, _ in block_scans.BLOCK_SCANS.values()])
def test_every_chain_and_block_size(struct, threads, chain, cp, rng):
    """What the benchmark times, on a non-commutative operator; some hundred tiles, then one."""
    from distscan.cuda.steps import SinglePass

    textbook = TextbookPolicy(struct, chain, threads)
    for n in (300 * threads * ROWS * 4 + 1, 17):
        x = maps(rng, n, 16)
        given = cp.asarray(x)
        steps = SinglePass(HALVES, typed("III"), of_size(given.size), textbook=textbook)
        out = cp.zeros(n, "I")
        whole(steps, given, out)
        np.testing.assert_array_equal(host(out), packed_at_once(x, 16))


@gpu
@pytest.mark.one_rank
@pytest.mark.timeout(120)
@pytest.mark.parametrize("chain", CHAINS)
@named
def test_a_thousand_launches(name, chain, strategy, cp, rng, monkeypatch):
    """Fresh data and offsets each time, and the calls' epochs wrap: nothing is left over."""
    from distscan.cuda import steps as cuda
    from distscan.cuda import workspace

    monkeypatch.setattr(workspace, "calls", workspace.numbers((1 << 30) - 500))
    types = typed("iii")
    n = 300 * tile_of(types, strategy) + 3
    struct = block_scans.BLOCK_SCANS[name][0]
    pairs = []
    for _ in range(7):
        x = exact(rng, "sum", "i", n)
        pairs.append((cp.asarray(x), cp.asarray(np.cumsum(x, dtype="i"))))
    strategies = {"single-pass": cuda.SinglePass, "reduce-scan": cuda.ReduceScan}
    steps = strategies.get(strategy, cuda.ScanAdd)(
        operators.BUILTIN["sum"], types, of_size(n), textbook=TextbookPolicy(struct, chain)
    )
    totals = [int(want[-1]) for _, want in pairs]
    out, wrong, right = cp.empty(n, "i"), cp.zeros((), "l"), []
    for turn in range(1000):
        x, want = pairs[turn % 7]
        offset = None if turn % 3 == 0 else np.int32(rng.integers(-(2**31), 2**31))
        call = whole(steps, x, out, None if offset is None else np.array(offset))
        wrong += (out != (want if offset is None else want + offset)).any()
        right.append(call.empty or int(call.total()) == totals[turn % 7])
    assert int(wrong) == 0
    assert all(right)


@gpu
@pytest.mark.one_rank
@pytest.mark.timeout(120)
@named
def test_same_bits_on_every_run(name, strategy, cp, rng):
    n = 400 * tile_of(typed("fff"), strategy) + 1
    x = cp.asarray(rng.normal(size=n).astype("f"))
    plan = distscan.Plan(MPI.COMM_SELF, n, "f", strategy=strategy, block_scan=name, backend="cuda")
    first = plan(x).view("I")
    assert all(bool((plan(x).view("I") == first).all()) for _ in range(20))
