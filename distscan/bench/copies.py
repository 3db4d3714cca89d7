"""Copies, the measure of all contenders: as fast as the chip copies with as many threads."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ..cpu import threads
from .machine import Host
from .timing import Call

_THREAD = 1 << 20  # bytes to move for which a thread is worth its start


def copies(machine: Host, pairs: Sequence[tuple[Any, Any]], most: int) -> list[Call]:
    """Return calls that copy each pair (source, target); on a CPU by at most so many threads."""
    if machine.backend == "cuda":
        return [
            partial(out.data.copy_from_device_async, x.data, x.nbytes)  # on the current stream
            for x, out in pairs
        ]
    count = max(1, min(most, 2 * pairs[0][0].nbytes // _THREAD))
    return [
        partial(copy_pieces, np.array_split(x, count), np.array_split(out, count))
        for x, out in pairs
    ]


def copy_pieces(sources: list[Any], targets: list[Any]) -> None:
    """Copy each source by whichever thread comes first; some threads may never come."""
    pieces = zip(targets, sources, strict=True)

    def copy() -> None:
        for target, source in pieces:
            np.copyto(target, source)

    threads.run(copy, len(sources))
