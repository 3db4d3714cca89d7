"""Addresses, types, devices, indices, edges of tiles and bools that only a GPU can get wrong."""

import numpy as np
import pytest
from mpi4py import MPI

import distscan
from distscan.core import dtypes, operators
from distscan.core.form import bounds
from support.arrays import host
from support.data import OPS, exact
from support.gpu import Placed, check_in_place, check_placed, geometry, sums, typed
from support.operators import COMPOSE, HALVES, NIBBLES, maps, packed_at_once
from support.reference import scan, wanted
from support.steps import whole

pytest.importorskip("distscan.cuda.steps", reason="no CuPy", exc_type=ImportError)
from distscan.bench.textbook import BLOCK_SCANS, CHAINS, THREADS, TextbookPolicy, TextbookScan

pytestmark = pytest.mark.gpu


# ---- Addresses, types, devices, 64-bit indices ---------------------------------------------------


def slice_of(comm, n):
    return slice(*bounds(n, comm.size, comm.rank))


def test_element_that_no_vector_reaches(strategy, cp, comm, rng):
    """complex128 on an 8-byte boundary: aligned for its parts, never for a vector."""
    x = exact(rng, "sum", "D", 10007)
    part = slice_of(comm, x.size)
    base = cp.zeros(2 * (part.stop - part.start) + 1)
    odd = base[1:].view("D")
    odd[...] = cp.asarray(x[part])
    np.testing.assert_array_equal(host(distscan.scan(odd, strategy=strategy)), np.cumsum(x)[part])


@pytest.mark.parametrize("role", ["x", "out"])
def test_addresses_that_a_type_cannot_have(role, strategy, cp):
    arrays = {"x": cp.zeros(4, "f"), "out": cp.zeros(4, "f")}
    arrays[role] = cp.zeros(17, "b")[1:].view("f")
    with pytest.raises(ValueError, match=f"{role} begins at an address"):
        distscan.scan(**arrays, strategy=strategy)


def test_products_wrap(strategy, cp, comm):
    """int32 products stored as int64: 65536 * 65536 is 0 before it is widened."""
    x = np.full(40 * comm.size, 3, "i")
    x[20 * comm.size : 20 * comm.size + 3] = 65536
    part = slice_of(comm, x.size)
    out = cp.full(part.stop - part.start, -1, "l")
    distscan.cumprod(cp.asarray(x[part]), dtype="i", out=out, strategy=strategy)
    np.testing.assert_array_equal(host(out), np.cumprod(x, dtype="i")[part])


def test_double_to_half_rounds_once(strategy, cp, comm):
    x = np.zeros(8 * comm.size)
    x[0] = 1 + 2**-11 + 2**-30  # a tie for float16, if it is rounded to float32 before
    part = slice_of(comm, x.size)
    out = cp.zeros(part.stop - part.start, "e")
    distscan.scan(cp.asarray(x[part]), dtype="d", out=out, strategy=strategy)
    np.testing.assert_array_equal(host(out), np.cumsum(x).astype("e")[part])


def test_strides(strategy, cp, comm, rng):
    x = exact(rng, "sum", "l", 30001)
    part = slice_of(comm, x.size)
    spread = cp.zeros(2 * (part.stop - part.start), "l")
    spread[::2] = cp.asarray(x[part])
    np.testing.assert_array_equal(
        host(distscan.scan(spread[::2], strategy=strategy)), np.cumsum(x)[part]
    )
    backwards = cp.asarray(x[part])[::-1].copy()[::-1]
    out = cp.zeros(2 * (part.stop - part.start), "l")
    distscan.scan(backwards, out=out[::2], strategy=strategy)
    np.testing.assert_array_equal(host(out[::2]), np.cumsum(x)[part])
    assert not out[1::2].any()


def test_current_stream_and_device(cp, comm, rng):
    """Work queued before the call is seen; the current device and stream stay."""
    x = exact(rng, "sum", "f", 1 << 20)
    part = slice_of(comm, x.size)
    device = cp.cuda.Device().id
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        array = cp.asarray(x[part])
        for _ in range(64):  # keeps the stream busy while the host goes on
            array += 1
            array -= 1
        y = distscan.scan(array)
        after = y * 2
        assert cp.cuda.get_current_stream() == stream
    stream.synchronize()
    np.testing.assert_array_equal(host(after), 2 * wanted(x)[part])
    assert cp.cuda.Device().id == device


