"""The tuning numbers of the kernel for few elements, and the measurements that they come from."""

from typing import NamedTuple

from ..core.dtypes import Types
from ..core.form import Form
from .policy import items_of


class ShortPolicy(NamedTuple):
    """How ``kernels/linear/scan_short.cuh`` is cut: ``threads * rows`` vectors per block."""

    threads: int  # that scan; one more warp looks ahead
    rows: int  # vectors per thread
    items: int  # elements per vector
    blocks: int  # per multiprocessor


def short_policy(types: Types, form: Form, n: int, sm_count: int) -> ShortPolicy | None:
    """Return the policy for ``n`` elements, or None if they do not fit in registers all at once.

    H200, sm_90, float32, microseconds::

        elements         2^10  2^16  2^18  2^20  2^21
        this kernel       2.9   4.8   5.4   7.2   9.7
        scan.cuh          5.8   7.6   8.2   9.8  12.1

    It is fastest with half as many tiles as multiprocessors::

        elements  threads  rows  tiles per multiprocessor  microseconds
        2^18          256     1                            5.9
        2^18          256     2                            5.5
        2^18          256     4                            5.4
        2^18          256     8                            5.6
        2^20          512     4                            7.1
        2^20                                            2  7.4 to 7.7
        2^20                                            4  8.2 to 8.4

    2^20 was timed with 4 rows of totals read at once (7.4 with 9 rows). The kernel reads 5 now.
    """
    if form.segmented or form.extents.outer > 1 or types.acc.itemsize > 16:
        return None
    threads, items = 256, items_of(types)
    row = threads * items * sm_count  # elements, of a tile on each multiprocessor
    words = (items + 1) * max(types.acc.itemsize // 4, 1)  # of one thread: its row and its total
    for rows in (1, 2, 4, 8):
        most = rows == 8 or 2 * rows * words > 48
        if n <= row * rows // 2 or (most and n <= 2 * row * rows):
            return ShortPolicy(threads, rows, items, blocks=1 if n <= row * rows else 2)
        if most:
            break
    return None
