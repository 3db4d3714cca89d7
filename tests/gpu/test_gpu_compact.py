"""Compactions at the edges of tiles, addresses, streams and threads. GPU only."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest
from mpi4py import MPI

import distscan
from distscan.core.errors import KernelError
from distscan.engine import cache
from support.masks import MASKS, mask_of, noise
from support.placed import Placed

pytestmark = [pytest.mark.gpu, pytest.mark.one_rank, pytest.mark.timeout(300)]

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


def wanted(cp, x, mask):
    """The kept elements, by another way than CuPy's x[mask]."""
    index = cp.asarray(np.flatnonzero(mask.get()))
    return x.view(np.uint8).reshape(len(x), x.nbytes // len(x))[index].reshape(-1)


@pytest.mark.parametrize("size", CODES)
def test_edges(size, cp, compaction, rng):
    """Around tiles, blocks and stages; the result at any address, and nothing beside it."""
    policy, blocks = (
        policy_of(cp, size, 1 << 40),
        cp.cuda.Device().attributes["MultiProcessorCount"],
    )
    tiles = {1, 2, policy.stages, blocks, blocks + 1, policy.stages * blocks + 1}
    small = policy_of(cp, size, 1).tile
    sizes = {
        0,
        1,
        2,
        31,
        32,
        33,
        255,
        256,
        257,
        *(small * k + e for k in (1, 2) for e in (-1, 0, 1)),
    }
    sizes |= {policy.tile * count + extra for count in tiles for extra in (-1, 0, 1)}
    sizes = sorted(sizes - {0})
    whole = cp.asarray(noise((sizes[-1] + 3,), CODES[size], rng))
    unit = compaction._UNITS[size]
    compactor = compaction.Compactor()
    for i, n in enumerate(sizes):
        begin, mask_begin = i % 3, i % 5
        x = whole[begin : begin + n]
        flags = mask_of(MASKS[i % len(MASKS)], n, rng)
        mask = cp.asarray(np.concatenate([np.zeros(mask_begin, bool), flags]))[mask_begin:]
        target = Placed(cp, n, CODES[size], size * (i % 16))
        kept = compaction.Kept("Masked", unit, size)
        count = compactor._queue(kept, x, mask, target.array)()
        assert count == flags.sum(), n
        assert bool((bits(target.array)[: count * size] == wanted(cp, x, mask)).all()), n
        assert bool((bits(target.array)[count * size :] == 0xA5).all() & target.untouched()), n


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("size", CODES)
def test_masks(size, kind, cp, rng):
    n = (1 << 20) + 3
    x = cp.asarray(noise((n + 1,), CODES[size], rng))[1:]
    mask = cp.asarray(mask_of(kind, n + 3, rng))[3:]
    kept, start = distscan.compact(x, mask, comm=MPI.COMM_SELF)
    assert start == 0
    assert kept.dtype == x.dtype
    assert kept.shape == (int(mask.sum()),)
    assert bool((bits(kept) == wanted(cp, x, mask)).all())


def test_in_place(cp, compaction, rng):
    """The result over the elements that are read: what the kernel promises."""
    for n in (100, 6144 * 132 * 9 + 5):
        x = cp.asarray(noise((n,), "i", rng))
        mask = cp.asarray(mask_of("half", n, rng))
        want = wanted(cp, x, mask)
        kept = compaction.Kept("Masked", "unsigned int", 4)
        count = compaction.Compactor()._queue(kept, x, mask, x)()
        assert bool((bits(x)[: 4 * count] == want).all())


def test_any_byte_but_0_is_true(cp, rng):
    flags = rng.choice(np.array([0, 1, 2, 128, 255], np.uint8), 10_000)
    x = cp.arange(10_000)
    kept, _ = distscan.compact(x, cp.asarray(flags).view(bool), comm=MPI.COMM_SELF)
    assert kept.tolist() == np.flatnonzero(flags).tolist()


@pytest.mark.parametrize("row", [(3,), (0,), (5, 2), (64,), (1000,)])
@pytest.mark.parametrize("code", "bhfdD")
def test_rows(code, row, cp, rng):
    for n, begin in ((1, 0), (1000, 1), (50_000 // max(row[0] // 16, 1), 0)):
        x = cp.asarray(noise((n + begin, *row), code, rng))[begin:]
        mask = cp.asarray(mask_of("half", n, rng))
        kept, _ = distscan.compact(x, mask, comm=MPI.COMM_SELF)
        assert kept.shape == (int(mask.sum()), *row)
        assert bool((bits(kept).reshape(-1) == wanted(cp, x, mask)).all())


def test_rows_at_an_odd_address(cp, rng):
    """8 bytes a row, at 4 bytes behind a boundary of 8."""
    x = cp.asarray(noise((2 * 1000 + 1,), "f", rng))[1:].reshape(1000, 2)
    mask = cp.asarray(mask_of("half", 1000, rng))
    kept, _ = distscan.compact(x, mask, comm=MPI.COMM_SELF)
    assert bool((bits(kept).reshape(-1) == wanted(cp, x.copy(), mask)).all())


def test_memory(cp, rng):
    """At least a quarter of a result's buffer is in use."""
    n, pool = 1 << 22, cp.get_default_memory_pool()
    x, some = cp.zeros(n, "f"), cp.arange(n)
    distscan.compact(x, some < 1, comm=MPI.COMM_SELF)
    for count in (0, 1, n // 4 - 1, n // 4, n // 2, n):
        mask = some < count
        before = pool.used_bytes()
        kept, _ = distscan.compact(x, mask, comm=MPI.COMM_SELF)
        assert len(kept) == count
        assert pool.used_bytes() - before <= 4 * kept.nbytes + 1024
        del kept


@pytest.mark.alone
def test_more_elements_than_32_bits_count(cp):
    n = (1 << 32) + 77
    if cp.cuda.runtime.memGetInfo()[0] < 5 * n:
        pytest.skip("needs 20 GiB")
    x = cp.zeros(n, np.int8)
    x[-5:] = cp.arange(1, 6)
    mask = cp.ones(n, bool)
    mask[:3] = False
    kept, _ = distscan.compact(x, mask, comm=MPI.COMM_SELF)
    assert len(kept) == n - 3
    assert kept[-6:].tolist() == [0, 1, 2, 3, 4, 5]
    assert int(kept.sum(dtype=np.int64)) == 15


@pytest.mark.parametrize("sizes", [(1 << 12, 1 << 22, 1 << 12, (1 << 23) + 1)])
def test_sizes_in_turn(sizes, cp, rng):
    """One cached workspace, which grows."""
    cache.clear()
    for n in sizes * 3:
        x, mask = cp.asarray(rng.integers(0, 1000, n)), cp.asarray(rng.random(n) < 0.5)
        kept, _ = distscan.compact(x, mask, comm=MPI.COMM_SELF)
        assert bool((bits(kept) == wanted(cp, x, mask)).all())


@pytest.mark.alone
def test_streams_and_threads(cp, rng):
    """Calls of threads, each on streams of its own, at once and in turn."""
    n, faults = 300_000, []
    data = [
        (cp.asarray(rng.integers(0, 1000, n)), cp.asarray(rng.random(n) < share))
        for share in (0.1, 0.3, 0.5, 0.9)
    ]
    want = [wanted(cp, *each) for each in data]
    cp.cuda.Device().synchronize()
    device = cp.cuda.Device().id

    def work(number):
        try:
            with cp.cuda.Device(device):
                streams = [cp.cuda.Stream(non_blocking=True) for _ in range(2)]
                for i in range(60):
                    each = (number + i) % 4
                    with streams[i % 2] as stream:
                        kept, _ = distscan.compact(*data[each], comm=MPI.COMM_SELF)
                        right = (bits(kept) == want[each]).all()
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


@pytest.mark.parametrize("kind", ["null", "per thread", "external"])
def test_any_kind_of_stream(kind, cp, rng):
    """Calls are behind what is queued on the stream; the next call is on another stream."""
    n, own = 1 << 20, cp.cuda.Stream(non_blocking=True)
    protocol = SimpleNamespace(own=own, __cuda_stream__=lambda: (0, own.ptr))
    stream = {"null": cp.cuda.Stream.null, "per thread": cp.cuda.Stream.ptds,
              "external": cp.cuda.Stream.from_external(protocol)}[kind]  # fmt: skip
    given, mask = cp.asarray(rng.integers(0, 100, n)), cp.asarray(rng.random(n) < 0.4)
    big = distscan.Predicate("big", numpy=lambda x: x > 49, cuda="x > 49")
    want, want_big = wanted(cp, given, mask), wanted(cp, given, given > 49)
    cp.cuda.Device().synchronize()
    for turn in range(10):
        with stream if turn % 2 == 0 else cp.cuda.Stream(non_blocking=True) as current:
            late = cp.zeros_like(given)
            for _ in range(10):
                late += given
            late //= 10
            kept, _ = distscan.compact(late, mask, comm=MPI.COMM_SELF)
            chosen, _ = distscan.select(late, big, comm=MPI.COMM_SELF)
            right = (bits(kept) == want).all() & (bits(chosen) == want_big).all()
            current.synchronize()
            assert bool(right)


def test_on_a_gpu_that_is_not_current(cp, rng):
    if cp.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("needs two GPUs")
    here = cp.cuda.Device().id
    with cp.cuda.Device((here + 1) % cp.cuda.runtime.getDeviceCount()) as other:
        x, mask = cp.asarray(rng.integers(0, 100, 10_000)), cp.asarray(rng.random(10_000) < 0.4)
        want, weights = wanted(cp, x, mask), x.astype("f")
        other.synchronize()
    cuts = distscan.partition(weights.get(), 7, comm=MPI.COMM_SELF)
    for _ in range(2):
        kept, _ = distscan.compact(x, mask, comm=MPI.COMM_SELF)
        assert kept.device == other
        np.testing.assert_array_equal(distscan.partition(weights, 7, comm=MPI.COMM_SELF), cuts)
        assert cp.cuda.Device().id == here
        with other:
            assert bool((bits(kept) == want).all())


def test_a_graph_cannot_capture(cp):
    x, mask = cp.arange(100), cp.ones(100, bool)
    distscan.compact(x, mask, comm=MPI.COMM_SELF)
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        try:
            with pytest.raises(RuntimeError, match="a CUDA graph cannot capture this"):
                distscan.compact(x, mask, comm=MPI.COMM_SELF)
        finally:
            stream.end_capture()


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
        kept, _ = distscan.select(cp.asarray(x)[begin:], table, comm=MPI.COMM_SELF)
        np.testing.assert_array_equal(kept.get(), x[begin:][table.mask(x[begin:])])
