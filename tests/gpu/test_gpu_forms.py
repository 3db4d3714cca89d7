"""Every form of a scan where the kernels' pieces meet, by the backend's own steps. GPU only."""

import numpy as np
import pytest

from distscan.core import dtypes
from distscan.core.form import Extents, Form
from support.host import host
from support.maps import COMPOSE, HALVES, NIBBLES, maps
from support.placed import Placed
from support.steps import of_size, whole

pytestmark = [pytest.mark.gpu, pytest.mark.one_rank, pytest.mark.timeout(300)]

# The operator, its bits; types of x, of the running value, of the result.
CASES = [(COMPOSE, 32, "LLL"), (HALVES, 16, "III"), (HALVES, 16, "ILI"), (NIBBLES, 4, "BBB"),
         (NIBBLES, 4, "BLL")]  # fmt: skip
ORDERS = [{}, {"reverse": True}, {"exclusive": True}, {"exclusive": True, "reverse": True}]


def one_by_one(op, x, types, form, heads, offset):
    """The result [n] and the total of one row, as their definitions read."""
    y, one = np.empty(x.size, types.acc), types.acc.type
    before = form.seed if offset is None else offset
    total, some = None, False
    x = x.astype(types.acc)

    def behind(earlier, later):
        return later if earlier is None else op.numpy(one(earlier), later)

    for i in range(x.size)[:: -1 if form.reverse else 1]:
        if heads is not None and heads[i]:
            before, total, some = form.seed, None, True
        after = behind(before, x[i])
        y[i] = before if form.exclusive else after
        before, total = after, behind(total, x[i])
    return y.astype(types.out), total, some


def place(cp, values, shift):
    placed = Placed(cp, values.size, values.dtype, shift)
    placed.array[...] = cp.asarray(values)
    return placed


def check(cp, steps, op, types, form, x, heads=None, offset=None, shifts=(0, 0, 0), in_place=False):
    rows = [
        one_by_one(op, row, types, form, heads, offset) for row in x.reshape(form.extents.outer, -1)
    ]
    want = np.concatenate([row[0] for row in rows])
    source = place(cp, x, shifts[0])
    target = source if in_place else Placed(cp, x.size, types.out, shifts[1])
    flags = None if heads is None else place(cp, heads, shifts[2]).array
    offset = None if offset is None else np.array(offset, types.acc)
    call = whole(steps, source.array, target.array, offset, flags)
    if type(steps).__name__ != "SinglePass":
        assert call.total() == rows[0][1]
        assert call.head == rows[0][2]
    np.testing.assert_array_equal(host(target.array), want)
    assert bool(target.untouched() & source.untouched())
    if not in_place:
        np.testing.assert_array_equal(host(source.array), x)


def tile_of(types):
    """Elements of the tiles that many elements are cut into."""
    import cupy

    from distscan.cuda import policy

    arch, n = cupy.cuda.Device().compute_capability, 1 << 40
    chosen = policy.scan_policy(types, Form(segmented=True), arch, n, policy.sm_count())
    return chosen.threads * chosen.rows * chosen.items


def value(k, m, c, dtype):
    return np.array(m << k | c, dtype)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("op", "k", "codes"), CASES)
@pytest.mark.parametrize("segmented", [False, True])
@pytest.mark.parametrize("strategy", ["SinglePass", "ReduceScan", "ScanAdd"])
def test_order_in_every_form(strategy, segmented, op, k, codes, order, cp, rng):
    """At the edges of tiles, misaligned, in place, behind an offset and behind an initial value."""
    from distscan.cuda import steps as cuda

    if segmented and strategy == "ScanAdd":
        pytest.skip("segments go by the other strategies")
    types = dtypes.Types(*map(np.dtype, codes))
    step = types.out.itemsize
    tile = tile_of(types)
    offset = value(k, 5, 3, types.acc)
    for n in (1, 2, 3, tile - 1, tile, tile + 1, 3 * tile + 5):
        for first in (None, value(k, 3, 5, types.acc)):
            if first is None and "exclusive" in order:
                continue
            form = Form(segmented=segmented, seed=first, **order)
            steps = getattr(cuda, strategy)(op, types, of_size(n, form))
            for shifts in ((0, 0, 0), (types.x.itemsize, 3 * step % 16, 1), (8, 16 - step, 3)):
                x = maps(rng, n, k)
                heads = rng.random(n) < rng.choice([0, 3 / n, 0.01, 0.3, 1]) if segmented else None
                for before in (None, offset):
                    check(cp, steps, op, types, form, x, heads, before, shifts)
                if types.x == types.out:
                    same = (shifts[1], shifts[1], shifts[2])
                    check(cp, steps, op, types, form, x, heads, offset, same, in_place=True)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("op", "k", "codes"), CASES)
