"""What ``scan`` decided and allocated for its last kinds of calls.

A call takes one out, and puts it back when it is done::

    kind = kept.kinds.get(key)
    decided = kind.pop()            # AttributeError, IndexError: none is there
    ...
    if kind.forgotten or decided.nbytes > kept.LARGE:
        kept.keep(key, decided)     # a new one, too
    else:
        kind.last = next(kept.turns)
        kind.append(decided)

It belongs to one call, in whichever thread. A call that is broken off does not put it back, and so
leaves nothing behind. The CUDA stream that work is ordered on is to be a part of ``key``: calls on
two streams need not wait for each other's workspace.
"""

import itertools
import threading
from typing import Any, Protocol

MOST = 16  # of all kinds together
LARGE = 16 << 20  # bytes: of those that hold more beside their arrays, one at most is kept


class Keepable(Protocol):
    """What is kept."""

    @property
    def nbytes(self) -> int:
        """How much memory it holds."""


class Kind(list[Any]):
    """What was decided for one kind of call, and is not in use."""

    __slots__ = ("forgotten", "last")

    def __init__(self) -> None:
        super().__init__()
        #: When the last one was put back.
        self.last = 0
        #: Whether it is no more in ``kinds``: a call had its only one.
        self.forgotten = False


kinds: dict[tuple[Any, ...], Kind] = {}
#: 1, 2, 3, ...: when calls ended.
turns = itertools.count(1)
_lock = threading.RLock()  # around what is more than one step of Python's


def keep(key: tuple[Any, ...], decided: Keepable) -> None:
    """Keep what is new or large, and drop what is then too much."""
    with _lock:
        if decided.nbytes > LARGE:
            for kind in kinds.values():
                kind[:] = [other for other in kind if other.nbytes <= LARGE]
        kind = kinds.setdefault(key, Kind())
        kind.last = next(turns)
        kind.append(decided)
        while len(everything()) > MOST:
            oldest = min((kind.last, key) for key, kind in kinds.items() if kind)[1]
            kinds[oldest].pop(0)
        for unused in [key for key, kind in kinds.items() if not kind]:
            kinds.pop(unused).forgotten = True


def everything() -> list[Any]:
    """Return all that is kept and not in use, the last used behind."""
    with _lock:
        return [
            each for kind in sorted(kinds.values(), key=lambda kind: kind.last) for each in kind
        ]


def clear() -> None:
    """Forget all."""
    with _lock:
        kinds.clear()
