"""Scans that have an algorithm of their own: exact sums, and tuples of arrays."""

from typing import Any

from .exact import Scan, scan_exactly
from .exact_check import is_fsum
from .tuples import scan_tuple


def otherwise(
    scan: Scan, run: Scan, x: Any, op: Any, given: tuple[Any, Any, Any], **asked: Any
) -> Any:
    """Scan by such an algorithm; collective.

    ``scan`` and ``run`` are those of ``scan.py``; ``given`` are strategy, window and threads.
    """
    strategy, window, threads = given
    if is_fsum(op, window):
        return scan_exactly(scan, x, strategy=strategy, threads=threads, window=window, **asked)
    return scan_tuple(run, x, op, strategy=strategy, threads=threads, **asked)
