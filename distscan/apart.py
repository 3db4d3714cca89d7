"""Scans that have an algorithm of their own: exact sums, and tuples of arrays."""

from typing import Any

from .exact import Scan, scan_exactly
from .tuples import scan_tuple


def otherwise(
    scan: Scan, run: Scan, x: Any, op: Any, given: tuple[Any, Any, Any], **asked: Any
) -> Any:
    """Scan by such an algorithm; collective.

    ``scan`` and ``run`` are those of ``scan.py``; ``given`` are strategy, window and threads.
    """
    strategy, window, threads = given
    if isinstance(op, str) and op == "fsum":
        return scan_exactly(scan, x, strategy=strategy, threads=threads, window=window, **asked)
    if window is not None:
        raise ValueError(f"window= goes with op='fsum', not {op!r}")
    return scan_tuple(run, x, op, strategy=strategy, threads=threads, **asked)
