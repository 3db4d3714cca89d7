"""The choice of the kernel that scans a shard, and of its tiles."""

from typing import NamedTuple

import cupy

from ..core.dtypes import Types
from ..core.form import Form
from .definitions import type_name
from .policy import (
    TextbookPolicy,
    beside,
    bits_bytes,
    per_vector,
    scan_policy,
    up_to_bytes,
)
from .short_policy import short_policy

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
        tile = short.threads * short.rows * short.items
        blocks = short.blocks * sm_count()
        return LaunchConfig("scan_short", short._asdict(), tile, short.threads + _LANES, 0, blocks)
    arch = cupy.cuda.Device().compute_capability
    chosen = scan_policy(types, form, arch, n, sm_count())
    tile = chosen.threads * chosen.rows * chosen.items
    stage = tile * types.x.itemsize + 16 * len(types.x.names or " ")
    if form.segmented:
        stage += tile * beside(form) + 16
        stage += bits_bytes(types, form, chosen.threads, chosen.rows, chosen.items)
    policy: dict[str, int | str] = chosen._asdict()
    rows = form.extents.outer > 1
    policy["source"] = "FlaggedItems" if form.segmented else "RowItems" if rows else "Items"
    if form.keys is not None:
        policy["source"] = f"KeyedBy<{type_name(form.keys)}>::Items"
    policy["first"] = str((form.segmented or rows) and form.first is not None).lower()
    stage += up_to_bytes(types, form, chosen.threads, chosen.rows)
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
