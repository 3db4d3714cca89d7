"""compact, select, partition and file jobs on a GPU: edges of tiles, addresses, streams."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
from mpi4py import MPI

import distscan
from distscan.core.errors import KernelError
from distscan.engine import cache
from distscan.job import plan
from support.gpu import Placed
from support.uses import MASKS, check_rounded, exact_cuts, mask_of, noise

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


# ---- Compactions at the edges of tiles, addresses, streams and threads ---------------------------

CODES = {1: "b", 2: "e", 4: "f", 8: "d", 16: "D"}


@pytest.fixture
def compaction(cp):
    """The module under test: it imports CuPy."""
    from distscan.cuda import compaction

    return compaction


def policy_of(cp, size, n, masked=True):
    from distscan.cuda.compaction import compact_policy
    from distscan.cuda.policy import sm_count

    arch = cp.cuda.Device().compute_capability
    return compact_policy(size, n, arch, sm_count(), masked=masked)


def bits(array):
    """Bytes, which compare NaN and -0.0 as they stand."""
    return array.view(np.uint8)


def selected(cp, x, mask):
    """The kept elements, by another way than CuPy's x[mask]."""
    index = cp.asarray(np.flatnonzero(mask.get()))
    return x.view(np.uint8).reshape(len(x), x.nbytes // len(x))[index].reshape(-1)


@pytest.mark.one_rank
@pytest.mark.parametrize("size", CODES)
def test_edges(size, cp, compaction, rng):
    """Around tiles, blocks and stages; the result at any address, and nothing beside it."""
    policy = policy_of(cp, size, 1 << 40)
    blocks = cp.cuda.Device().attributes["MultiProcessorCount"]
    tiles = {1, 2, policy.stages, blocks, blocks + 1, policy.stages * blocks + 1}
    small = policy_of(cp, size, 1).tile
    sizes = {0, 1, 2, 31, 32, 33, 255, 256, 257}
    sizes |= {small * count + extra for count in (1, 2) for extra in (-1, 0, 1)}
    sizes |= {policy.tile * count + extra for count in tiles for extra in (-1, 0, 1)}
    sizes = sorted(sizes - {0})
    elements = cp.asarray(noise((sizes[-1] + 3,), CODES[size], rng))
    unit = compaction._UNITS[size]
    compactor = compaction.Compactor()
    for i, n in enumerate(sizes):
        begin, mask_begin = i % 3, i % 5
        x = elements[begin : begin + n]
        flags = mask_of(MASKS[i % len(MASKS)], n, rng)
        mask = cp.asarray(np.concatenate([np.zeros(mask_begin, bool), flags]))[mask_begin:]
        target = Placed(cp, n, CODES[size], size * (i % 16))
        selection = compaction.Selection("Masked", unit, size)
        count = compactor._queue(selection, x, mask, target.array)()
        assert count == flags.sum(), n
        assert bool((bits(target.array)[: count * size] == selected(cp, x, mask)).all()), n
        assert bool((bits(target.array)[count * size :] == 0xA5).all() & target.untouched()), n


@pytest.mark.one_rank
@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("size", CODES)
def test_masks(size, kind, cp, rng):
    n = (1 << 20) + 3
    x = cp.asarray(noise((n + 1,), CODES[size], rng))[1:]
    mask = cp.asarray(mask_of(kind, n + 3, rng))[3:]
    result, start = distscan.compact(x, mask, comm=MPI.COMM_SELF)
    assert start == 0
    assert result.dtype == x.dtype
    assert result.shape == (int(mask.sum()),)
    assert bool((bits(result) == selected(cp, x, mask)).all())


@pytest.mark.one_rank
def test_in_place(cp, compaction, rng):
    """The result over the elements that are read: what the kernel promises."""
    for n in (100, 6144 * 132 * 9 + 5):
        x = cp.asarray(noise((n,), "i", rng))
        mask = cp.asarray(mask_of("half", n, rng))
        want = selected(cp, x, mask)
        selection = compaction.Selection("Masked", "unsigned int", 4)
        count = compaction.Compactor()._queue(selection, x, mask, x)()
        assert bool((bits(x)[: 4 * count] == want).all())


@pytest.mark.one_rank
def test_any_byte_but_0_is_true(cp, rng):
    flags = rng.choice(np.array([0, 1, 2, 128, 255], np.uint8), 10_000)
    x = cp.arange(10_000)
    result, _ = distscan.compact(x, cp.asarray(flags).view(bool), comm=MPI.COMM_SELF)
    assert result.tolist() == np.flatnonzero(flags).tolist()


@pytest.mark.one_rank
@pytest.mark.parametrize("row", [(3,), (0,), (5, 2), (64,), (1000,)])
@pytest.mark.parametrize("code", "bhfdD")
def test_rows(code, row, cp, rng):
    for n, begin in ((1, 0), (1000, 1), (50_000 // max(row[0] // 16, 1), 0)):
        x = cp.asarray(noise((n + begin, *row), code, rng))[begin:]
        mask = cp.asarray(mask_of("half", n, rng))
        result, _ = distscan.compact(x, mask, comm=MPI.COMM_SELF)
        assert result.shape == (int(mask.sum()), *row)
        assert bool((bits(result).reshape(-1) == selected(cp, x, mask)).all())


@pytest.mark.one_rank
def test_rows_at_an_odd_address(cp, rng):
    """8 bytes a row, at 4 bytes behind a boundary of 8."""
    x = cp.asarray(noise((2 * 1000 + 1,), "f", rng))[1:].reshape(1000, 2)
    mask = cp.asarray(mask_of("half", 1000, rng))
    result, _ = distscan.compact(x, mask, comm=MPI.COMM_SELF)
    assert bool((bits(result).reshape(-1) == selected(cp, x.copy(), mask)).all())


@pytest.mark.one_rank
def test_memory(cp, rng):
    """At least a quarter of a result's buffer is in use."""
    n, pool = 1 << 22, cp.get_default_memory_pool()
    x, some = cp.zeros(n, "f"), cp.arange(n)
    distscan.compact(x, some < 1, comm=MPI.COMM_SELF)
    for count in (0, 1, n // 4 - 1, n // 4, n // 2, n):
        mask = some < count
        before = pool.used_bytes()
        result, _ = distscan.compact(x, mask, comm=MPI.COMM_SELF)
        assert len(result) == count
        assert pool.used_bytes() - before <= 4 * result.nbytes + 1024
        del result


@pytest.mark.one_rank
@pytest.mark.alone
def test_more_elements_than_32_bits_count(cp):
    n = (1 << 32) + 77
    if cp.cuda.runtime.memGetInfo()[0] < 5 * n:
        pytest.skip("needs 20 GiB")
    x = cp.zeros(n, np.int8)
    x[-5:] = cp.arange(1, 6)
    mask = cp.ones(n, bool)
    mask[:3] = False
    result, _ = distscan.compact(x, mask, comm=MPI.COMM_SELF)
    assert len(result) == n - 3
    assert result[-6:].tolist() == [0, 1, 2, 3, 4, 5]
    assert int(result.sum(dtype=np.int64)) == 15


@pytest.mark.one_rank
@pytest.mark.parametrize("sizes", [(1 << 12, 1 << 22, 1 << 12, (1 << 23) + 1)])
def test_sizes_in_turn(sizes, cp, rng):
    """One cached workspace, which grows."""
    cache.clear()
    for n in sizes * 3:
        x, mask = cp.asarray(rng.integers(0, 1000, n)), cp.asarray(rng.random(n) < 0.5)
        result, _ = distscan.compact(x, mask, comm=MPI.COMM_SELF)
        assert bool((bits(result) == selected(cp, x, mask)).all())


@pytest.mark.one_rank
@pytest.mark.alone
def test_streams_and_threads(cp, rng):
    """Calls of threads, each on streams of its own, at once and in turn."""
    n, faults = 300_000, []
    data = [
        (cp.asarray(rng.integers(0, 1000, n)), cp.asarray(rng.random(n) < share))
        for share in (0.1, 0.3, 0.5, 0.9)
    ]
    want = [selected(cp, *each) for each in data]
    cp.cuda.Device().synchronize()
    device = cp.cuda.Device().id

    def work(number):
        try:
            with cp.cuda.Device(device):
                streams = [cp.cuda.Stream(non_blocking=True) for _ in range(2)]
                for i in range(60):
                    each = (number + i) % 4
                    with streams[i % 2] as stream:
                        result, _ = distscan.compact(*data[each], comm=MPI.COMM_SELF)
                        right = (bits(result) == want[each]).all()
                        stream.synchronize()
                        assert bool(right)
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert not faults


@pytest.mark.one_rank
@pytest.mark.parametrize("kind", ["null", "per thread", "external"])
def test_any_kind_of_stream(kind, cp, rng):
    """Calls are behind what is queued on the stream; the next call is on another stream."""
    n, stream_of_library = 1 << 20, cp.cuda.Stream(non_blocking=True)
    protocol = SimpleNamespace(
        stream_of_library=stream_of_library, __cuda_stream__=lambda: (0, stream_of_library.ptr)
    )
    stream = {"null": cp.cuda.Stream.null, "per thread": cp.cuda.Stream.ptds,
              "external": cp.cuda.Stream.from_external(protocol)}[kind]  # fmt: skip
    numbers, mask = cp.asarray(rng.integers(0, 100, n)), cp.asarray(rng.random(n) < 0.4)
    big = distscan.Predicate("big", numpy=lambda x: x > 49, cuda="x > 49")
    want, want_big = selected(cp, numbers, mask), selected(cp, numbers, numbers > 49)
    cp.cuda.Device().synchronize()
    for turn in range(10):
        with stream if turn % 2 == 0 else cp.cuda.Stream(non_blocking=True) as current:
            late = cp.zeros_like(numbers)
            for _ in range(10):
                late += numbers
            late //= 10
            result, _ = distscan.compact(late, mask, comm=MPI.COMM_SELF)
            result_of_select, _ = distscan.select(late, big, comm=MPI.COMM_SELF)
            right = (bits(result) == want).all() & (bits(result_of_select) == want_big).all()
            current.synchronize()
            assert bool(right)


@pytest.mark.one_rank
def test_on_a_gpu_that_is_not_current(cp, rng):
    if cp.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("needs two GPUs")
    here = cp.cuda.Device().id
    with cp.cuda.Device((here + 1) % cp.cuda.runtime.getDeviceCount()) as other:
        x, mask = cp.asarray(rng.integers(0, 100, 10_000)), cp.asarray(rng.random(10_000) < 0.4)
        want, weights = selected(cp, x, mask), x.astype("f")
        other.synchronize()
    cuts = distscan.partition(weights.get(), 7, comm=MPI.COMM_SELF)
    for _ in range(2):
        result, _ = distscan.compact(x, mask, comm=MPI.COMM_SELF)
        assert result.device == other
        np.testing.assert_array_equal(distscan.partition(weights, 7, comm=MPI.COMM_SELF), cuts)
        assert cp.cuda.Device().id == here
        with other:
            assert bool((bits(result) == want).all())


@pytest.mark.one_rank
@pytest.mark.parametrize("use", ["compact", "partition"])
def test_a_graph_cannot_capture(use, cp):
    x, mask = cp.ones(100), cp.ones(100, bool)
    call = {"compact": lambda: distscan.compact(x, mask, comm=MPI.COMM_SELF),
            "partition": lambda: distscan.partition(x, 2)}[use]  # fmt: skip
    call()
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        try:
            with pytest.raises(RuntimeError, match="a CUDA graph cannot capture this"):
                call()
        finally:
            stream.end_capture()
    result = call()
    assert result[0].size == 100 if use == "compact" else result.tolist() == [0, 50, 100]


@pytest.mark.one_rank
def test_faults(cp):
    x = cp.zeros(3, "f")
    with pytest.raises(TypeError, match=r"x is in the memory of GPU .*, mask of the host"):
        distscan.compact(x, np.ones(3, bool), comm=MPI.COMM_SELF)
    with pytest.raises(TypeError, match="has no CUDA form"):
        distscan.select(x, distscan.Predicate("p", np.isnan), comm=MPI.COMM_SELF)
    wrong = distscan.Predicate("p", np.isnan, "isnan(x")
    with pytest.raises(KernelError, match=r"predicate p"):
        distscan.select(x, wrong, comm=MPI.COMM_SELF)
    assert distscan.compact(x, cp.ones(3, bool), comm=MPI.COMM_SELF)[0].size == 3


@pytest.mark.one_rank
def test_select(cp, rng):
    """Every element reaches the predicate once, and nothing but elements: it indexes a table."""
    n = (1 << 21) + 7
    x = rng.integers(0, 8, n).astype("i")
    table = distscan.Predicate(
        "table",
        lambda x: np.array([1, 0, 0, 1, 1, 0, 1, 0], bool)[x],
        "{ const bool keep[8] = {1, 0, 0, 1, 1, 0, 1, 0}; if (x < 0 || x > 7) __trap();"
        " return keep[x]; }",
    )
    for begin in (0, 1, 2, 3):
        result, _ = distscan.select(cp.asarray(x)[begin:], table, comm=MPI.COMM_SELF)
        np.testing.assert_array_equal(result.get(), x[begin:][table.mask(x[begin:])])


# ---- partition on a GPU: at the edges of tiles, at every address, on streams and in threads ------


@pytest.fixture
def tiles(monkeypatch):
    """The module, with few tiles, so that each has several steps."""
    from distscan.cuda import reductions

    monkeypatch.setattr(reductions, "MOST_TILES", 8)
    return reductions


def placed(cp, weights, lead):
    """The weights on the GPU, so many elements behind an aligned address, among wrong ones."""
    around = cp.full(weights.nbytes + 512, 0xFF, cp.uint8)
    begin = 256 + lead * weights.itemsize
    array = around[begin : begin + weights.nbytes].view(weights.dtype)
    array.set(weights)
    return array


@pytest.mark.one_rank
@pytest.mark.parametrize("code", "?bBhHiIlLefd")
def test_edges_of_tiles(code, cp, rng, tiles):
    """One element less, as many, one more: than vectors, steps, tiles."""
    dtype = np.dtype(code)
    step, items = tiles.TileKernels.of(dtype, 0).length(1), 16 // dtype.itemsize
    sizes = {0, 1, 2, items - 1, items, items + 1}
    sizes |= {count * step + more for count in (1, 2, 7, 8, 9, 24) for more in (-1, 0, 1)}
    weights_of_all = (rng.integers(0, 9, max(sizes)) * (rng.random(max(sizes)) < 0.5)).astype(dtype)
    for n in sorted(sizes):
        for lead in sorted({0, 1 % items, items - 1}):
            weights = weights_of_all[:n]
            for parts in (2, 9):
                cuts = distscan.partition(placed(cp, weights, lead), parts)
                np.testing.assert_array_equal(cuts, exact_cuts(weights, parts), f"{n} {lead}")


@pytest.mark.one_rank
@pytest.mark.parametrize("where", ["first", "last", "middle"])
def test_one_weight_among_zeros(where, cp, tiles):
    for n in (1, 100, 4096, 4097, 40_000, 300_001):
        weights = np.zeros(n, "f")
        weights[{"first": 0, "last": n - 1, "middle": n // 2}[where]] = 1e30
        for parts in (2, 3, 40):
            cuts = distscan.partition(placed(cp, weights, 0), parts)
            np.testing.assert_array_equal(cuts, exact_cuts(weights > 0, parts))


@pytest.mark.one_rank
@pytest.mark.parametrize("code", "efd")
def test_wrong_weights_anywhere(code, cp, rng):
    """Also beside the array, where they do not count."""
    n = 20_001
    weights = rng.random(n).astype(code)
    check_rounded(weights, distscan.partition(placed(cp, weights, 1), 7))
    for where in (0, 1, 7, 4095, 4096, 16_384, n - 2, n - 1):
        for wrong in (-1, -np.inf, np.inf, np.nan, -1e-7):
            bad = weights.copy()
            bad[where] = wrong
            with pytest.raises(ValueError, match="a weight is negative, infinite or NaN"):
                distscan.partition(placed(cp, bad, 1), 7)
        zero = weights.copy()
        zero[where] = -0.0
        check_rounded(zero, distscan.partition(placed(cp, zero, 1), 7))


@pytest.mark.one_rank
@pytest.mark.parametrize("parts", [1, 1000, 70_000])
def test_many_cuts(parts, cp, rng):
    """More than blocks; several in an element, many in a tile."""
    weights = rng.integers(0, 100, 100_000).astype("f")
    cuts = distscan.partition(placed(cp, weights, 0), parts)
    np.testing.assert_array_equal(cuts, exact_cuts(weights, parts))


def test_many_tiles(cp, comm, rng):
    """As many as one block scans, and steps enough in each."""
    for n in (4096 * 4096 - 1, 4096 * 4096 + 1, 40_000_000):
        weights = rng.integers(0, 100, n).astype("f")
        cuts = distscan.partition(cp.asarray(weights), 8)
        sums = np.tile(weights.sum(dtype="l"), comm.size).cumsum()
        middles = np.cumsum(weights, dtype="d") - weights / 2
        want = 0
        for rank in range(comm.size):
            before = 0 if rank == 0 else sums[rank - 1]
            want += np.searchsorted(before + middles, np.arange(1, 8) * sums[-1] / 8)
        np.testing.assert_array_equal(cuts[1:-1], want)
        assert cuts[-1] == n * comm.size


def test_on_a_stream(cp, comm, rng):
    """The work is behind what is queued on the current stream."""
    weights = rng.integers(0, 100, 1 << 20).astype("f")
    array = cp.asarray(weights)
    want = distscan.partition(array, 8)
    stream = cp.cuda.Stream(non_blocking=True)
    for _ in range(20):
        with stream:
            late = cp.zeros_like(array)
            for _ in range(20):
                late += array
            late /= 20
            np.testing.assert_array_equal(distscan.partition(late, 8), want)


@pytest.mark.one_rank
def test_sizes_and_parts_in_turn(cp, rng):
    """The memory that calls share has room for any of them, and keeps nothing of the last."""
    for n, parts in ((10, 3), (1 << 22, 9), (100, 2000), (1 << 20, 2), (0, 5), (1 << 22, 70_000)):
        for dtype in "fi":
            weights = rng.integers(0, 100, n).astype(dtype)
            cuts = distscan.partition(cp.asarray(weights), parts)
            np.testing.assert_array_equal(cuts, exact_cuts(weights, parts))
        weights[: n // 2] = 0
        wrong = -1 - cp.asarray(weights)
        if n > 0:
            with pytest.raises(ValueError, match="a weight is negative"):
                distscan.partition(wrong, parts)


@pytest.mark.one_rank
def test_threads(cp, rng):
    """Each with its own stream; they share the kernels."""
    shards = [rng.integers(0, 100, n).astype("f") for n in (10, 1000, 100_000, 1 << 20) * 4]
    wants = [exact_cuts(shard, 5) for shard in shards]

    def call(shard):
        with cp.cuda.Stream(non_blocking=True):
            array = cp.asarray(shard)
            return [distscan.partition(array, 5) for _ in range(20)]

    with ThreadPoolExecutor(8) as pool:
        for lists, want in zip(pool.map(call, shards), wants, strict=True):
            for cuts in lists:
                np.testing.assert_array_equal(cuts, want)


@pytest.mark.one_rank
def test_memory_is_given_back(cp, rng):
    array = cp.asarray(rng.random(1 << 20))
    distscan.partition(array, 8)
    pool, before = cp.get_default_memory_pool(), cp.get_default_memory_pool().used_bytes()
    for _ in range(10):
        distscan.partition(array, 8)
    assert pool.used_bytes() == before


# ---- The file job: the same files as on CPUs, in chunks of any size, resident and not -----------

CASES = [((10007,), None), ((503, 7), 0), ((40, 11, 9), 1), ((3, 4001), 0), ((1,), None)]
FORMS = [{}, {"reverse": True}, {"exclusive": True, "initial": 2, "reverse": True}]


@pytest.fixture
def inside(folder, monkeypatch):
    """The current folder is one that all ranks share."""
    monkeypatch.chdir(folder)


def on_both_backends(comm, **options):
    """The results on GPUs and on CPUs."""
    results = []
    for backend in ("cuda", "cpu"):
        distscan.scan_file("x.npy", "y.npy", comm=comm, backend=backend, force=True, **options)
        results.append(np.load("y.npy"))
        comm.Barrier()
    return results


@pytest.mark.usefixtures("inside")
@pytest.mark.parametrize("way", ["resident", "streaming"])
@pytest.mark.parametrize("form", FORMS, ids=["plain", "reverse", "exclusive"])
@pytest.mark.parametrize(("shape", "axis"), CASES)
@pytest.mark.parametrize(("code", "op"), [("i4", "sum"), ("u1", "max")])
def test_file_jobs_as_on_cpus(code, op, shape, axis, form, way, cp, comm, save, rng, monkeypatch):
    if way == "resident":
        monkeypatch.setattr(plan, "GPU_CHUNK", 1 << 10)
    memory = None if way == "resident" else 1 << 12
    save("x.npy", rng.integers(0, 9, shape).astype(code))
    on_gpus, on_cpus = on_both_backends(comm, op=op, axis=axis, memory=memory, **form)
    assert on_gpus.dtype == on_cpus.dtype
    np.testing.assert_array_equal(on_gpus, on_cpus)


@pytest.mark.usefixtures("inside")
@pytest.mark.parametrize("kind", ["keys", "flags"])
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_segments_of_files(kind, reverse, cp, comm, save, rng):
    n = 10007
    save("x.npy", rng.integers(0, 9, n))
    save("s.npy", np.sort(rng.integers(0, 250, n)) if kind == "keys" else rng.random(n) < 0.02)
    for memory in (None, 1 << 13):
        np.testing.assert_array_equal(
            *on_both_backends(comm, segments="s.npy", reverse=reverse, memory=memory)
        )


@pytest.mark.usefixtures("inside")
def test_a_state_goes_from_gpus_to_cpus(cp, comm, save, folder, rng):
    """They accumulate float32 in other types."""
    x = rng.integers(-9, 9, (600, 5)).astype("f4")
    save("a.npy", x[:350])
    save("b.npy", x[350:])
    for axis, first in ((None, "cuda"), (0, "cuda"), (0, "cpu")):
        (folder / "s.json").unlink(missing_ok=True)
        comm.Barrier()
        for name, backend in (("a", first), ("b", "cpu" if first == "cuda" else "cuda")):
            distscan.scan_file(f"{name}.npy", f"{name}.out.npy", comm=comm, axis=axis, force=True,
                               state="s.json", backend=backend)  # fmt: skip
            comm.Barrier()
        want = np.cumsum(x, axis, "f8")[350 * (5 if axis is None else 1) :]
        np.testing.assert_array_equal(
            np.load("b.out.npy"), want.reshape(-1) if axis is None else want
        )
        comm.Barrier()


@pytest.mark.usefixtures("inside")
def test_the_current_gpu_stays(cp, comm, save, rng):
    before = cp.cuda.runtime.getDevice()
    save("x.npy", rng.integers(0, 9, 100))
    distscan.scan_file("x.npy", "y.npy", comm=comm, backend="cuda")
    assert cp.cuda.runtime.getDevice() == before
