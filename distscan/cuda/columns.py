"""The arguments of the kernels that work along an axis other than the last.

The shard is [outer, n, inner]. The kernels see it as a matrix [outer * n, inner]. A scan begins in
each row i that is a multiple of n.
"""

from typing import Any

import cupy
import numpy as np
from numpy.typing import NDArray

from ..core.dtypes import Types
from ..core.field_arrays import FieldArrays
from ..core.form import Form
from ..core.operators import Operator
from .arguments import fields_of, point, set_unit, view
from .columns_policy import ThreadPolicy, columns_policy, pitches, thread_policy
from .configs import sm_count
from .definitions import definitions
from .kernel import Kernel
from .registers import register_types, settable
from .row import Row

_LANES = 32
_ENDLESS = 1 << 62  # stands for n where the matrix is one scan: more than any number of rows


class Tiling:
    """The tiles of a matrix: their shape and number, as ``kernels/columns/matrix.cuh`` has them."""

    def __init__(self, types: Types, n: int, form: Form) -> None:
        self._n, self._form = n, form
        arch = cupy.cuda.Device().compute_capability
        self.policy, strips = columns_policy(types, form.extents.inner, arch, sm_count())
        slices = _LANES // strips.width
        self.height = self.policy.threads // _LANES * slices * self.policy.rows  # rows per tile
        self.width, self.strips = strips.width, strips.number
        self.columns = strips.width * self.policy.items
        self.tiles = max(-(-form.extents.outer * n // self.height), 1)  # per strip
        all_pitches = pitches(types, form.extents.inner, self.policy.items, strips)
        self.pitch = all_pitches[0]
        #: Bytes of a stage. Fields lie in it one behind the other.
        self.stage = sum(-(-self.height * pitch // 16) * 16 + 16 for pitch in all_pitches)
        self.shared = self.stage * self.policy.stages

    def set(self, arguments: Any) -> None:
        """Set the arguments that all kernels over tiles have."""
        matrix, form = arguments.matrix, self._form
        matrix.rows, matrix.inner, matrix.reverse = (
            form.extents.outer * self._n,
            form.extents.inner,
            form.reverse,
        )
        matrix.n = self._n if form.extents.outer > 1 else _ENDLESS
        matrix.width, matrix.strips, matrix.tiles = self.width, self.strips, self.tiles
        arguments.stage_bytes, arguments.pitch = self.stage, self.pitch


def shares(strips: int, tiles: int, sm_count: int) -> tuple[int, int]:
    """Return the number of blocks per strip of ``tiles``, and of strips that are scanned at once.

    The numbers are those of the shortest time, and among these those with the fewest blocks.
    """

    def time(blocks: int) -> int:
        side = sm_count // blocks
        return -(-strips // side) * -(-tiles // blocks)

    blocks = min(range(1, min(sm_count, tiles) + 1), key=lambda k: (time(k), k))
    return blocks, min(sm_count // blocks, strips)


def make_scan(op: Operator, types: Types, n: int, form: Form) -> "Scan | ThreadPerColumn":
    """Make the kernel that scans columns: tile by tile, or if there are many, one per thread."""
    types = register_types(op, types)
    policy = thread_policy(
        types, form.extents.inner, form.extents.outer * form.extents.inner, sm_count()
    )
    return ThreadPerColumn(op, types, n, form, policy) if policy else Scan(op, types, n, form)


class _Scan(Kernel):
    """The common part of the kernels that scan: their arrays and their offset."""

    can_wait = False  # these kernels are never launched ahead of their offset

    def __init__(self, entry: str, given: dict[str, object], types: Types, *size: int):
        super().__init__(entry, given, types.acc, *size, fields=fields_of(types))
        self._first = settable(view(self.arguments, "first", types.acc))

    def prepare(self, x: Any, y: Any, heads: None = None) -> None:
        """Set the input and the output."""
        if type(x) is FieldArrays:
            point(self.arguments, "x", x)
            point(self.arguments, "y", y)
        else:
            self.arguments.x, self.arguments.y = x.data.ptr, y.data.ptr

    def behind(self, offset: NDArray[Any] | Row | None, epoch: int) -> None:
        """Set the offset: a row [inner], one value for all columns, or none."""
        arguments = self.arguments
        arguments.offset, arguments.has_first = 0, False
        if isinstance(offset, Row):
            arguments.offset = offset.pointer
        elif offset is not None:
            arguments.has_first, self._first[0] = True, offset


class Scan(_Scan):
    """The kernel of ``kernels/columns/scan.cuh``."""

    def __init__(self, op: Operator, types: Types, n: int, form: Form) -> None:
        """Compile, and allocate the totals of all tiles and of all groups of tiles."""
        tiling = Tiling(types, n, form)
        policy = tiling.policy
        panels = -(-tiling.strips // policy.panel)
        tiles = tiling.tiles * min(policy.panel, tiling.strips)
        blocks, side = shares(panels, tiles, sm_count())
        stride = tiling.strips * (tiling.tiles + tiling.tiles // policy.group) * policy.columns
        self._totals = cupy.zeros((-(-types.acc.itemsize // 4), stride), np.uint64)
        self._tile_counter = cupy.zeros(panels, np.uint32)
        self.nbytes = int(self._totals.nbytes)
        super().__init__(
            "columns",
            # The kernel is the same in both directions.
            definitions(op, types, Form(exclusive=form.exclusive), **policy._asdict()),
            types,
            policy.threads
            + (policy.reducers + policy.look_ahead_warps + policy.loaders + 1) * _LANES,
            tiling.shared,
        )
        self.blocks = blocks * side
        self._work = self.arguments.work
        tiling.set(self.arguments)
        set_unit(self.arguments, op)
        self._work.published.words, self._work.published.stride = self._totals.data.ptr, stride
        self._work.tile_counter = self._tile_counter.data.ptr
        self._work.blocks, self._work.at_once = blocks, side

    def behind(self, offset: NDArray[Any] | Row | None, epoch: int) -> None:
        """Set the offset, and the epoch of the totals."""
        self._work.epoch = epoch
        super().behind(offset, epoch)


class ThreadPerColumn(_Scan):
    """The kernel of ``kernels/columns/thread_per_column.cuh``."""

    def __init__(
        self, op: Operator, types: Types, n: int, form: Form, policy: ThreadPolicy
    ) -> None:
        """Compile the kernel."""
        super().__init__(
            "columns_per_thread",
            definitions(op, types, Form(exclusive=form.exclusive), **policy._asdict()),
            types,
            policy.threads,
        )
        arguments, vectors = (
            self.arguments,
            form.extents.outer * (form.extents.inner // policy.items),
        )
        arguments.scans, arguments.n, arguments.inner = form.extents.outer, n, form.extents.inner
        arguments.reverse = form.reverse
        set_unit(arguments, op)
        self.blocks = -(-vectors // policy.threads)


class Reduce(Kernel):
    """The kernel of ``kernels/columns/reduce.cuh``: the total of each column of one scan."""

    def __init__(self, op: Operator, types: Types, n: int, form: Form) -> None:
        """Compile, and allocate a row of totals for each run of tiles."""
        types = register_types(op, types)
        types = Types(types.x, types.acc, types.x)  # nothing is written
        tiling = Tiling(types, n, form)
        policy = tiling.policy
        runs, _ = shares(tiling.strips, tiling.tiles, sm_count())
        pitch = tiling.strips * tiling.columns
        # Bytes, because CuPy has no structures.
        self._parts = cupy.empty((runs, pitch, types.acc.itemsize), np.uint8)
        self._arrived = cupy.zeros(tiling.strips, np.uint32)
        self.nbytes = int(self._parts.nbytes)
        super().__init__(
            "columns_reduce",
            definitions(op, types, Form(), **policy._asdict()),
            types.acc,
            policy.threads + policy.loaders * _LANES,
            tiling.shared,
            fields=fields_of(types),
        )
        self.blocks = runs * tiling.strips
        arguments = self.arguments
        tiling.set(arguments)
        set_unit(arguments, op)
        arguments.runs, arguments.parts = runs, self._parts.data.ptr
        arguments.arrived = self._arrived.data.ptr

    def prepare(self, x: Any, total: int, epoch: int, heads: None = None) -> None:
        """Set all arguments. ``total`` is the address of the totals [inner] on the GPU."""
        if type(x) is FieldArrays:
            point(self.arguments, "x", x)
        else:
            self.arguments.x = x.data.ptr
        self.arguments.total = total