def test_numbers_cut_to_a_narrow_type(strategy, cp, comm, rng):
    """Each element is cut before it is compared: the maximum of 300 and 50 as int8 is 50."""
    x = rng.integers(-(2**31), 2**31, 70001).astype("i")
    part = slice_of(comm, x.size)
    for op in OPS:
        y = distscan.scan(cp.asarray(x[part]), op, dtype="b", strategy=strategy)
        np.testing.assert_array_equal(host(y), OPS[op].accumulate(x.astype("b"), dtype="b")[part])


def test_same_answer_as_the_host(cp, comm, rng):
    for op in OPS:
        x = exact(rng, op, "i", 70001)
        part = slice_of(comm, x.size)
        np.testing.assert_array_equal(
            host(distscan.scan(cp.asarray(x[part]), op)), distscan.scan(x[part], op)
        )


def test_host_memory_for_gpu_output(cp):
    with pytest.raises(TypeError, match="out is in the memory of the host, x of GPU"):
        distscan.scan(cp.zeros(4), out=np.zeros(4))


def test_another_current_device(cp, comm, rng):
    """Arrays of one GPU while another is current: strided ones too, which need copies."""
    if cp.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("one GPU")
    x = exact(rng, "sum", "l", 5001)
    part = slice_of(comm, x.size)
    here = cp.cuda.Device().id
    with cp.cuda.Device((here + 1) % 2):
        array = cp.asarray(x[part])
        spread = cp.zeros((part.stop - part.start, 2), "l")
        spread[:, 0] = array
        out = cp.zeros(2 * (part.stop - part.start), "l")
    for y in (distscan.scan(array), distscan.scan(spread[:, 0], out=out[1::2])):
        assert y.device == array.device
        np.testing.assert_array_equal(host(y), np.cumsum(x)[part])
    assert cp.cuda.Device().id == here
    with pytest.raises(TypeError, match="both must be in the same memory"):
        distscan.scan(array, out=cp.zeros(array.size, "l"))


def test_no_long_double(cp):
    with pytest.raises(TypeError, match="does not exist on a GPU"):
        distscan.scan(cp.zeros(4), dtype=np.longdouble)


@pytest.mark.parametrize("n", [2**31 + 1, 2**32 + 5])
@pytest.mark.alone
@pytest.mark.timeout(300)
def test_more_elements_than_32_bits_count(n, strategy, cp, comm):
    """Every element follows from the one before it: y[i] = y[i-1] + x[i], modulo 256."""
    start, stop = bounds(n, comm.size, comm.rank)
    x = cp.random.randint(-128, 128, stop - start, dtype="b")
    y = cp.full(stop - start, 85, "b")
    distscan.scan(x, out=y, strategy=strategy)
    assert bool((cp.diff(y) == x[1:]).all())
    before = ([0, *comm.allgather(int(y[-1]))])[comm.rank]
    assert (int(y[0]) - int(x[0]) - before) % 256 == 0
    del x, y
    cp.get_default_memory_pool().free_all_blocks()


def test_binding(cp):
    """Local rank i takes GPU i modulo their number, and it becomes current."""
    from distscan.cuda import memory

    before = cp.cuda.Device().id
    addresses = set()
    for local_rank in range(2 * memory.count() + 1):
        name, address = memory.bind(local_rank)
        assert cp.cuda.Device().id == local_rank % memory.count()
        assert name
        addresses.add(address)
    assert len(addresses) == memory.count()
    cp.cuda.Device(before).use()


def test_staging_may_be_reused_at_once(cp, rng):
    """However busy the stream is, a chunk has arrived when upload or download returns."""
    from distscan.cuda import memory

    lane, x = memory.Lane(1 << 20), rng.integers(0, 1 << 60, 1 << 17)
    array, busy = cp.zeros(x.size, "l"), cp.zeros(1 << 26, "l")
    memory.synchronize()  # a lane waits for no kernels
    piece = lane.landing(array)
    piece[:] = x
    for _ in range(20):
        busy += 1
    lane.upload(array)
    piece[:] = 0
    np.testing.assert_array_equal(host(array), x)
    array += 1
    memory.synchronize()
    for _ in range(20):
        busy += 1
    np.testing.assert_array_equal(lane.download(array), x + 1)


# ---- Where the kernels' pieces meet: tiles, rows of totals, rings, misaligned ends ---------------

# Types of x, of the running value, of the result.
TYPES = ["bbb", "HHH", "iii", "fff", "ddd", "FFF", "DDD", "bll", "ill", "efe", "fde", "lib", "bbl"]


