"""The kernels of ``kernels/``, each with its workspace: how shards are cut, what is launched."""

import functools
from typing import Any, NamedTuple

import cupy
import numpy as np
from numpy.typing import NDArray

from ..core import operators
from ..core.dtypes import Types
from ..core.forms import Form
from ..core.operators import Operator
from .kernel import HostOffset, Kernel, definitions
from .policy import (
    ADD_THREADS,
    VECTOR,
    TextbookPolicy,
    packs_flags,
    per_vector,
    reduce_policy,
    scan_policy,
    short_policy,
)

# Bytes that are still in L2 when the scan comes for them. sm_90, reduce and scan of 1 GiB float32
# (float64), microseconds: none 779 (780), 24 MiB 778 (777), 32 MiB 780 (776), 40 MiB 777 (774).
_CACHED = 40 << 20
_LANES = 32
_RESIDENT = 2048  # threads that a multiprocessor holds at most


def peel_of(array: Any, n: int, *, reverse: bool = False) -> int:
    """How many of the ``n`` elements a scan meets before the first boundary of vectors."""
    short = (array.data.ptr + n * array.itemsize if reverse else -array.data.ptr) % VECTOR
    return min(n, short // array.itemsize) if short % array.itemsize == 0 else 0


def sm_count() -> int:
    """How many multiprocessors the current GPU has."""
    return int(cupy.cuda.Device().attributes["MultiProcessorCount"])


def make_scan(
    op: Operator, types: Types, n: int, form: Form, textbook: TextbookPolicy | None
) -> "Scan":
    """Make the kernel that scans shards of ``n`` elements: a textbook's, or the fastest."""
    types = register_types(op, types)
    if textbook is None:
        return Scan(op, types, n, form, _production(types, form.outer * n, form))
    if form.exclusive or form.reverse or form.segmented or form.outer > 1:
        raise NotImplementedError("block_scan= is for one inclusive scan from the first element on")
    return Scan(op, types, n, form, _textbook(types, textbook))


def flagged(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return ``Flagged`` of linear/flagged.cuh: a value, and whether a segment begins in it."""
    return np.dtype([("value", dtype), ("head", np.uint32)], align=True)


class LaunchConfig(NamedTuple):
    """A kernel that scans, and how."""

    entry: str
    policy: dict[str, int | str]
    tile: int  # elements
    threads: int
    shared: int  # dynamic, in bytes
    blocks: int  # at most
    words: int = 1  # published per 4 bytes of a tile's total


def _production(types: Types, n: int, form: Form) -> LaunchConfig:
    """``kernels/linear/scan.cuh``, or for few elements ``scan_short.cuh``."""
    short = short_policy(types, form, n, sm_count())
    if short is not None:
        tile = short.threads * short.rows * per_vector(types.x, types.out)
        blocks = short.blocks * sm_count()
        return LaunchConfig("scan_short", short._asdict(), tile, short.threads + _LANES, 0, blocks)
    chosen = scan_policy(types, form, cupy.cuda.Device().compute_capability, n, sm_count())
    tile = chosen.threads * chosen.rows * chosen.items
    stage = tile * types.x.itemsize + 16
    policy: dict[str, int | str] = chosen._asdict()
    rows = form.outer > 1
    policy["source"] = "FlaggedItems" if form.segmented else "RowItems" if rows else "Items"
    policy["first"] = str((form.segmented or rows) and form.first is not None).lower()
    if form.segmented:
        stage += tile + 16 + tile // 8 * packs_flags(types, chosen.items)
    shared = chosen.stages * stage
    threads = chosen.threads + (chosen.reducers + chosen.look_ahead_warps + 1) * _LANES
    return LaunchConfig("scan", policy, tile, threads, shared, sm_count())


def _textbook(types: Types, chosen: TextbookPolicy) -> LaunchConfig:
    """``kernels/textbook/textbook.cuh``; a tile's total there has a prefix beside it."""
    tile = chosen.threads * chosen.rows * per_vector(types.x, types.out)
    shared = tile * max(types.x.itemsize, types.out.itemsize)
    policy = chosen._asdict() | {"blocks": chosen.blocks}
    blocks = _RESIDENT // chosen.threads * sm_count()
    return LaunchConfig("textbook", policy, tile, chosen.threads, shared, blocks, words=2)


class Scan:
    """A kernel that scans a shard in one pass: one of ``kernels/scan*.cu``, or a textbook's."""

    def __init__(
        self, op: Operator, types: Types, n: int, form: Form, config: LaunchConfig
    ) -> None:
        rows, n = form.outer > 1, form.outer * n
        self._n, self._tile, self._blocks = n, config.tile, config.blocks
        self._reverse = form.reverse
        size = -(-types.acc.itemsize // 8)
        parameters = {
            "x": 1,
            "y": 1,
            "shard": 3,
            "work": 6,
            "offset": size,
            "has_offset": 1,
            "mail": 3,
        }
        if config.entry == "scan":
            parameters |= {"heads": 1, "row": 3, "first": size}
        given = definitions(op, types, form, **config.policy)
        sizes = list(parameters.values())
        self._kernel = Kernel(config.entry, given, sizes, config.threads, config.shared)
        ends = np.cumsum([*parameters.values()]).tolist()
        self._at = dict(zip(parameters, [0, *ends[:-1]], strict=True))
        words, work = self._kernel.words, self._at["work"]
        words[self._at["shard"]] = n
        total = flagged(types.acc) if form.segmented or rows else types.acc
        stride = n // self._tile + 2
        self._totals = cupy.zeros((config.words * -(-total.itemsize // 4), stride), np.uint64)
        self._tile_counter = cupy.zeros(1, np.uint32)
        words[work], words[work + 1] = self._totals.data.ptr, stride
        words[work + 3], words[work + 4] = 1, self._tile_counter.data.ptr
        #: Whether it can be launched ahead of its offset.
        self.waits = config.entry != "textbook" and not (form.segmented or rows)
        # Short shards are latency: a first tile of a few elements would be one more block.
        self._has_peel = config.entry != "scan_short"
        self._acc = types.acc
        # Rows come behind nothing but ``first``.
        self._offset = None if rows else self._value("offset", types.acc)
        if form.first is not None and (form.segmented or rows):
            self._value("first", types.acc)[0] = form.first
        if rows and n > 0:
            self._set_row(n // form.outer)

    def _value(self, name: str, dtype: np.dtype[Any]) -> NDArray[Any]:
        """One parameter of type ``dtype``."""
        at = self._at[name]
        return self._kernel.memory[at : at - (-dtype.itemsize // 8)].view(dtype)[:1]

    def _set_row(self, length: int) -> None:
        """Set what ``RowLength`` of kernels/linear/row_items.cuh holds."""
        at, words = self._at["row"], self._kernel.words
        words[at], words[at + 1] = length, min((1 << 64) // length, (1 << 64) - 1)
        words[at + 2] = sum(1 << i for i in range(0, 32, length))

    def prepare(self, x: Any, y: Any, heads: Any = None, total: int = 0) -> None:
        """Set all but the offset; the last value goes to ``total`` unless that is null."""
        peel = peel_of(y, self._n, reverse=self._reverse) if self._has_peel else 0
        tiles = (peel > 0) + -(-(self._n - peel) // self._tile)
        self._grid = min(tiles, self._blocks)
        words, at = self._kernel.words, self._at
        shard, work = at["shard"], at["work"]
        words[0], words[at["y"]] = x.data.ptr, y.data.ptr
        if heads is not None:
            words[at["heads"]] = heads.data.ptr
        words[shard + 1], words[shard + 2] = peel, tiles
        words[work + 2] = total

    def launch(self, epoch: int, offset: NDArray[Any] | None) -> None:
        """Launch; ``epoch`` comes with the last value."""
        if self._offset is not None:
            self._kernel.words[self._at["has_offset"]] = offset is not None
            if offset is not None:
                self._offset[0] = offset
        self._launched(epoch, 0, 0, 0)

    def launch_ahead(self, epoch: int) -> None:
        """Launch, the offset to come through ``mail``."""
        self.mail.expect()
        self._launched(epoch, *self.mail.mail)

    @functools.cached_property
    def mail(self) -> HostOffset:
        """What a launch ahead of its offset waits for."""
        return HostOffset(self._acc)

    @property
    def nbytes(self) -> int:
        """How much memory it has beside its arguments."""
        return int(self._totals.nbytes)

    def _launched(self, epoch: int, *mail: int) -> None:
        words = self._kernel.words
        words[self._at["work"] + 5] = epoch
        if self.waits:
            at = self._at["mail"]
            words[at], words[at + 1], words[at + 2] = mail
        self._kernel.launch(self._grid)


class Reduce:
    """The kernel of ``kernels/linear/reduce.cuh``."""

    def __init__(self, op: Operator, types: Types, n: int, form: Form) -> None:
        types = register_types(op, types)
        chosen = reduce_policy(op, types, form, cupy.cuda.Device().compute_capability)
        form = Form(reverse=form.reverse, segmented=form.segmented)  # its kernel needs no more
        self._reverse = form.reverse
        self._step = _LANES * chosen.rows * per_vector(types.x)
        self._n, self._blocks = n, chosen.blocks * sm_count()
        total = flagged(types.acc) if form.segmented else types.acc
        self._totals = cupy.empty(2 * self._blocks * total.itemsize, np.uint8)
        self._arrived = cupy.zeros(1, np.uint32)
        source = "FlaggedPointer" if form.segmented else "ItemPointer"
        self._kernel = Kernel(
            "reduce",
            definitions(op, types, form, source=source, **chosen._asdict()),
            [1, 1, 1, 1, 1, 1, 2, 1, 1],  # x, n, peel, cached, totals, arrived, total, epoch, heads
            chosen.threads,
        )
        words = self._kernel.words
        words[1] = n
        words[3] = _CACHED // (types.x.itemsize + form.segmented)
        words[4] = self._totals.data.ptr
        words[5] = self._arrived.data.ptr
        words[7] = 1

    @property
    def nbytes(self) -> int:
        """How much memory it has beside its arguments."""
        return int(self._totals.nbytes)

    def __call__(self, x: Any, total: int, epoch: int, heads: Any = None) -> None:
        """Launch; ``epoch`` comes with the shard's total at ``total``."""
        peel = peel_of(x, self._n, reverse=self._reverse)
        words = self._kernel.words
        words[0], words[2], words[6], words[8] = x.data.ptr, peel, total, epoch
        if heads is not None:
            words[9] = heads.data.ptr
        self._kernel.launch(max(1, min(-(-(self._n - peel) // self._step), self._blocks)))


class Add:
    """The kernel of ``kernels/linear/add.cuh``."""

    nbytes = 0  # beside its arguments

    def __init__(self, op: Operator, types: Types, n: int, form: Form) -> None:
        self._n = n
        # Only of an exclusive scan does it know where that begins.
        form = Form(exclusive=form.exclusive, reverse=form.exclusive and form.reverse)
        self._each = ADD_THREADS * per_vector(types.acc, types.out)
        offset = -(-types.acc.itemsize // 8)
        self._kernel = Kernel(
            "add",
            definitions(op, types, form, threads=ADD_THREADS),
            [1, 1, 1, 1, offset, 1],  # y, out, n, peel, offset, has_offset
            ADD_THREADS,
        )
        self._kernel.words[2] = n
        self._offset = self._kernel.memory[4 : 4 + offset].view(types.acc)[:1]

    def __call__(self, y: Any, out: Any, offset: NDArray[Any] | None) -> None:
        """Combine ``offset`` into each element of ``y``, and write it to ``out``; None: a copy."""
        peel = peel_of(out, self._n)
        words = self._kernel.words
        words[0], words[1], words[3] = y.data.ptr, out.data.ptr, peel
        words[-1] = offset is not None
        if offset is not None:
            self._offset[0] = offset
        self._kernel.launch(max(1, -(-(self._n - peel) // self._each)))


def register_types(op: Operator, types: Types) -> Types:
    """Let built-in operators run narrow integers and bools in 32 bits: the low ones are the same.

    Not where x must first be cut to the narrow type: the maximum of 300 and 50 as int8 is 50. Nor
    where the result shows more than the low bits: 100 + 100 as int8 is -56 in int64 too.
    """
    x, acc, out = types.x, types.acc, types.out
    low = out.kind in "iu" and out.itemsize <= acc.itemsize
    narrow = acc.kind in "iu" and acc.itemsize < 4 and np.can_cast(x, acc) and low
    # Not the sum of bools, of which 2 ** 32 would make a zero.
    truths = acc == np.bool_ and (op in operators.LOGICAL or (x == acc and op.name != "sum"))
    if not (narrow or truths) or operators.BUILTIN.get(op.name) is not op:
        return types
    return Types(x, np.dtype(np.int32 if acc.kind == "i" else np.uint32), out)
