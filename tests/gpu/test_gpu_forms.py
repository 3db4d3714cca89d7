"""Every form of a scan where the pieces of kernels meet: rows, keys, long rows, late offsets."""

import time

import numpy as np
import pytest

import distscan
from distscan.core import dtypes, form, operators, segments
from distscan.core.errors import KernelError
from distscan.core.form import Extents, Form
from distscan.engine import cache
from support import reference
from support.arrays import host
from support.cases import FORMS, two_cuts
from support.data import KEY_TYPES, exact, keys_of
from support.gpu import Placed, geometry, typed
from support.operators import COMPOSE, HALVES, NIBBLES, maps
from support.steps import of_size, whole

pytestmark = pytest.mark.gpu


# ---- Every form of a scan where the kernels' pieces meet, by the backend's own steps -------------

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


def tile_of(types, n=1 << 40, keys=None):
    """Elements of the tiles that ``n`` elements are cut into."""
    import cupy

    from distscan.cuda import policy

    form, arch = Form(segmented=True, keys=keys), cupy.cuda.Device().compute_capability
    scan_policy = policy.scan_policy(types, form, arch, n, policy.sm_count())
    return scan_policy.threads * scan_policy.rows * scan_policy.items


def value(k, m, c, dtype):
    return np.array(m << k | c, dtype)


@pytest.mark.one_rank
@pytest.mark.timeout(300)
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


@pytest.mark.one_rank
@pytest.mark.timeout(300)
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


@pytest.mark.one_rank
@pytest.mark.timeout(300)
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


@pytest.mark.one_rank
@pytest.mark.timeout(300)
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


# ---- Segments by keys where the kernels' pieces meet, by the backend's own steps -----------------

# The operator, its bits; types of x, of the running value, of the result.
KEY_CASES = [(COMPOSE, 32, "LLL"), (HALVES, 16, "III"), (NIBBLES, 4, "BBB"), (NIBBLES, 4, "BLL")]


@pytest.mark.one_rank
@pytest.mark.timeout(300)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("op", "k", "codes"), KEY_CASES)
@pytest.mark.parametrize("keys", KEY_TYPES)
def test_order_at_the_edges_of_tiles(keys, op, k, codes, order, cp, rng):
    """Misaligned, in place, behind an initial value; with the total, and the keys at the ends."""
    from distscan.cuda import steps as cuda

    types, keys = dtypes.Types(*map(np.dtype, codes)), np.dtype(keys)
    compared = segments.compared(keys)
    tile, reverse = tile_of(types, 1 << 14, compared), "reverse" in order
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
                source, flags = place(cp, x, shifts[0]), place(cp, marks, shifts[2])
                in_place = types.x == types.out and shifts[0] == 0
                target = source if in_place else Placed(cp, n, types.out, shifts[1])
                call = steps.begin(source.array, target.array, flags.array)
                if make is cuda.ReduceScan:
                    cuts = np.flatnonzero(heads[1:]) + 1
                    last = np.split(x, cuts)[0 if reverse else -1]
                    total = reference.scan(op.numpy, last[along], acc=types.acc)[-1]
                    assert (call.total(), call.head) == (total, cuts.size > 0)
                    edges = np.array([call.edges.enters, call.edges.leaves])
                    np.testing.assert_array_equal(edges, marks[along][[0, -1]])
                steps.finish(call, first)
                np.testing.assert_array_equal(host(target.array), want.astype(types.out))
                assert bool(target.untouched() & source.untouched() & flags.untouched())
                assert host(flags.array).tobytes() == marks.tobytes()


@pytest.mark.one_rank
@pytest.mark.timeout(300)
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


@pytest.mark.one_rank
@pytest.mark.timeout(300)
def test_keys_at_an_address_that_their_type_cannot_have(cp):
    import distscan

    keys = Placed(cp, 10, "i4", 1).array
    with pytest.raises(ValueError, match="segments begins at an address"):
        distscan.scan(cp.ones(10), segments=keys)


# ---- Long rows of totals, in pieces between GPUs and hosts ---------------------------------------

WIDTHS = [2, 1023, 1024, 1025, 5000]


@pytest.fixture
def small(monkeypatch):
    """Pieces of 8 KiB, and no plans of whole rows."""
    monkeypatch.setattr(form, "PIECE", 8192)
    cache.clear()
    yield
    cache.clear()


