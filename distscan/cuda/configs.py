"""The choice of the kernel that scans a shard, of its types, and of its tiles."""

from typing import NamedTuple

import cupy
import numpy as np

from ..core import operators
from ..core.dtypes import Types
from ..core.form import Form
from ..core.operators import Operator
from .policy import TextbookPolicy, packs_flags, per_vector, scan_policy, short_policy

_LANES = 32
_RESIDENT = 2048  # the most threads that a multiprocessor holds


class LaunchConfig(NamedTuple):
    """A kernel that scans, with its tuning numbers and the numbers of its launch."""

    entry: str
    policy: dict[str, int | str]
    tile: int  # elements per tile
    threads: int  # per block
    shared: int  # bytes of dynamic shared memory
    blocks: int  # the most blocks of a launch
    words: int = 1  # status words per 4 bytes of a tile's total


def scan_config(
    types: Types, n: int, form: Form, textbook: TextbookPolicy | None = None
) -> LaunchConfig:
    """Choose the kernel for shards of ``n`` elements: the ``textbook`` one, or the fastest."""
    if textbook is None:
        return _production(types, form.extents.outer * n, form)
    if form.exclusive or form.reverse or form.segmented or form.extents.outer > 1:
        raise NotImplementedError("block_scan= is for one inclusive scan from the first element on")
    return _textbook(types, textbook)


def _production(types: Types, n: int, form: Form) -> LaunchConfig:
    """Configure ``kernels/scan.cu``, or for few elements ``kernels/scan_short.cu``."""
    short = short_policy(types, form, n, sm_count())
    if short is not None:
        tile = short.threads * short.rows * per_vector(types.x, types.out)
        blocks = short.blocks * sm_count()
        return LaunchConfig("scan_short", short._asdict(), tile, short.threads + _LANES, 0, blocks)
    chosen = scan_policy(types, form, cupy.cuda.Device().compute_capability, n, sm_count())
    tile = chosen.threads * chosen.rows * chosen.items
    stage = tile * types.x.itemsize + 16
    policy: dict[str, int | str] = chosen._asdict()
    rows = form.extents.outer > 1
    policy["source"] = "FlaggedItems" if form.segmented else "RowItems" if rows else "Items"
    policy["first"] = str((form.segmented or rows) and form.first is not None).lower()
    if form.segmented:
        stage += tile + 16 + tile // 8 * packs_flags(types, chosen.items)
    shared = chosen.stages * stage
    threads = chosen.threads + (chosen.reducers + chosen.look_ahead_warps + 1) * _LANES
    return LaunchConfig("scan", policy, tile, threads, shared, sm_count())


def _textbook(types: Types, chosen: TextbookPolicy) -> LaunchConfig:
    """Configure ``kernels/textbook.cu``. Its tiles publish a prefix beside the total."""
    tile = chosen.threads * chosen.rows * per_vector(types.x, types.out)
    shared = tile * max(types.x.itemsize, types.out.itemsize)
    policy = chosen._asdict() | {"blocks": chosen.blocks}
    blocks = _RESIDENT // chosen.threads * sm_count()
    return LaunchConfig("textbook", policy, tile, chosen.threads, shared, blocks, words=2)


def sm_count() -> int:
    """Return the number of multiprocessors of the current GPU."""
    return int(cupy.cuda.Device().attributes["MultiProcessorCount"])


def register_types(op: Operator, types: Types) -> Types:
    """Return the types in registers: built-in operators scan narrow integers and bools in 32 bits.

    The low bits of the results are the same. There are two exceptions. If x must first be cut to
    the narrow type: the maximum of 300 and 50 as int8 is 50. If the result shows more than the low
    bits: 100 + 100 as int8 is -56, also in an int64.
    """
    x, acc, out = types.x, types.acc, types.out
    low = out.kind in "iu" and out.itemsize <= acc.itemsize
    narrow = acc.kind in "iu" and acc.itemsize < 4 and np.can_cast(x, acc) and low
    # The sum of bools is an exception: 2 ** 32 times True would make 0.
    truths = acc == np.bool_ and (op in operators.LOGICAL or (x == acc and op.name != "sum"))
    if not (narrow or truths) or operators.BUILTIN.get(op.name) is not op:
        return types
    return Types(x, np.dtype(np.int32 if acc.kind == "i" else np.uint32), out)
