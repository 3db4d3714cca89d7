"""Segments by keys where the kernels' pieces meet, by the backend's own steps. GPU only."""

import numpy as np
import pytest

from distscan.core import dtypes, segments
from distscan.core.form import Form
from support import reference
from support.host import host
from support.keys import TYPES, keys_of
from support.maps import COMPOSE, HALVES, NIBBLES, maps
from support.placed import Placed
from support.steps import of_size

pytestmark = [pytest.mark.gpu, pytest.mark.one_rank, pytest.mark.timeout(300)]

# The operator, its bits; types of x, of the running value, of the result.
CASES = [(COMPOSE, 32, "LLL"), (HALVES, 16, "III"), (NIBBLES, 4, "BBB"), (NIBBLES, 4, "BLL")]
ORDERS = [{}, {"reverse": True}, {"exclusive": True}, {"exclusive": True, "reverse": True}]


def placed(cp, values, shift):
    found = Placed(cp, values.size, values.dtype, shift)
    found.array[...] = cp.asarray(values)
    return found


def tile_of(types, keys):
    """Elements of the tiles that few elements are cut into."""
    import cupy

    from distscan.cuda import policy

    form, arch = Form(segmented=True, keys=keys), cupy.cuda.Device().compute_capability
    chosen = policy.scan_policy(types, form, arch, 1 << 14, policy.sm_count())
    return chosen.threads * chosen.rows * chosen.items


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("op", "k", "codes"), CASES)
@pytest.mark.parametrize("keys", TYPES)
def test_order_at_the_edges_of_tiles(keys, op, k, codes, order, cp, rng):
    """Misaligned, in place, behind an initial value; with the total, and the keys at the ends."""
    from distscan.cuda import steps as cuda

    types, keys = dtypes.Types(*map(np.dtype, codes)), np.dtype(keys)
    compared = segments.compared(keys)
    tile, reverse = tile_of(types, compared), "reverse" in order
    along = slice(None, None, -1 if reverse else 1)
    for n in (1, 2, 3, tile - 1, tile, tile + 1, 2 * tile + 5):
        first = np.array(3 << k | 5, types.acc) if "exclusive" in order else None
        form = of_size(n, Form(segmented=True, seed=first, keys=compared, **order))
        for make in (cuda.SinglePass, cuda.ReduceScan):
            steps = make(op, types, form)
            for shifts in ((0, 0, 0), (types.x.itemsize, 8, keys.itemsize), (8, 0, 8)):
                x = maps(rng, n, k)
                marks = keys_of(rng, n, rng.choice([0, 3 / n, 0.05, 1]), keys)
                heads = reference.heads_of(marks)
                want = reference.scan(op.numpy, x, acc=types.acc, heads=heads, initial=first,
                                      **order)  # fmt: skip
                source, given = placed(cp, x, shifts[0]), placed(cp, marks, shifts[2])
                in_place = types.x == types.out and shifts[0] == 0
                target = source if in_place else Placed(cp, n, types.out, shifts[1])
                call = steps.begin(source.array, target.array, given.array)
                if make is cuda.ReduceScan:
                    cuts = np.flatnonzero(heads[1:]) + 1
                    last = np.split(x, cuts)[0 if reverse else -1]
                    total = reference.scan(op.numpy, last[along], acc=types.acc)[-1]
                    assert (call.total(), call.head) == (total, cuts.size > 0)
                    found = np.array([call.edges.enters, call.edges.leaves])
                    np.testing.assert_array_equal(found, marks[along][[0, -1]])
                steps.finish(call, first)
                np.testing.assert_array_equal(host(target.array), want.astype(types.out))
                assert bool(target.untouched() & source.untouched() & given.untouched())
                assert host(given.array).tobytes() == marks.tobytes()


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("keys", ["u1", "i4", "f8"])
def test_over_many_tiles(keys, reverse, cp, rng):
    """Sums of whole numbers over several rounds of every block, against NumPy at once."""
    from distscan.core.operators import BUILTIN
    from distscan.cuda import steps as cuda

    types, keys = dtypes.Types(*map(np.dtype, "fff")), np.dtype(keys)
    n = 40_000_003
    x, marks = rng.integers(-8, 9, n).astype("f"), keys_of(rng, n, 1e-4, keys)
    form = Form(segmented=True, reverse=reverse, keys=segments.compared(keys))
    steps = cuda.ReduceScan(BUILTIN["sum"], types, of_size(n, form))
    y = cp.empty(n, "f")
    call = steps.begin(cp.asarray(x), y, cp.asarray(marks))
    total = float(call.total())
    steps.finish(call, np.array(100, "f"))
    if reverse:
        x, marks = x[::-1], marks[::-1]
    heads = np.concatenate([[False], marks[1:] != marks[:-1]])
    sums = np.cumsum(x, dtype="d")
    begin = np.maximum.accumulate(np.where(heads, np.arange(n), -1))
    before = np.where(begin > 0, sums[begin - 1], 0)
    got = host(y)[::-1] if reverse else host(y)
    np.testing.assert_array_equal(got, sums - before + np.where(begin < 0, 100, 0))
    assert (total, call.head) == (sums[-1] - before[-1], True)


def test_keys_at_an_address_that_their_type_cannot_have(cp):
    import distscan

    keys = Placed(cp, 10, "i4", 1).array
    with pytest.raises(ValueError, match="segments begins at an address"):
        distscan.scan(cp.ones(10), segments=keys)