@pytest.fixture
def busy(cp, rng):
    """What keeps the GPU at work for a while, so that all that is queued behind it is late."""
    x = cp.asarray(rng.random((3000, 3000)))
    return lambda: x @ x


def layered(x, exclusive, initial, reverse):
    """Compose one row behind the other."""
    y, before = np.empty_like(x), None if initial is None else np.full_like(x[0], initial)
    for i in reversed(range(len(x))) if reverse else range(len(x)):
        after = x[i] if before is None else COMPOSE.numpy(before, x[i])
        y[i] = after if not exclusive else COMPOSE.identity(x.dtype) if before is None else before
        before = after
    return y


@pytest.mark.timeout(300)
@two_cuts
@pytest.mark.parametrize("form", FORMS)
def test_order_is_kept(form, small, busy, cp, cut, rng):
    form = form | {"initial": form["initial"] and int(maps(rng, 1)[0])}
    for width in WIDTHS:
        part = cut(11)
        for _ in range(3):
            x = maps(rng, 11 * width).reshape(11, width)
            want = layered(x, **form)[part]
            shard = cp.asarray(x[part])
            busy()
            y = distscan.scan(shard, COMPOSE, axis=0, strategy="reduce-scan", **form)
            busy()
            distscan.scan(shard, COMPOSE, axis=0, strategy="reduce-scan", out=shard, **form)
            np.testing.assert_array_equal(host(y), want)
            np.testing.assert_array_equal(host(shard), want)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("op", ["sum", "logaddexp"])
def test_started(op, small, busy, cp, cut, rng):
    """One plan in both ways, again and again, while the GPU has other work."""
    part = cut(20)
    shape = part.stop - part.start, 5000
    plan = distscan.Plan(None, shape, "f", op, axis=0, strategy="reduce-scan", backend="cuda")
    for _ in range(5):
        x = rng.integers(-9, 9, (20, 5000)).astype("f")
        want = operators.BUILTIN[op].numpy.accumulate(x, 0, dtype="d")[part]
        shard = cp.asarray(x[part])
        busy()
        plan.start(shard)
        busy()
        waited = plan.wait()
        busy()
        result = plan(shard)
        for y in (waited, result):
            np.testing.assert_allclose(host(y), want, rtol=1e-5, atol=1e-5)


@pytest.mark.timeout(300)
@pytest.mark.one_rank
@pytest.mark.parametrize("codes", ["d", "f", "e", "h", "?"])
def test_pieces_of_a_megabyte(codes, busy, cp, rng):
    """Totals and offsets of two shards, one behind the other; nothing crosses ranks."""
    from distscan.cuda import steps as cuda

    op = operators.BUILTIN["sum" if codes != "h" else "max"]
    types = dtypes.resolve(op, np.dtype(codes))
    inner = int(9.5 * form.longest_piece(types.acc))  # more than have a place on the host
    x = exact(rng, op.name, codes, 6 * inner).reshape(inner, 6).T.copy()
    want = op.numpy.accumulate(x, 0, dtype=types.acc).astype(types.out)
    steps = cuda.ReduceScan(op, types, of_size(3, inner=inner))
    behind = None
    for half in (slice(0, 3), slice(3, 6)):
        shard, out = cp.asarray(x[half].reshape(-1)), steps.empty()
        busy()
        call = steps.begin(shard, out)
        total = np.empty(inner, types.acc)
        for piece in form.Pieces(inner, types.acc):
            total[piece] = call.total(piece)
            call.put(piece, None if behind is None else behind[piece])
        busy()
        steps.finish(call, call.offset)
        np.testing.assert_array_equal(host(out).reshape(3, inner), want[half])
        behind = total
    np.testing.assert_array_equal(behind, op.numpy.reduce(x[3:], 0, dtype=types.acc))


@pytest.mark.timeout(300)
def test_recurrences(small, busy, cp, cut, rng):
    """Structures."""
    n, width = 12, 2000
    a, b = (rng.integers(-2, 3, (n, width)).astype("f") for _ in range(2))
    part, h = cut(n), np.zeros(width, "f")
    want = np.empty_like(b)
    for i in range(n):
        want[i] = h = a[i] * h + b[i]
    for _ in range(3):
        busy()
        y = distscan.linear_recurrence(cp.asarray(a[part]), cp.asarray(b[part]))
        np.testing.assert_array_equal(host(y), want[part])


