"""The kernels of ``kernels/``, each with its workspace: how shards are cut, what is launched."""

from typing import Any, NamedTuple

import cupy
import numpy as np
from numpy.typing import NDArray

from .. import operators
from ..dtypes import Types
from ..forms import Form
from ..operators import Operator
from .kernel import HostOffset, Kernel, definitions
from .policy import ADD_THREADS, TextbookPolicy, reduce_policy, scan_policy

_VECTOR = 16  # bytes per access
_CACHED = 32 << 20  # bytes that are still in L2 when the scan comes for them
_LANES = 32
_RESIDENT = 2048  # threads that a multiprocessor holds at most


def head_of(array: Any, n: int, *, reverse: bool = False) -> int:
    """How many of the ``n`` elements a scan meets before the first boundary of vectors."""
    short = (array.data.ptr + n * array.itemsize if reverse else -array.data.ptr) % _VECTOR
    return min(n, short // array.itemsize) if short % array.itemsize == 0 else 0


def per_vector(*dtypes: np.dtype[Any]) -> int:
    """How many elements of the widest of some types fill a vector."""
    return int(max(_VECTOR // max(dtype.itemsize for dtype in dtypes), 1))


def processors() -> int:
    """How many multiprocessors the current GPU has."""
    return int(cupy.cuda.Device().attributes["MultiProcessorCount"])


def make_scan(
    op: Operator, types: Types, n: int, form: Form, textbook: TextbookPolicy | None
) -> "Scan":
    """The kernel that scans shards of ``n`` elements: a textbook's, or the fastest."""
    types = running(op, types)
    cut = _production(types, n) if textbook is None else _textbook(types, textbook)
    if textbook is not None and (form.exclusive or form.reverse):
        raise NotImplementedError("block_scan= is for inclusive scans from the first element on")
    return Scan(op, types, n, form, cut)


class Cut(NamedTuple):
    """A kernel that scans, and how."""

    entry: str
    policy: dict[str, int | str]
    tile: int  # elements
    threads: int
    shared: int  # dynamic, in bytes
    blocks: int  # at most
    words: int = 1  # published per 4 bytes of a tile's total


def _production(types: Types, n: int) -> Cut:
    """``kernels/scan.cuh``."""
    chosen = scan_policy(types, cupy.cuda.Device().compute_capability, n, processors())
    tile = chosen.threads * chosen.rows * per_vector(types.x, types.out)
    shared = chosen.slots * (tile * types.x.itemsize + 16)
    threads = chosen.threads + chosen.helpers * _LANES
    return Cut("scan", chosen._asdict(), tile, threads, shared, processors())


def _textbook(types: Types, chosen: TextbookPolicy) -> Cut:
    """``kernels/textbook.cuh``; a tile's total there has a prefix beside it."""
    tile = chosen.threads * chosen.rows * per_vector(types.x, types.out)
    shared = tile * max(types.x.itemsize, types.out.itemsize)
    policy = chosen._asdict() | {"blocks": chosen.blocks}
    blocks = _RESIDENT // chosen.threads * processors()
    return Cut("textbook", policy, tile, chosen.threads, shared, blocks, words=2)


class Scan:
    """A kernel that scans a shard in one pass."""

    def __init__(self, op: Operator, types: Types, n: int, form: Form, cut: Cut) -> None:
        self._n, self._launch, self._tile, self._blocks = n, 0, cut.tile, cut.blocks
        self._reverse = form.reverse
        stride = n // self._tile + 2
        self._totals = cupy.zeros((cut.words * -(-types.acc.itemsize // 4), stride), np.uint64)
        self._drawn = cupy.zeros(1, np.uint32)
        size = -(-types.acc.itemsize // 8)
        self._kernel = Kernel(
            cut.entry,
            definitions(op, types, form, **cut.policy),
            [1, 1, 3, 6, size, 1, 3],  # x, y, shard, work, offset, has_offset, mail
            cut.threads,
            cut.shared,
        )
        words = self._kernel.words
        words[2] = n
        words[5], words[6] = self._totals.data.ptr, stride
        words[8], words[9] = 1, self._drawn.data.ptr
        self._offset = self._kernel.memory[11 : 11 + size].view(types.acc)[:1]
        self._has_offset = 11 + size
        self.mail = HostOffset(types.acc)

    def prepare(self, x: Any, y: Any, total: int = 0) -> None:
        """Set all but the offset; the last value goes to ``total`` unless that is null."""
        head = head_of(y, self._n, reverse=self._reverse)
        tiles = (head > 0) + -(-(self._n - head) // self._tile)
        self._grid = min(tiles, self._blocks)
        words = self._kernel.words
        words[0], words[1], words[3], words[4] = x.data.ptr, y.data.ptr, head, tiles
        words[7] = total

    def launch(self, offset: NDArray[Any] | None) -> int:
        """Launch; return the launch's number, which comes with the last value."""
        self._kernel.words[self._has_offset] = offset is not None
        if offset is not None:
            self._offset[0] = offset
        return self._launched(0, 0, 0)

    def launch_ahead(self) -> int:
        """Launch, the offset to come through ``mail``; return the launch's number."""
        self.mail.expect()
        return self._launched(*self.mail.mail)

    def _launched(self, *mail: int) -> int:
        self._launch = next_launch(self._launch)
        words = self._kernel.words
        words[10] = self._launch
        words[-3], words[-2], words[-1] = mail
        self._kernel.launch(self._grid)
        return self._launch


class Reduce:
    """The kernel of ``kernels/reduce.cuh``."""

    def __init__(self, op: Operator, types: Types, n: int, form: Form) -> None:
        types = running(op, types)
        chosen = reduce_policy(op, types, cupy.cuda.Device().compute_capability)
        form = Form(reverse=form.reverse)  # all that its kernel depends on
        self._reverse = form.reverse
        self._step = _LANES * chosen.rows * per_vector(types.x)
        self._n, self._launch, self._blocks = n, 0, chosen.blocks * processors()
        self._totals = cupy.empty((2 * self._blocks, types.acc.itemsize), np.uint8)
        self._arrived = cupy.zeros(1, np.uint32)
        self._kernel = Kernel(
            "reduce",
            definitions(op, types, form, **chosen._asdict()),
            [1, 1, 1, 1, 1, 1, 2, 1],  # x, n, head, cached, totals, arrived, total, launch
            chosen.threads,
        )
        self._kernel.words[1] = n
        self._kernel.words[3] = _CACHED // types.x.itemsize
        self._kernel.words[4] = self._totals.data.ptr
        self._kernel.words[5] = self._arrived.data.ptr
        self._kernel.words[7] = 1

    def __call__(self, x: Any, total: int) -> int:
        """Launch; return the launch's number, which comes with the shard's total at ``total``."""
        head = head_of(x, self._n, reverse=self._reverse)
        self._launch = next_launch(self._launch)
        words = self._kernel.words
        words[0], words[2], words[6], words[8] = x.data.ptr, head, total, self._launch
        self._kernel.launch(max(1, min(-(-(self._n - head) // self._step), self._blocks)))
        return self._launch


class Add:
    """The kernel of ``kernels/add.cuh``."""

    def __init__(self, op: Operator, types: Types, n: int, form: Form) -> None:
        self._n = n
        # Only of an exclusive scan does it know where that begins.
        form = Form(exclusive=form.exclusive, reverse=form.exclusive and form.reverse)
        self._each = ADD_THREADS * per_vector(types.acc, types.out)
        offset = -(-types.acc.itemsize // 8)
        self._kernel = Kernel(
            "add",
            definitions(op, types, form, threads=ADD_THREADS),
            [1, 1, 1, 1, offset, 1],  # y, out, n, head, offset, has_offset
            ADD_THREADS,
        )
        self._kernel.words[2] = n
        self._offset = self._kernel.memory[4 : 4 + offset].view(types.acc)[:1]

    def __call__(self, y: Any, out: Any, offset: NDArray[Any] | None) -> None:
        head = head_of(out, self._n)
        words = self._kernel.words
        words[0], words[1], words[3] = y.data.ptr, out.data.ptr, head
        words[-1] = offset is not None
        if offset is not None:
            self._offset[0] = offset
        self._kernel.launch(max(1, -(-(self._n - head) // self._each)))


def next_launch(launch: int) -> int:
    """Number the next launch: 32 bits, never 0, which fresh workspaces hold."""
    return launch % 0xFFFFFFFF + 1


def running(op: Operator, types: Types) -> Types:
    """Let built-in operators run narrow integers in 32 bits: the low ones come out the same.

    Not where x must first be cut to the narrow type: the maximum of 300 and 50 as int8 is 50.
    """
    x, acc = types.x, types.acc
    narrow = acc.kind in "iu" and acc.itemsize < 4 and np.can_cast(x, acc)
    logical = x == acc == np.bool_ and op.name != "sum"  # of which 2 ** 32 would make a zero
    if not (narrow or logical) or operators.BUILTIN.get(op.name) is not op:
        return types
    return Types(x, np.dtype(np.int32 if acc.kind == "i" else np.uint32), types.out)
