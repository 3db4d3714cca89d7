"""Scans along an axis that is not the last: ``kernels/columns/scan.cuh`` and its like, launched.

The shard is [outer, n, inner], the matrix that the kernels see [outer * n, inner]: row i begins a
scan if n divides i.
"""

from typing import Any

import cupy
import numpy as np
from numpy.typing import NDArray

from ..core.dtypes import Types
from ..core.forms import Form
from ..core.operators import Operator
from .columns_policy import ThreadPolicy, columns_policy, pitch_of, thread_policy
from .kernel import Kernel, definitions
from .launches import register_types, sm_count
from .row import Row

_LANES = 32
_ENDLESS = 1 << 62  # rows of a matrix that is one scan


class _Matrix:
    """How a matrix is cut, in words as ``kernels/columns/matrix.cuh`` has them."""

    def __init__(self, types: Types, n: int, form: Form) -> None:
        rows = form.outer * n
        arch = cupy.cuda.Device().compute_capability
        self.policy, strips = columns_policy(types, form.inner, arch, sm_count())
        slices = _LANES // strips.width
        self.height = self.policy.threads // _LANES * slices * self.policy.rows  # rows of a tile
        self.strips = strips.number
        self.columns = strips.width * self.policy.items
        self.tiles = max(-(-rows // self.height), 1)  # of a strip
        self.pitch = pitch_of(types, form.inner, self.policy.items, strips)
        self.stage = -(-self.height * self.pitch // 16) * 16 + 16  # bytes
        self.shared = self.stage * self.policy.stages
        self.words = [rows, n if form.outer > 1 else _ENDLESS, form.inner,
                      strips.width, self.strips, self.tiles, form.reverse]  # fmt: skip


def shares(strips: int, tiles: int, sm_count: int) -> tuple[int, int]:
    """How many blocks share a strip of ``tiles``, and how many strips are scanned at a time.

    That which leaves the fewest blocks idle for the shortest time; of equals, the fewest blocks.
    """

    def time(blocks: int) -> int:
        side = sm_count // blocks
        return -(-strips // side) * -(-tiles // blocks)

    blocks = min(range(1, min(sm_count, tiles) + 1), key=lambda k: (time(k), k))
    return blocks, min(sm_count // blocks, strips)


def make_scan(op: Operator, types: Types, n: int, form: Form) -> "Scan | ThreadPerColumn":
    """Make the kernel that scans columns: together, or where there are enough, each for itself."""
    types = register_types(op, types)
    policy = thread_policy(types, form.inner, form.outer * form.inner, sm_count())
    return ThreadPerColumn(op, types, n, form, policy) if policy else Scan(op, types, n, form)


class _Launched:
    """What the kernels that scan share; each call as in ``launches.Scan``."""

    waits = False  # it is not launched ahead of its offset

    def __init__(self, kernel: Kernel, types: Types, grid: int) -> None:
        """``kernel`` takes x and y first, and last offset, first, has_first."""
        self._kernel, self._grid = kernel, grid
        self._at = len(kernel.memory) - 2 - -(-types.acc.itemsize // 8)  # of offset
        self._start = kernel.memory[self._at + 1 : -1].view(types.acc)[:1]

    def prepare(self, x: Any, y: Any, heads: None = None) -> None:
        """Set all but what comes before the matrix."""
        self._kernel.words[0], self._kernel.words[1] = x.data.ptr, y.data.ptr

    @property
    def nbytes(self) -> int:
        """How much memory it has beside its arguments."""
        return 0

    def launch(self, epoch: int, behind: NDArray[Any] | Row | None) -> None:
        """Launch, behind a row [inner] of offsets, one value for all scans, or nothing."""
        words = self._kernel.words
        words[self._at] = words[-1] = 0
        if isinstance(behind, Row):
            words[self._at] = behind.pointer
        elif behind is not None:
            words[-1], self._start[0] = 1, behind
        self._kernel.launch(self._grid)


class Scan(_Launched):
    """The kernel of ``kernels/columns/scan.cuh``."""

    def __init__(self, op: Operator, types: Types, n: int, form: Form) -> None:
        """Compile, and allocate what lasts: words for every tile and every group of them."""
        matrix = _Matrix(types, n, form)
        policy = matrix.policy
        panels = -(-matrix.strips // policy.panel)
        tiles = matrix.tiles * min(policy.panel, matrix.strips)
        blocks, side = shares(panels, tiles, sm_count())
        stride = matrix.strips * (matrix.tiles + matrix.tiles // policy.group) * policy.columns
        self._totals = cupy.zeros((-(-types.acc.itemsize // 4), stride), np.uint64)
        self._tile_counter = cupy.zeros(panels, np.uint32)
        kernel = Kernel(
            "columns",
            # The kernel is the same in both directions.
            definitions(op, types, Form(exclusive=form.exclusive), **policy._asdict()),
            # x, y, matrix, work, stage_bytes, pitch, offset, first, has_first
            [1, 1, 7, 6, 1, 1, 1, -(-types.acc.itemsize // 8), 1],
            policy.threads
            + (policy.reducers + policy.look_ahead_warps + policy.loaders + 1) * _LANES,
            matrix.shared,
        )
        work = [self._totals.data.ptr, stride, self._tile_counter.data.ptr, blocks, side]
        for at, word in enumerate([*matrix.words, *work], 2):
            kernel.words[at] = word
        kernel.words[15], kernel.words[16] = matrix.stage, matrix.pitch
        super().__init__(kernel, types, blocks * side)

    @property
    def nbytes(self) -> int:
        """How much memory it has beside its arguments."""
        return int(self._totals.nbytes)

    def launch(self, epoch: int, behind: NDArray[Any] | Row | None) -> None:
        """Launch, behind a row [inner] of offsets, one value for all scans, or nothing."""
        self._kernel.words[14] = epoch
        super().launch(epoch, behind)


class ThreadPerColumn(_Launched):
    """The kernel of ``kernels/columns/thread_per_column.cuh``."""

    def __init__(
        self, op: Operator, types: Types, n: int, form: Form, policy: ThreadPolicy
    ) -> None:
        """Compile."""
        kernel = Kernel(
            "columns_per_thread",
            definitions(op, types, Form(exclusive=form.exclusive), **policy._asdict()),
            # x, y, scans, n, inner, reverse, offset, first, has_first
            [1, 1, 1, 1, 1, 1, 1, -(-types.acc.itemsize // 8), 1],
            policy.threads,
        )
        for at, word in enumerate([form.outer, n, form.inner, form.reverse], 2):
            kernel.words[at] = word
        vectors = form.outer * (form.inner // policy.items)
        super().__init__(kernel, types, -(-vectors // policy.threads))


class Reduce:
    """The kernel of ``kernels/columns/reduce.cuh``: the columns' totals, of one scan."""

    def __init__(self, op: Operator, types: Types, n: int, form: Form) -> None:
        """Compile, and allocate a row of totals for each run of tiles."""
        types = register_types(op, types)
        alone = Types(types.x, types.acc, types.x)  # nothing is written
        matrix = _Matrix(alone, n, form)
        runs, _ = shares(matrix.strips, matrix.tiles, sm_count())
        pitch = matrix.strips * matrix.columns
        # In bytes: CuPy has no structures.
        self._parts = cupy.empty((runs, pitch, types.acc.itemsize), np.uint8)
        self._arrived = cupy.zeros(matrix.strips, np.uint32)
        self._grid = runs * matrix.strips
        self._kernel = Kernel(
            "columns_reduce",
            definitions(op, alone, Form(), **matrix.policy._asdict()),
            [1, 7, 1, 1, 1, 1, 1, 1],  # x, matrix, stage_bytes, pitch, runs, parts, arrived, total
            matrix.policy.threads + matrix.policy.loaders * _LANES,
            matrix.shared,
        )
        words = [*matrix.words, matrix.stage, matrix.pitch, runs, self._parts.data.ptr,
                 self._arrived.data.ptr]  # fmt: skip
        for at, word in enumerate(words, 1):
            self._kernel.words[at] = word

    @property
    def nbytes(self) -> int:
        """How much memory it has beside its arguments."""
        return int(self._parts.nbytes)

    def __call__(self, x: Any, total: int, epoch: int, heads: None = None) -> None:
        """Launch; the totals go to ``total`` [inner] on the GPU."""
        words = self._kernel.words
        words[0], words[13] = x.data.ptr, total
        self._kernel.launch(self._grid)