@pytest.mark.timeout(300)
@pytest.mark.one_rank
@pytest.mark.parametrize("codes", TYPES)
def test_edges(codes, strategy, cp):
    """One element less, as many, one more: than tiles, rows of totals, rounds of the ring."""
    types = typed(codes)
    tile, blocks, stages = geometry(types, strategy)
    tiles = {1, 2, 3, 31, 32, 33, 64, 191, 192, 193, 384, blocks - 1, blocks, blocks + 1}
    tiles |= {(stages + extra) * blocks + more for extra in (-1, 0, 1) for more in (-1, 0, 1)}
    tiles.add((2 * stages + 1) * blocks)
    most = max(tiles)
    x, want = sums(types, most * tile + 64)
    step = types.out.itemsize
    for shift_x, shift_out in ((0, 0), (types.x.alignment, 3 * step % 16), (0, 16 - step)):
        head = -shift_out % 16 // step  # elements before the first tile
        sizes = {0, 1, 2, head - 1, head, head + 1, head + 2}
        sizes |= {begin + count * tile + extra
                  for begin in (0, head) for count in tiles for extra in (-1, 0, 1)}  # fmt: skip
        # Of few elements the tiles are other ones: a whole number of them to each block.
        for row in {tile // rows for rows in (4, 5, 6, 8)}:
            for count in (1, 2, 4, 8, *(n * blocks // 2 for n in (1, 2, 4, 8, 16, 32))):
                sizes |= {begin + row * count + extra
                          for begin in (0, head) for extra in (-1, 0, 1)}  # fmt: skip
        for n in sorted(n for n in sizes if n >= 0):
            check_placed(cp, types, strategy, n, x, want, shift_x, shift_out)
            if types.x == types.out and (n < 4 * tile or n > most * tile):
                check_in_place(cp, types, strategy, n, x, want, shift_out)


@pytest.mark.timeout(300)
@pytest.mark.one_rank
@pytest.mark.parametrize("codes", TYPES)
def test_every_misalignment(codes, strategy, cp):
    """Arrays that begin at any address that their type can have."""
    types = typed(codes)
    tile, _, _ = geometry(types, strategy)
    sizes = [0, 1, 2, 15, 16, 17, 1000, tile - 1, 2 * tile + 7, 40 * tile + 1]
    x, want = sums(types, sizes[-1])
    for n in sizes:
        for shift_out in range(0, 16, types.out.alignment):
            for shift_x in range(0, 16, types.x.alignment):
                check_placed(cp, types, strategy, n, x, want, shift_x, shift_out)
            if types.x == types.out:
                check_in_place(cp, types, strategy, n, x, want, shift_out)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("k", "op", "dtype", "out"),
    [
        (32, COMPOSE, "L", "L"),
        (16, HALVES, "I", "I"),
        (16, HALVES, "L", "I"),
        (4, NIBBLES, "B", "B"),
        (4, NIBBLES, "L", "L"),
        (4, NIBBLES, "L", "H"),
    ],
)
def test_order_over_many_tiles(k, op, dtype, out, strategy, cp, comm, rng):
    """Several hundred tiles on every rank, each of whose elements has its place."""
    code = {32: "L", 16: "I", 4: "B"}[k]
    tile, blocks, stages = geometry(typed(code + dtype + out), strategy)
    for n in (5 * tile + 3, 700 * tile + 11, stages * blocks * tile + 5, 2000 * tile + 7):
        x = maps(rng, n * comm.size, k)
        part = slice(*bounds(x.size, comm.size, comm.rank))
        want = packed_at_once(x, k)[part]
        y = cp.zeros(part.stop - part.start + 1, out)[1:]
        distscan.scan(cp.asarray(x[part]), op, dtype=dtype, out=y, strategy=strategy)
        np.testing.assert_array_equal(host(y), want)


# ---- The scans of the literature, as the bench runs them -----------------------------------------

STRUCTS = [struct for struct, _ in BLOCK_SCANS.values()]
POLICY = TextbookPolicy("")


def each_block_scan(test):
    """For each block scan, at one rank."""
    marks = pytest.mark.one_rank, pytest.mark.timeout(300)
    for mark in (*marks, pytest.mark.parametrize("struct", STRUCTS)):
        test = mark(test)
    return test


each_chain = pytest.mark.parametrize("chain", list(CHAINS.values()))


def tile_of(types):
    """Elements of a tile."""
    return POLICY.threads * POLICY.rows * max(16 // max(types.x.itemsize, types.out.itemsize), 1)


@each_block_scan
@pytest.mark.parametrize("codes", ["fff", "DDD", "bbb", "bll", "efe", "fde", "HHH"])
def test_textbook_edges(struct, codes, cp):
    """One element less, as many, one more: than threads, warps and tiles; at any address."""
    types = typed(codes)
    tile = tile_of(types)
    each = tile // POLICY.threads
    edges = {1, each, 32 * each, tile, 2 * tile, 33 * tile, 65 * tile}
    x, want = sums(types, 66 * tile)
    step = types.out.itemsize

    def scan(x, out, **_):
        whole(TextbookScan(operators.BUILTIN["sum"], types, x.size, TextbookPolicy(struct)), x, out)

    for shift_x, shift_out in ((0, 0), (types.x.alignment, 3 * step % 16), (0, 16 - step)):
        head = -shift_out % 16 // step
        for n in sorted({0} | {b + e + i for b in (0, head) for e in edges for i in (-1, 0, 1)}):
            check_placed(cp, types, "single-pass", n, x, want, shift_x, shift_out, scan)
            if types.x == types.out:
                check_in_place(cp, types, "single-pass", n, x, want, shift_out, scan)


@each_block_scan
@pytest.mark.parametrize("op", ["sum", "prod", "max", "min"])
def test_textbook_floats(struct, op, cp, rng):
    """The second half of the numbers, seeded with the total of the first."""
    types = typed("fff")
    n = 20 * tile_of(types) + 5
    x = exact(rng, op, "f", 2 * n)
    want = wanted(x, op)
    out = cp.zeros(n, "f")
    steps = TextbookScan(operators.BUILTIN[op], types, n, TextbookPolicy(struct))
    for half, offset in ((slice(0, n), None), (slice(n, None), want[n - 1])):
        whole(steps, cp.asarray(x[half]), out, offset)
        np.testing.assert_array_equal(host(out), want[half])


@each_block_scan
@pytest.mark.parametrize(("op", "k"), [(COMPOSE, 32), (NIBBLES, 4)])
def test_textbook_order_over_many_tiles(struct, op, k, cp, rng):
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
def test_textbooks_in_place(struct, cp, rng):
    types = typed("ddd")
    n = 40 * tile_of(types) + 7
    x = exact(rng, "sum", "d", n)
    placed = Placed(cp, n, "d", 8)
    placed.array[...] = cp.asarray(x)
    steps = TextbookScan(operators.BUILTIN["sum"], types, n, TextbookPolicy(struct))
    whole(steps, placed.array, placed.array)
    np.testing.assert_array_equal(host(placed.array), np.cumsum(x))
    assert bool(placed.untouched())


@each_chain
@pytest.mark.parametrize("threads", THREADS)
@each_block_scan
def test_every_chain_and_block_size(struct, threads, chain, cp, rng):
    """A non-commutative operator; some hundred tiles, then one."""
    for n in (300 * threads * POLICY.rows * 4 + 1, 17):
        x = maps(rng, n, 16)
        steps = TextbookScan(HALVES, typed("III"), n, TextbookPolicy(struct, chain, threads))
        out = cp.zeros(n, "I")
        whole(steps, cp.asarray(x), out)
        np.testing.assert_array_equal(host(out), packed_at_once(x, 16))


@each_chain
@each_block_scan
def test_a_thousand_textbook_launches(struct, chain, cp, rng, monkeypatch):
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
def test_textbook_bits_on_every_run(struct, cp, rng):
    types = typed("fff")
    n = 400 * tile_of(types) + 1
    x = cp.asarray(rng.normal(size=n).astype("f"))
    steps = TextbookScan(operators.BUILTIN["sum"], types, n, TextbookPolicy(struct))
    first, out = cp.empty(n, "f"), cp.empty(n, "f")
    whole(steps, x, first)
    for _ in range(20):
        whole(steps, x, out)
        assert bool((out.view("I") == first.view("I")).all())


# ---- Bools whose bytes are neither 0 nor 1 are true, as in NumPy; results are 0 or 1 -------------

ANY = ["sum", "max", "logical_or", "logical_xor", "bitwise_xor"]
ALL = ["prod", "min", "logical_and"]
KINDS = [(op, None) for op in ANY + ALL] + [("sum", "?"), ("sum", "b"), ("sum", "f"), ("sum", "e"),
                                            ("sum", "D"), ("prod", "?"), ("max", "i")]  # fmt: skip
FEW = [("sum", None), ("max", None), ("logical_xor", None), ("sum", "?"), ("sum", "f")]


def odd(cp, rng, flags, shift=0):
    """The same flags on the GPU, as bytes that are 0 or anything else, ``shift`` bytes further."""
    some = rng.integers(1, 256, flags.shape, np.uint8)
    some[rng.random(flags.shape) < 1 / 2] = 2  # what looks false in its lowest bit
    memory = cp.zeros(flags.size + shift, np.uint8)
    memory[shift:] = cp.asarray(np.where(flags, some, np.uint8(0)).reshape(-1))
    return memory[shift:].reshape(flags.shape).view(np.bool_)


def bools(rng, op, shape):
    """Bools whose running result is not constant."""
    n = int(np.prod(shape))
    return exact(rng, "min" if op in ALL else "max", "?", n).reshape(shape)


def same(y, want):
    """Values are equal, and true is 1."""
    y = host(y)
    assert y.dtype == want.dtype
    np.testing.assert_array_equal(y.view(np.uint8), np.ascontiguousarray(want).view(np.uint8))


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("op", "dtype"), KINDS)
@pytest.mark.parametrize("strategy", ["single-pass", "reduce-scan", "scan-add"])
@pytest.mark.parametrize("n", [7, 5003, 5_000_003])
def test_elements(op, dtype, strategy, n, cp, rng):
    x = bools(rng, op, n)
    want = operators.BUILTIN[op].numpy.accumulate(x, dtype=dtype)
    for shift in (0, 3):
        y = distscan.scan(odd(cp, rng, x, shift), op, comm=MPI.COMM_SELF, dtype=dtype,
                          strategy=strategy)  # fmt: skip
        same(y, want)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("op", "dtype"), FEW)
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((307, 1001), 1), ((3001, 24), 0), ((3001, 3), 0), ((3001, 1001), 0), ((37, 29, 100), 1),
     ((60, 37, 4096), 1), ((30, 37, 4099), 1)],
)  # fmt: skip
def test_rows_and_columns(op, dtype, shape, axis, cp, rng):
    x = bools(rng, op, shape)
    want = operators.BUILTIN[op].numpy.accumulate(x, axis=axis, dtype=dtype)
    for strategy in ("single-pass", "reduce-scan"):
        y = distscan.scan(odd(cp, rng, x), op, comm=MPI.COMM_SELF, axis=axis, dtype=dtype,
                          strategy=strategy)  # fmt: skip
        same(y, want)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("op", ["sum", "logical_xor"])
