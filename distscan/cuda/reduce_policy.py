"""The tuning numbers of reductions, and the measurements that they come from; see ``policy.py``."""

from typing import NamedTuple

import numpy as np

from ..core.dtypes import Types
from ..core.form import Form
from ..core.operators import Operator
from .policy import SHARED, VECTOR, items_of, per_vector


class ReducePolicy(NamedTuple):
    """How ``kernels/linear/reduce.cuh`` is cut."""

    threads: int
    rows: int  # vectors per lane in flight
    items: int  # elements per vector
    blocks: int  # per multiprocessor


def reduce_policy(op: Operator, types: Types, form: Form, arch: str) -> ReducePolicy:
    """Return the policy for an operator, its types and form, on a GPU of ``arch``.

    H200, sm_90, 1 GiB::

        type                                threads  rows  blocks  microseconds
        float32                                 256     4       4  254
        float32                                         8          252 to 260
        float32                                 512                252 to 260
        float32                                                 8  252 to 260
        float32, next rows loaded ahead                            252 to 260
        float32, other caching                                     252 to 260
        float32, bulk copies                                       252 to 260
        float32, launched back to back                          2  249
        float32, launched alone                                 2  264
        int8, max                               512     8       2  258
        int8, max                               256     4       3  280
        int8, max                               256     8       2  277
        int8, max                               256     8       4  263

    Some forms get fewer blocks, because they use more registers: int8 to int64 (it spills at 3
    blocks on sm_100 and sm_120), logaddexp in float64, structures, and flags. Flags are not
    measured.
    """
    chosen = _reduce_policy(op, types, form, arch)
    if form.keys is None:
        return chosen
    # A thread holds at most 128 bytes of items and keys in flight.
    each = chosen.items * (types.x.itemsize + form.keys.itemsize)
    rows, blocks = max(1, min(chosen.rows, 128 // each)), min(chosen.blocks, 3 if each < 32 else 2)
    return chosen._replace(rows=rows, blocks=blocks)


def _reduce_policy(op: Operator, types: Types, form: Form, arch: str) -> ReducePolicy:
    """Return the policy of a reduction without the keys of segments."""
    widening = types.acc.itemsize // types.x.itemsize
    long = op.numpy is np.logaddexp and types.acc.itemsize > 4
    blocks = 4 if widening <= 1 and not long else 3 if widening < 8 else 2
    few = types.acc.names or (form.segmented and arch not in SHARED)
    if types.x.itemsize == 1 and widening == 4 and arch in SHARED and not form.segmented:
        return ReducePolicy(threads=512, rows=8, items=VECTOR, blocks=2)
    items = min(items_of(types), per_vector(types.x)) if types.x.names else per_vector(types.x)
    rows = min(4, max(128 // (items * types.x.itemsize), 1)) if types.x.names else 4
    if types.acc.itemsize > 16:
        blocks = 1
    return ReducePolicy(256, rows, items, blocks=min(blocks, 2) if few else blocks)
