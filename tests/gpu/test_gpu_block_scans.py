"""The scans of the literature, as the bench runs them on a GPU, against NumPy."""

import numpy as np
import pytest

from distscan.core import operators
from support.data import exact, expected
from support.host import host
from support.maps import COMPOSE, HALVES, NIBBLES, maps, packed_at_once
from support.placed import Placed, check, check_in_place, sums
from support.steps import whole
from support.tiles import typed

pytest.importorskip("distscan.cuda.steps", reason="no CuPy", exc_type=ImportError)
from distscan.bench import textbook
from distscan.bench.textbook import TextbookPolicy, TextbookScan

pytestmark = [pytest.mark.gpu, pytest.mark.one_rank, pytest.mark.timeout(300)]

STRUCTS = [struct for struct, _ in textbook.BLOCK_SCANS.values()]
CHAINS = list(textbook.CHAINS.values())
THREADS, ROWS = TextbookPolicy("").threads, TextbookPolicy("").rows
each_block_scan = pytest.mark.parametrize("struct", STRUCTS)


def tile_of(types):
    """Elements of a tile."""
    return THREADS * ROWS * max(16 // max(types.x.itemsize, types.out.itemsize), 1)


@each_block_scan
@pytest.mark.parametrize("codes", ["fff", "DDD", "bbb", "bll", "efe", "fde", "HHH"])
def test_edges(struct, codes, cp):
    """One element less, as many, one more: than threads, warps and tiles; at any address."""
    types = typed(codes)
    tile = tile_of(types)
    each = tile // THREADS
    edges = {1, each, 32 * each, tile, 2 * tile, 33 * tile, 65 * tile}
    x, want = sums(types, 66 * tile)
    step = types.out.itemsize

    def scan(x, out, **_):
        whole(TextbookScan(operators.BUILTIN["sum"], types, x.size, TextbookPolicy(struct)), x, out)

    for shift_x, shift_out in ((0, 0), (types.x.alignment, 3 * step % 16), (0, 16 - step)):
        head = -shift_out % 16 // step
        for n in sorted({0} | {b + e + i for b in (0, head) for e in edges for i in (-1, 0, 1)}):
            check(cp, types, "single-pass", n, x, want, shift_x, shift_out, scan)
            if types.x == types.out:
                check_in_place(cp, types, "single-pass", n, x, want, shift_out, scan)


@each_block_scan
@pytest.mark.parametrize("op", ["sum", "prod", "max", "min"])
def test_exact_floats(struct, op, cp, rng):
    """The second half of the numbers, seeded with the total of the first."""
    types = typed("fff")
    n = 20 * tile_of(types) + 5
    x = exact(rng, op, "f", 2 * n)
    want = expected(op, x)
    out = cp.zeros(n, "f")
    steps = TextbookScan(operators.BUILTIN[op], types, n, TextbookPolicy(struct))
    for half, offset in ((slice(0, n), None), (slice(n, None), want[n - 1])):
        whole(steps, cp.asarray(x[half]), out, offset)
        np.testing.assert_array_equal(host(out), want[half])


@each_block_scan
@pytest.mark.parametrize(("op", "k"), [(COMPOSE, 32), (NIBBLES, 4)])
def test_order_over_many_tiles(struct, op, k, cp, rng):
    """Several hundred tiles before the offset and after it; each element has its place."""
    code = {32: "L", 4: "B"}[k]
    types = typed(3 * code)
    n = 700 * tile_of(types) + 11
    x = maps(rng, 2 * n, k)
    want = packed_at_once(x, k)
    out = cp.zeros(n + 1, code)[1:]
    steps = TextbookScan(op, types, n, TextbookPolicy(struct))
    for half, offset in ((slice(0, n), None), (slice(n, None), want[n - 1])):
        whole(steps, cp.asarray(x[half]), out, offset)
        np.testing.assert_array_equal(host(out), want[half])


@each_block_scan
def test_in_place(struct, cp, rng):
    types = typed("ddd")
    n = 40 * tile_of(types) + 7
    x = exact(rng, "sum", "d", n)
    placed = Placed(cp, n, "d", 8)
    placed.array[...] = cp.asarray(x)
    steps = TextbookScan(operators.BUILTIN["sum"], types, n, TextbookPolicy(struct))
    whole(steps, placed.array, placed.array)
    np.testing.assert_array_equal(host(placed.array), np.cumsum(x))
    assert bool(placed.untouched())


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("threads", textbook.THREADS)
@each_block_scan
def test_every_chain_and_block_size(struct, threads, chain, cp, rng):
    """A non-commutative operator; some hundred tiles, then one."""
    for n in (300 * threads * ROWS * 4 + 1, 17):
        x = maps(rng, n, 16)
        steps = TextbookScan(HALVES, typed("III"), n, TextbookPolicy(struct, chain, threads))
        out = cp.zeros(n, "I")
        whole(steps, cp.asarray(x), out)
        np.testing.assert_array_equal(host(out), packed_at_once(x, 16))


@pytest.mark.parametrize("chain", CHAINS)
@each_block_scan
def test_a_thousand_launches(struct, chain, cp, rng, monkeypatch):
    """Fresh data and offsets each time, and the calls' epochs wrap: nothing is left over."""
    from distscan.cuda import workspace

    monkeypatch.setattr(workspace, "calls", workspace.numbers((1 << 30) - 500))
    types = typed("iii")
    n = 300 * tile_of(types) + 3
    pairs = []
    for _ in range(7):
        x = exact(rng, "sum", "i", n)
        pairs.append((cp.asarray(x), cp.asarray(np.cumsum(x, dtype="i"))))
    steps = TextbookScan(operators.BUILTIN["sum"], types, n, TextbookPolicy(struct, chain))
    out, wrong = cp.empty(n, "i"), cp.zeros((), "l")
    for turn in range(1000):
        x, want = pairs[turn % 7]
        offset = None if turn % 3 == 0 else np.int32(rng.integers(-(2**31), 2**31))
        whole(steps, x, out, None if offset is None else np.array(offset))
        wrong += (out != (want if offset is None else want + offset)).any()
    assert int(wrong) == 0


@each_block_scan
def test_same_bits_on_every_run(struct, cp, rng):
    types = typed("fff")
    n = 400 * tile_of(types) + 1
    x = cp.asarray(rng.normal(size=n).astype("f"))
    steps = TextbookScan(operators.BUILTIN["sum"], types, n, TextbookPolicy(struct))
    first, out = cp.empty(n, "f"), cp.empty(n, "f")
    whole(steps, x, first)
    for _ in range(20):
        whole(steps, x, out)
        assert bool((out.view("I") == first.view("I")).all())