def test_order_in_rows(op, k, codes, order, cp, rng):
    """Rows of one element, of two, of a tile and of more; many of them and few."""
    from distscan.cuda import steps as cuda

    types = dtypes.Types(*map(np.dtype, codes))
    step, tile = types.out.itemsize, tile_of(types)
    for outer, n in ((2, 1), (tile + 5, 1), (3000, 2), (999, 3), (300, 31), (9, 129), (2, tile),
                     (3, tile + 1), (2, 3 * tile + 5), (5, 0)):  # fmt: skip
        for first in (None, value(k, 3, 5, types.acc)):
            if first is None and "exclusive" in order:
                continue
            form = Form(Extents(outer=outer), seed=first, **order)
            steps = cuda.SinglePass(op, types, of_size(n, form))
            for shifts in ((0, 0, 0), (types.x.itemsize, 3 * step % 16, 0)):
                check(cp, steps, op, types, form, maps(rng, outer * n, k), shifts=shifts)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("name", "codes"), [("sum", "fff"), ("sum", "bll"), ("sum", "DDD"),
                                             ("max", "bbb"), ("min", "HHH")])  # fmt: skip
def test_rows_of_every_length(name, codes, order, cp, rng):
    """By operators whose operands may be exchanged, which are reduced in another way."""
    from distscan.core.operators import BUILTIN
    from distscan.cuda import steps as cuda

    op, types = BUILTIN[name], dtypes.Types(*map(np.dtype, codes))
    first = np.array(5, types.acc) if "exclusive" in order else None
    along = slice(None, None, -1 if "reverse" in order else 1)
    for n in (*range(1, 40), 63, 64, 65, 127, 1000, 4096):
        outer = 3 * tile_of(types) // n + 1
        steps = cuda.SinglePass(
            op, types, of_size(n, Form(Extents(outer=outer), seed=first, **order))
        )
        x = rng.integers(0, 100, (outer, n)).astype(types.x)
        want = x[:, along]
        if first is not None:
            want = np.concatenate([np.full((outer, 1), first), want[:, :-1]], axis=1)
        want = op.numpy.accumulate(want, axis=1, dtype=types.acc)[:, along]
        for shifts in ((0, 0), (types.x.itemsize, types.out.itemsize)):
            source = place(cp, x.ravel(), shifts[0])
            target = Placed(cp, x.size, types.out, shifts[1])
            whole(steps, source.array, target.array)
            np.testing.assert_array_equal(host(target.array).reshape(x.shape), want)
            assert bool(target.untouched())


@pytest.mark.parametrize("reverse", [False, True])
def test_segments_over_many_tiles(reverse, cp, rng):
    """Sums of whole numbers over several rounds of every block, against NumPy at once."""
    from distscan.core.operators import BUILTIN
    from distscan.cuda import steps as cuda

    types = dtypes.Types(*map(np.dtype, "fff"))
    n = 40_000_003
    x, heads = rng.integers(-8, 9, n).astype("f"), rng.random(n) < 1e-4
    steps = cuda.ReduceScan(
        BUILTIN["sum"], types, of_size(n, Form(segmented=True, reverse=reverse))
    )
    y, flags, array = cp.empty(n, "f"), cp.asarray(heads), cp.asarray(x)
    call = whole(steps, array, y, np.array(100, "f"), flags)
    x, heads = (x[::-1], heads[::-1]) if reverse else (x, heads)
    sums = np.cumsum(x, dtype="d")
    begin = np.maximum.accumulate(np.where(heads, np.arange(n), -1))
    want = sums - np.where(begin > 0, sums[begin - 1], 0) + np.where(begin < 0, 100, 0)
    got = host(y)[::-1] if reverse else host(y)
    np.testing.assert_array_equal(got, want)
    assert (float(call.total()), call.head) == (want[-1], True)
