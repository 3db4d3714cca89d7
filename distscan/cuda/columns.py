"""The arguments of the kernels that work along an axis other than the last.

The shard is [outer, n, inner]. The kernels see it as a matrix [outer * n, inner]. A scan begins in
each row i that is a multiple of n.
"""

import ctypes
import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import cupy
import numpy as np
from numpy.typing import NDArray

from ..core.arrays import FieldArrays
from ..core.dtypes import Types
from ..core.form import Form
from ..core.operators import Operator
from ..fsum.words import ONE_WORD, TWO_WORDS
from .arguments import fields_of, point, set_unit, view
from .definitions import definitions, register_types, settable
from .kernel import Kernel
from .policy import SHARED, VECTOR, sm_count, widest
from .workspace import Row

# ---- tuning numbers --------------------------------------------------------------------------
#
# The tables give microseconds on one NVIDIA H200 (sm_90), for arrays [n, inner] scanned along n.
# The wider of input and output is 1 GiB of random numbers. ``python launch/tools/tune.py --axes``
# repeats them.

_LANES = 32  # lanes of a warp
_SECTOR = 32  # bytes: the memory writes a whole sector without reading it first
_STATIC = 47 << 10  # bytes of shared memory that a kernel has without an attribute
_MOST_TOTALS = 512  # bytes of a strip's row of totals
_ROOM = 16 + 127  # bytes: a tile begins at a multiple of 128, and has room for a vector more


class ColumnsPolicy(NamedTuple):
    """How ``kernels/columns/scan.cuh`` and ``reduce.cuh`` are cut: see ``strip.cuh`` there."""

    threads: int  # that scan
    rows: int  # of a slice; odd, so that few lanes read the same bank of shared memory
    items: int  # elements of a vector
    columns: int  # a power of 2, at least the columns of a strip
    stages: int  # tiles in shared memory
    reducers: int  # warps; one more warp publishes their totals
    look_ahead_warps: int  # warps
    loaders: int  # warps
    panel: int  # strips whose tiles one counter gives out, row by row: kernels' tile_order.cuh
    group: int  # tiles that also publish one total of them all
    reads: int  # totals that a lane of a look-ahead warp reads at once
    staged: str  # "true" if results go to memory through the stages


class Strips(NamedTuple):
    """How a row is cut into strips."""

    width: int  # vectors of a strip's row, one per lane
    number: int  # strips
    split: bool = False  # whether neighbouring strips share sectors
    even: bool = True  # whether the last strip is about as wide as the others


class _Sharing(NamedTuple):
    """How tiles are given out, and totals passed on: these fields of ``ColumnsPolicy``."""

    look_ahead_warps: int
    loaders: int
    panel: int
    group: int
    reads: int