# ---- A scan launched ahead of its offset, which comes in time, too late, or never ----------------

launches = pytest.importorskip("distscan.cuda.launches", reason="no CuPy", exc_type=ImportError)


LATE = 0.005  # seconds; kernels/linear/offset.cuh waits for one millisecond


class Shard:
    """Numbers whose scan behind any offset is known, in a buffer that begins at any element.

    Between ``begin`` and ``finish`` nothing may take long.
    """

    def __init__(self, cp, rng, code, n):
        from distscan.cuda import steps as cuda

        self.cp, self.rng, self.n = cp, rng, n
        self.types = typed(3 * code)
        self.steps = cuda.ReduceScan(operators.BUILTIN["sum"], self.types, of_size(n))
        self.data = exact(rng, "sum", code, n)
        self.x, self.out = cp.empty(n + 4, code), cp.empty(n + 4, code)

    def begin(self, turn):
        """Begin turn number ``turn``."""
        self.shard = self.x[turn % 4 :][: self.n]
        self.shard.set(self.data)
        self.target = self.shard if turn % 3 == 0 else self.out[turn % 2 :][: self.n]
        self.out.view(np.uint8)[...] = 0xA5
        self.before = self.target.copy()
        some = turn % 4 > 0
        self.offset = np.array(exact(self.rng, "sum", self.types.x.char, 1)[0]) if some else None
        self.call = self.steps.begin(self.shard, self.target, overlap=True)

    def finish(self):
        """End it; the result must be right."""
        self.steps.finish(self.call, self.offset)
        with np.errstate(over="ignore"):
            want = np.cumsum(self.data, dtype=self.types.acc)
            assert self.call.total() == want[-1]
            want = want if self.offset is None else want + self.offset
        np.testing.assert_array_equal(self.target.get(), want)


@pytest.fixture(params=["f", "D", "b", "l"])
def shard(request, cp, rng):
    """Of one tile, of a few, of more than fit into the rings at once."""

    def make(size):
        tile, blocks, stages = geometry(typed(3 * request.param), "reduce-scan")
        return Shard(
            cp, rng, request.param, (100, 5 * tile + 3, (stages + 1) * blocks * tile)[size]
        )

    return make


@pytest.mark.alone
@pytest.mark.one_rank
@pytest.mark.timeout(120)
@pytest.mark.parametrize("size", range(3))
def test_in_time(size, shard):
    it = shard(size)
    for turn in range(24):
        it.begin(turn)
        assert it.call.deferred
        it.finish()
        assert it.steps.too_late == 0


@pytest.mark.alone
@pytest.mark.one_rank
@pytest.mark.timeout(120)
@pytest.mark.parametrize("size", range(3))
def test_too_late(size, shard):
    """Nothing is stored before the offset is known; after three times nothing waits for it."""
    it = shard(size)
    for turn in range(5):
        it.begin(turn)
        assert it.call.deferred == (turn < 3)
        time.sleep(LATE)
        np.testing.assert_array_equal(it.target.get(), it.before.get())
        it.finish()


@pytest.mark.alone
@pytest.mark.one_rank
@pytest.mark.timeout(120)
def test_never(shard):
    """Who gives up leaves a GPU that works and a shard as it was."""
    it = shard(1)
    for turn in range(5):
        it.begin(turn)
    np.testing.assert_array_equal(it.target.get(), it.before.get())
    it.finish()


@pytest.mark.alone
@pytest.mark.one_rank
@pytest.mark.timeout(120)
def test_clocks_that_disagree(shard, monkeypatch):
    """A kernel that has given up what the host took for sent: the next call raises, or the end."""
    monkeypatch.setattr(launches, "_LIMIT", 10.0)  # what the host believes
    it = shard(1)
    for turn in range(2):
        it.begin(turn)
        time.sleep(LATE)
        it.steps.finish(it.call, it.offset)
        np.testing.assert_array_equal(it.target.get(), it.before.get())
        it.begin(turn)
        with pytest.raises(KernelError, match="were not stored"):
            it.finish()
        it.begin(turn)
        it.finish()
    it.begin(2)
    time.sleep(LATE)
    it.steps.finish(it.call, it.offset)
    with pytest.raises(KernelError, match="were not stored"):
        it.steps.close()
