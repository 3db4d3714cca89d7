"""partition on a GPU: at the edges of tiles, at every address, on streams and in threads."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import distscan
from support.partitions import check_rounded, exact_cuts

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


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
def test_edges(code, cp, rng, tiles):
    """One element less, as many, one more: than vectors, steps, tiles."""
    dtype = np.dtype(code)
    step, items = tiles.TileKernels.of(dtype, 0).length(1), 16 // dtype.itemsize
    sizes = {0, 1, 2, items - 1, items, items + 1}
    sizes |= {count * step + more for count in (1, 2, 7, 8, 9, 24) for more in (-1, 0, 1)}
    whole = (rng.integers(0, 9, max(sizes)) * (rng.random(max(sizes)) < 0.5)).astype(dtype)
    for n in sorted(sizes):
        for lead in sorted({0, 1 % items, items - 1}):
            weights = whole[:n]
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
    given = cp.asarray(weights)
    want = distscan.partition(given, 8)
    stream = cp.cuda.Stream(non_blocking=True)
    for _ in range(20):
        with stream:
            late = cp.zeros_like(given)
            for _ in range(20):
                late += given
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
            given = cp.asarray(shard)
            return [distscan.partition(given, 5) for _ in range(20)]

    with ThreadPoolExecutor(8) as pool:
        for found, want in zip(pool.map(call, shards), wants, strict=True):
            for cuts in found:
                np.testing.assert_array_equal(cuts, want)


@pytest.mark.one_rank
def test_a_capture_is_refused(cp):
    given, stream = cp.ones(100), cp.cuda.Stream(non_blocking=True)
    distscan.partition(given, 2)
    with stream:
        stream.begin_capture()
        try:
            with pytest.raises(RuntimeError, match="a CUDA graph cannot capture this"):
                distscan.partition(given, 2)
        finally:
            stream.end_capture()
    assert distscan.partition(given, 2).tolist() == [0, 50, 100]


@pytest.mark.one_rank
def test_memory_is_given_back(cp, rng):
    given = cp.asarray(rng.random(1 << 20))
    distscan.partition(given, 8)
    pool, used = cp.get_default_memory_pool(), cp.get_default_memory_pool().used_bytes()
    for _ in range(10):
        distscan.partition(given, 8)
    assert pool.used_bytes() == used