def columns_policy(
    types: Types, inner: int, arch: str, sm_count: int
) -> tuple[ColumnsPolicy, Strips]:
    """Return the policy for rows of ``inner`` elements, and the strips of a row.

    H200, sm_90, 1 GiB float32. Slices of 9 vectors take 4 to 10 % more time than slices of 11.
    [2^24, 16] takes 593 us with results stored at once, 624 us with results stored through the
    stages. Rows that vectors do not divide, microseconds by the rows of a slice::

        shape            43 rows  33 rows
        [2^22, 63]           737      802
        [2^18, 1001]         791      822
        [2^14, 16383]       1080      952

    H200, sm_90, tiles that the engine fetches, arrays of 512 MiB, microseconds by the rows of a
    slice. The column "copy" is a copy of the same bytes::

        shape                7 rows  11 rows  13 rows  15 rows  17 rows  copy
        float32 [2^19, 256]             287      281      281      277   257
        float64 [2^18, 256]             291      283      281      280   269
        float32 [2^15, 2^12]            292      290      291      290   260

    linear_recurrence of float32, vectors of 2 items or of 4::

        shape         5 rows, 4  7 rows, 4  11 rows, 2  13 rows, 2  15 rows, 2  copy
        [2^19, 256]                    459                     491               397
        [2^15, 2^12]        478        430         459                     435   390
        [2^13, 2^14]        495        440         477                     459   395

    The same with 7 rows, by the number of strips in a panel::

        shape           1    4   16
        [2^19, 256]   478  459  463
        [2^15, 2^12]  430  461  453
        [2^13, 2^14]  476  440  470
    """
    fields = types.x.names or ()
    size, acc = widest(types.x, types.out), types.acc.itemsize
    pairs = bool(fields) and acc == 8  # of 4 bytes: each field has whole vectors
    items = math.gcd(inner, max(VECTOR // max(size, 4 if pairs else acc, 4), 1))
    strips = _cut(types, inner, items, sm_count)
    columns = 1 << (strips.width * items - 1).bit_length()
    boxes = has_boxes(types, inner, items, strips, arch)
    if boxes and size >= 4 and strips.number > 2:
        sharing = _share_boxes(types, strips, sm_count)
    else:
        sharing = _share(types, columns, strips, arch, sm_count)
    if acc > 32:  # registers, and shared memory
        sharing = sharing._replace(panel=1, reads=1)
    cursor = acc * (columns + _LANES * -(-columns // _LANES)) + 8  # bytes, per strip of a panel
    while sharing.panel > 1 and sharing.panel * cursor > 8 << 10:
        sharing = sharing._replace(panel=sharing.panel // 2)

    threads = 256 if acc <= 16 else 128 if acc <= 64 else 64  # structures use more registers
    warps = threads // _LANES
    most = (SHARED.get(arch, 99) - 1) << 10  # bytes
    # Bytes per stage, beside the elements: barriers, totals, and the prefixes of the columns.
    beside = 192 + acc * (threads * items + (warps + 2) * columns)

    alike = types.x.itemsize == types.out.itemsize and not fields
    staged = strips.number == 1 and inner * size < 64 and alike

    def stages(rows: int) -> int:
        part = _LANES // strips.width * rows * sum(pitches(types, inner, items, strips))
        slot = 0 if staged else beside  # one more than there are stages
        static, dynamic = (room - sharing.panel * cursor - slot for room in (_STATIC, most))
        stage = warps * part + _ROOM * max(len(fields), 1) + beside
        return int(min(static // beside, dynamic // stage, 12))

    rows, least = _most_rows(types, items, strips, sm_count, boxes), 3 if boxes and acc <= 16 else 4
    if pairs and size >= 4 and not _has_gradients(types):
        rows = 7
    elif sharing.loaders > 1:
        rows = min(rows, 11)
    while stages(rows) < least and rows > 3:
        rows -= 2
    if stages(rows) + 1 < sharing.look_ahead_warps + sharing.loaders:  # which end in stages apart
        rows, sharing = 1, sharing._replace(look_ahead_warps=1, loaders=1)
    return ColumnsPolicy(
        threads, rows, items, columns, stages(rows), min(warps, 4), staged=str(staged).lower(),
        **sharing._asdict(),
    ), strips  # fmt: skip


def _most_rows(types: Types, items: int, strips: Strips, sm_count: int, boxes: bool) -> int:
    """Return the rows of a slice, as far as registers have room for them."""
    size, acc = widest(types.x, types.out), types.acc.itemsize
    read = items * (types.x.itemsize if types.x.names else size)  # bytes of a lane in each row
    rows = {1: 33, 2: 33, 4: 33, 8: 21, 16: 15 if boxes else 11}.get(read, 5)
    if acc > 32:
        rows = 1
    if types.acc == TWO_WORDS:  # registers
        rows = min(rows, 13)
    if items * size == 4 and acc <= 8 and strips.split and strips.number < sm_count // 2:
        rows = 43
    if widest(types.x) < 4 and items > 1:
        # Unpacked, each row uses registers of its own.
        rows = min(rows, 11 if types.acc == ONE_WORD else 17)
    return min(rows, 5) if _has_gradients(types) else rows  # rows of h need registers, too


def _has_gradients(types: Types) -> bool:
    """Return whether a result is gradients: see ``kernels/columns/store.cuh``."""
    return len(types.out.names or ()) > len(types.acc.names or " ")


def _alone(strips: int, sm_count: int) -> bool:
    """Return whether at most three blocks share a strip: they wait little, so they fetch more."""
    return 3 * strips > sm_count


def _cut(types: Types, inner: int, items: int, sm_count: int) -> Strips:
    """Cut rows into strips, so that most lanes have work.

    H200, sm_90, 1 GiB, microseconds by the width of a strip in bytes::

        type     shape            80  112  128  144  256
        float32  [2^22, 64]                620       777
        float32  [2^20, 256]               644       704
        float32  [2.6e6, 100]    740  761       944
        float64  [2^13, 2^14]              676       578
        float64  [2^19, 2^8]               656
    """
    size = widest(types.x)
    vector, row = items * size, inner * size  # bytes
    if size >= 4:
        strip = 128
        long = size == 8 and row >= 2048
        if long and _alone(row // 256, sm_count) == _alone(row // 128, sm_count):
            strip = 256
    else:
        strip = 128 if row >= 384 else 64 if row >= 128 else 32 if row >= 64 else 64
    # Slots have rows of totals, so strips of large structures are narrow.
    most = _MOST_TOTALS // types.acc.itemsize
    narrow = max((1 << most.bit_length() - 1) // items, 1)
    vectors, most = inner // items, max(min(strip // vector, narrow, _LANES), 1)
    if vectors <= most:
        return Strips(vectors, 1)

    def usage(width: int) -> tuple[float, int]:
        """Return the product of the fractions in use, of lanes, strips and, at worst, of bytes."""
        lanes, room = _LANES // width * width, -(-vectors // width) * width
        return lanes * vectors / room / (1 + _SECTOR / (width * vector)), width

    width = max(range(max(most // 2, 1), most + 1), key=usage)
    split = row % _SECTOR > 0 or width * vector % _SECTOR > 0
    number = -(-vectors // width)
    return Strips(width, number, split, even=vectors > 0.95 * number * width)


def _share_boxes(types: Types, strips: Strips, sm_count: int) -> _Sharing:
    """Choose how tiles that the engine fetches are given out, and how totals are passed on."""
    acc, panel = types.acc.itemsize, 16
    if types.x.names:
        panel = 1 if _alone(strips.number, sm_count) and strips.number <= sm_count else 4
    return _Sharing(2, 1, panel, 16, 8 if acc <= 4 else 4 if acc <= 8 else 2)


def _share(types: Types, columns: int, strips: Strips, arch: str, sm_count: int) -> _Sharing:
    """Choose how tiles are given out, and how totals are passed on.

    The times are those of tiles that lanes fetch. H200, sm_90, 1 GiB, microseconds by the number of
    strips in a panel::

        type     shape              1     2     4    16
        float32  [2^18, 1001]    1269         972   905  strips share sectors
        float32  [2.6e6, 100]    1125         798   801  strips share sectors
        float32  [2^18, 2^10]     682         670   635
        float32  [2^17, 2^11]     633               600  600 is with 2 loaders
        float32  [2^14, 2^14]     650         625   694
        float32  [2^21, 2^7]      644         656   658
        float64  [2^21, 63]       719   713   805
        float64  [2^18, 500]      774               690
        float64  [2^21, 50]       601  1001              5 strips: panels of 2, 2 and 1
        float64  [5 * 2^18, 100]  947               697  the last strip is narrower

    The last two rows show that panels of different sizes do not keep step, and that strips of
    different widths do so only in one panel.

    H200, sm_90, 1 GiB float32, microseconds by the number of tiles in a group::

        shape         8   16   32
        [2^24, 16]  605  593  625
        [2^23, 32]  598  627

    By the number of totals that a lane reads at once: [2^23, 32] takes 618 with 4; [2^18, 1001]
    takes 851 with 4, 791 with 8.
    """
    acc, each = types.acc.itemsize, strips.number / sm_count  # strips per block
    reads = 4 if acc <= 8 else 2
    most = 8 if acc <= 4 and columns >= _LANES else reads
    together = 16 if strips.number > 8 or not strips.even else 1
    if strips.split:
        sharing = _Sharing(2, 1, 16 if acc <= 4 else together, 16, most)
    elif each > 7 / 8:
        sharing = _Sharing(1, 2, 4 if each > 7 / 2 else 2 if each > 7 / 4 else 1, 64, reads)
    elif _alone(strips.number, sm_count):
        sharing = _Sharing(1, 2, 16, 16, reads)
    elif strips.number <= 2 and columns >= _LANES:  # a lane reads many totals
        sharing = _Sharing(2, 1, 1, 8, most)
    else:
        sharing = _Sharing(2, 1, together, 16, reads)
    if columns < _LANES and (arch != "90" or widest(types.x) < 4):  # parts of a group
        sharing = sharing._replace(reads=sharing.reads // 2)
    return sharing


def pitches(types: Types, inner: int, items: int, strips: Strips) -> list[int]:
    """Return the pitch of a tile's rows in shared memory, in bytes: see ``columns/strip.cuh``.

    There is one pitch for each field; a number has one field. Modulo 16, the pitch is that of rows
    in global memory. Where rows and strips are not aligned, a row has room for the vector that its
    end cuts.
    """
    sizes = [(strips.width * items * size, inner * size) for size in _sizes(types)]
    return [
        size
        if strips.number == 1 or size % VECTOR == row % VECTOR == 0
        else size + 16 + (row - size) % 16
        for size, row in sizes
    ]


def has_boxes(types: Types, inner: int, items: int, strips: Strips, arch: str) -> bool:
    """Return whether the copy engine, of sm_90 and later, fetches boxes of rows of such strips."""
    columns = math.gcd(inner, strips.width * items)
    aligned = all(columns * size % VECTOR == 0 for size in _sizes(types))
    return aligned and strips.number > 1 and int(arch) >= 90


def _sizes(types: Types) -> list[int]:
    """Return the bytes of an element in each array that is read."""
    names = types.x.names
    return [types.x[name].itemsize for name in names] if names else [types.x.itemsize]


class ThreadPolicy(NamedTuple):
    """How ``kernels/columns/thread_per_column.cuh`` is cut."""

    threads: int
    rows: int  # that a thread loads at once
    items: int  # elements of a vector
    blocks: int  # per multiprocessor


def thread_policy(types: Types, inner: int, columns: int, sm_count: int) -> ThreadPolicy | None:
    """Return the policy for ``columns`` columns, ``inner`` side by side; None if they are too few.

    H200, sm_90, 1 GiB float32, along the middle axis, microseconds::

        shape             a thread per column  columns.cuh
        [64, 2^11, 2^11]                  549          600
        [2^10, 2^9, 2^9]                  575          740
        [2^20, 4, 64]                     518         1060
    """
    size = widest(types.x, types.out)
    items = math.gcd(inner, max(VECTOR // max(size, types.acc.itemsize, 4), 1))
    if columns // items < 192 * sm_count or inner * size < 64:
        return None
    light = types.acc.itemsize <= 16 and not _has_gradients(types)
    return ThreadPolicy(128, 8, items, 4 if light else 2)


# ---- arguments -------------------------------------------------------------------------------


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
        #: Bytes of a stage. Fields lie in it one after the other.
        self.stage = sum((self.height * pitch + _ROOM) // 128 * 128 for pitch in all_pitches)
        self.shared = self.stage * self.policy.stages
        exist = has_boxes(types, form.extents.inner, self.policy.items, strips, arch)
        rows, inner = form.extents.outer * n, form.extents.inner
        self._boxes = Boxes(types, self, all_pitches, rows, inner, exist=exist)

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
        arguments.stage_bytes = self.stage

    def point(self, arguments: Any, x: Any) -> None:
        """Set the pointers to the input, and the tensor maps of its fields."""
        if type(x) is FieldArrays:
            point(arguments, "x", x)
            self._boxes.set(arguments, x.addresses)
        else:
            arguments.x = x.data.ptr
            self._boxes.set(arguments, (x.data.ptr,))


# ---- tensor maps -----------------------------------------------------------------------------


class Boxes:
    """The tensor maps by which the copy engine fetches boxes of rows: columns/strip.cuh.

    The addresses of the fields must be multiples of 16 bytes.
    """

    def __init__(
        self,
        types: Types,
        tiling: Tiling,
        pitches: list[int],
        rows: int,
        inner: int,
        *,
        exist: bool,
    ) -> None:
        """Describe a matrix; ``exist`` tells whether its rows and strips have boxes."""
        self._parts = [(min(size, 8), -(-size // 8)) for size in _sizes(types)]
        self._shape = inner, rows
        self._addresses: tuple[int, ...] = ()
        # Boxes divide a tile, have at most 256 rows, and end at multiples of 128 bytes.
        fits = [
            k
            for k in range(1, _MOST_BOX_ROWS + 1)
            if tiling.height % k == 0 and all(k * pitch % 128 == 0 for pitch in pitches)
        ]
        self._box = tiling.columns, max(fits, default=0)
        self._exist = exist and bool(fits) and rows < 1 << 31

    def set(self, arguments: Any, addresses: Sequence[int]) -> None:
        """Set the maps of the fields, and the rows of a box: 0 if boxes cannot be fetched."""
        if tuple(addresses) == self._addresses:
            return
        self._addresses = tuple(addresses)
        exist = self._exist and all(address % VECTOR == 0 for address in addresses)
        maps = ctypes.addressof(arguments) + type(arguments).maps.offset
        exist = exist and all(
            self._encode(maps + 128 * i, address, *parts)
            for i, (address, parts) in enumerate(zip(addresses, self._parts, strict=True))
        )
        arguments.box_rows = self._box[1] if exist else 0

    def _encode(self, to: int, address: int, size: int, parts: int) -> bool:
        """Write the map of a field, whose elements have parts of ``size`` bytes, to an address.

        Returns whether the CUDA driver could; if not, the kernel fetches without boxes.
        """
        (inner, rows), (columns, box_rows) = self._shape, self._box
        status: int = _driver().cuTensorMapEncodeTiled(
            ctypes.c_void_p(to), _UNSIGNED[size], 2, ctypes.c_void_p(address),
            (ctypes.c_uint64 * 2)(inner * parts, rows),
            (ctypes.c_uint64 * 1)(inner * parts * size),
            (ctypes.c_uint32 * 2)(columns * parts, box_rows),
            (ctypes.c_uint32 * 2)(1, 1),  # from one element to the next
            0, 0, _L2_PROMOTION, 0,  # no interleaving, no swizzle; zeros outside
        )  # fmt: skip
        return status == 0


_MOST_BOX_ROWS = 256  # the driver's limit
_UNSIGNED = {1: 0, 2: 1, 4: 2, 8: 4}  # CU_TENSOR_MAP_DATA_TYPE_UINT8 to UINT64, by bytes
_L2_PROMOTION = 2  # CU_TENSOR_MAP_L2_PROMOTION_L2_128B


@functools.cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


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

    can_wait = False  # these kernels are launched when their offset is known

    def __init__(self, entry: str, macros: dict[str, object], types: Types, *size: int):
        super().__init__(entry, macros, types.acc, *size, fields=fields_of(types))
        self._first = settable(view(self.arguments, "first", types.acc))

    def prepare(self, x: Any, y: Any, heads: None = None) -> None:
        """Set the input and the output."""
        self._point(x)
        if type(x) is FieldArrays:
            point(self.arguments, "y", y)
        else:
            self.arguments.y = y.data.ptr

    def _point(self, x: Any) -> None:
        """Set the pointers to the input."""
        raise NotImplementedError

    def set_offset(self, offset: NDArray[Any] | Row | None, epoch: int) -> None:
        """Set the offset: a row [inner], one value for all columns, or none."""
        arguments = self.arguments
        arguments.offset, arguments.has_first = 0, False
        if isinstance(offset, Row):
            arguments.offset = offset.pointer
        elif offset is not None:
            arguments.has_first, self._first[0] = True, offset

    def take_offset(self, row: int, epoch: int) -> None:
        """Set the address on the GPU of a row of offsets, which is there when the kernel begins."""
        self.set_offset(None, epoch)
        self.arguments.offset = row


class Scan(_Scan):
    """The kernel of ``kernels/columns/scan.cuh``."""

    def __init__(self, op: Operator, types: Types, n: int, form: Form) -> None:
        """Compile, and allocate the totals of all tiles and of all groups of tiles."""
        tiling = self._tiling = Tiling(types, n, form)
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

    def _point(self, x: Any) -> None:
        self._tiling.point(self.arguments, x)

    def set_offset(self, offset: NDArray[Any] | Row | None, epoch: int) -> None:
        """Set the offset, and the epoch of the totals."""
        self._work.epoch = epoch
        super().set_offset(offset, epoch)


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

    def _point(self, x: Any) -> None:
        if type(x) is FieldArrays:
            point(self.arguments, "x", x)
        else:
            self.arguments.x = x.data.ptr


class Reduce(Kernel):
    """The kernel of ``kernels/columns/reduce.cuh``: the total of each column of one scan."""

    def __init__(self, op: Operator, types: Types, n: int, form: Form) -> None:
        """Compile, and allocate a row of totals for each run of tiles."""
        types = register_types(op, types)
        types = Types(types.x, types.acc, types.x)  # nothing is written
        tiling = self._tiling = Tiling(types, n, form)
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
        self._tiling.point(self.arguments, x)
        self.arguments.total = total
