"""Scans along an axis that is not the last: the kernels of ``kernels/columns.cuh``, launched.

The shard is [outer, n, inner], the matrix that the kernels see [outer * n, inner]: row i begins a
scan if n divides i.
"""

from typing import Any

import cupy
import numpy as np
from numpy.typing import NDArray

from ..dtypes import Types
from ..forms import Form
from ..operators import Operator
from .kernel import Kernel, definitions
from .launches import next_launch, processors, running
from .policy import columns_policy
from .row import Row

_LANES = 32
_ENDLESS = 1 << 62  # rows of a matrix that is one scan
_WINDOW = 8192  # bytes of one kernel's block for what it reads of other tiles; kernels/above.cuh


class _Matrix:
    """How a matrix is cut, in words as ``kernels/strip.cuh`` has them."""

    def __init__(self, types: Types, n: int, form: Form) -> None:
        rows = form.outer * n
        arch = cupy.cuda.Device().compute_capability
        self.policy, strips = columns_policy(types, form.inner, arch, rows)
        self.shared = 0
        slices = _LANES // strips.width
        self.height = self.policy.threads // _LANES * slices * self.policy.rows  # rows of a tile
        if self.policy.staged == "true":
            size = max(types.x.itemsize, types.out.itemsize)
            self.shared = self.height * form.inner * size + 16
        self.strips = strips.number
        self.columns = strips.width * self.policy.items
        self.pitch = self.strips * self.columns
        self.tiles = -(-rows // self.height)  # of a strip
        self.words = [rows, n if form.outer > 1 else _ENDLESS, form.inner,
                      strips.width, slices, self.strips, form.reverse]  # fmt: skip

    def groups(self, blocks: int, room: int) -> tuple[int, int]:
        """Tiles of a group, and groups that a tile looks back over, of those under way at once.

        Both are read by every tile, so they should be about as many; ``room`` is there for each.
        """
        under_way = max(-(-blocks // self.strips), 1)
        group = 1
        while 2 * group * group < under_way and 2 * group <= room:
            group *= 2
        return group, max(min(-(-under_way // group) + 2, room), 1)


class Scan:
    """The kernel of ``kernels/columns.cuh``; each call as in ``launches.Scan``."""

    waits = False  # it is not launched ahead of its offset

    def __init__(self, op: Operator, types: Types, n: int, form: Form) -> None:
        """Compile, and allocate what lasts: words for every tile."""
        types = running(op, types)
        matrix = _Matrix(types, n, form)
        self._launch = 0
        number = matrix.tiles * matrix.strips
        self._grid = min(number, matrix.policy.blocks * processors())
        group, window = matrix.groups(self._grid, _WINDOW // types.acc.itemsize // matrix.columns)
        groups = -(-matrix.tiles // group)
        first_total = matrix.tiles * matrix.pitch if group > 1 else 0
        first_prefix = first_total + groups * matrix.pitch
        stride = first_prefix + groups * matrix.pitch
        self._totals = cupy.zeros((-(-types.acc.itemsize // 4), stride), np.uint64)
        self._drawn = cupy.zeros(1, np.uint32)
        size = -(-types.acc.itemsize // 8)
        self._kernel = Kernel(
            "columns",
            # The kernel is the same in both directions.
            definitions(op, types, Form(exclusive=form.exclusive), **matrix.policy._asdict()),
            [1, 1, 7, 10, 1, size, 1],  # x, y, matrix, work, offset, first, has_first
            matrix.policy.threads,
            matrix.shared,
        )
        words = self._kernel.words
        published = [self._totals.data.ptr, stride, matrix.pitch, first_total, first_prefix, group,
                     window]  # fmt: skip
        for at, word in enumerate([*matrix.words, *published, self._drawn.data.ptr, number], 2):
            words[at] = word
        self._start = self._kernel.memory[20 : 20 + size].view(types.acc)[:1]

    def prepare(self, x: Any, y: Any, heads: None = None) -> None:
        """Set all but what comes before the matrix."""
        self._launch = next_launch(self._launch)
        words = self._kernel.words
        words[0], words[1], words[18] = x.data.ptr, y.data.ptr, self._launch

    def launch(self, behind: NDArray[Any] | Row | None) -> None:
        """Launch, behind a row [inner] of offsets, one value for all scans, or nothing."""
        words = self._kernel.words
        words[19] = words[-1] = 0
        if isinstance(behind, Row):
            words[19] = behind.pointer
        elif behind is not None:
            words[-1], self._start[0] = 1, behind
        self._kernel.launch(self._grid)


class Reduce:
    """The kernel of ``kernels/columns_reduce.cuh``: the columns' totals, of one scan."""

    def __init__(self, op: Operator, types: Types, n: int, form: Form) -> None:
        """Compile, and allocate a row of totals for each run of tiles."""
        types = running(op, types)
        alone = Types(types.x, types.acc, types.x)  # nothing is written
        matrix = _Matrix(alone, n, form)
        # Blocks of many strips end at different times: several of them one after the other. Of few
        # strips there is one block for each place, since the last one combines all runs.
        blocks = matrix.policy.blocks * processors() * (4 if matrix.strips > 8 else 1)
        runs = max(min(blocks // matrix.strips, matrix.tiles), 1)
        # In bytes: CuPy has no structures.
        self._parts = cupy.empty((runs, matrix.pitch, types.acc.itemsize), np.uint8)
        self._arrived = cupy.zeros(matrix.strips, np.uint32)
        self._grid = runs * matrix.strips
        self._kernel = Kernel(
            "columns_reduce",
            definitions(op, alone, Form(), **matrix.policy._asdict()),
            [1, 7, 1, 1, 1, 1],  # x, matrix, runs, parts, arrived, total
            matrix.policy.threads,
            matrix.shared,
        )
        words = [*matrix.words, runs, self._parts.data.ptr, self._arrived.data.ptr]
        for at, word in enumerate(words, 1):
            self._kernel.words[at] = word

    def __call__(self, x: Any, total: int, heads: None = None) -> int:
        """Launch; the totals go to ``total`` [inner] on the GPU."""
        words = self._kernel.words
        words[0], words[11] = x.data.ptr, total
        self._kernel.launch(self._grid)
        return 0