def test_forms(op, reverse, exclusive, cp, rng):
    x = rng.random(100_003) < 1 / 2
    form = {"reverse": reverse, "exclusive": exclusive}
    want = scan(operators.BUILTIN[op].numpy, x, acc="l" if op == "sum" else "?", identity=0, **form)
    same(distscan.scan(odd(cp, rng, x), op, comm=MPI.COMM_SELF, **form), want)


@pytest.mark.timeout(300)
def test_operators_of_ones_own(cp, rng):
    """C++ compares bools as it knows them: 0 and 1."""
    differ = distscan.Operator("differ", numpy=np.logical_xor, cuda="a != b", identity=False)
    x = rng.random(100_003) < 1 / 2
    y = distscan.scan(odd(cp, rng, x), differ, comm=MPI.COMM_SELF)
    same(y, np.logical_xor.accumulate(x))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("struct", STRUCTS)
@pytest.mark.parametrize(("op", "dtype"), [("sum", None), ("logical_xor", None), ("sum", "f")])
def test_bools_of_textbooks(struct, op, dtype, cp, rng):
    x, operator = rng.random(100_003) < 1 / 2, operators.BUILTIN[op]
    types = dtypes.resolve(operator, x.dtype, None if dtype is None else np.dtype(dtype))
    steps = TextbookScan(operator, types, x.size, TextbookPolicy(struct))
    out = steps.empty()
    whole(steps, odd(cp, rng, x), out)
    same(out, operator.numpy.accumulate(x, dtype=dtype))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("code", "?bhidD")
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("strategy", ["single-pass", "reduce-scan"])
def test_flags(code, reverse, strategy, cp, rng):
    """Flags of segments, with vectors of 16, 8, 4, 2 elements and of one."""
    n = 50_003
    flags = rng.random(n) < 1 / 10
    x = rng.random(n) < 1 / 2 if code == "?" else exact(rng, "sum", code, n)
    want = scan(np.add, x, acc=np.add.accumulate(x[:1]).dtype, reverse=reverse, heads=flags)
    for shift in (0, 1, 4):
        array = odd(cp, rng, x) if code == "?" else cp.asarray(x)
        y = distscan.scan(array, comm=MPI.COMM_SELF, reverse=reverse, strategy=strategy,
                          segments=odd(cp, rng, flags, shift))  # fmt: skip
        same(y, want)
