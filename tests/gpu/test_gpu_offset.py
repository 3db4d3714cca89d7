"""A scan launched ahead of its offset, which comes in time, too late, or never. GPU only."""

import time

import numpy as np
import pytest

from distscan.core import operators
from distscan.core.errors import KernelError
from support.data import exact
from support.steps import of_size
from support.tiles import geometry, typed

launches = pytest.importorskip("distscan.cuda.launches", reason="no CuPy", exc_type=ImportError)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.alone,
    pytest.mark.one_rank,
    pytest.mark.timeout(120),
]

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
        self.mine = self.x[turn % 4 :][: self.n]
        self.mine.set(self.data)
        self.target = self.mine if turn % 3 == 0 else self.out[turn % 2 :][: self.n]
        self.out.view(np.uint8)[...] = 0xA5
        self.before = self.target.copy()
        some = turn % 4 > 0
        self.offset = np.array(exact(self.rng, "sum", self.types.x.char, 1)[0]) if some else None
        self.call = self.steps.begin(self.mine, self.target, overlap=True)

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


@pytest.mark.parametrize("size", range(3))
def test_in_time(size, shard):
    it = shard(size)
    for turn in range(24):
        it.begin(turn)
        assert it.call.deferred
        it.finish()
        assert it.steps.too_late == 0


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


def test_never(shard):
    """Who gives up leaves a GPU that works and a shard as it was."""
    it = shard(1)
    for turn in range(5):
        it.begin(turn)
    np.testing.assert_array_equal(it.target.get(), it.before.get())
    it.finish()


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
