"""The cache of ``scan``: decisions and workspaces of recent calls, by the kind of their arguments.

A call takes an entry out of the cache, and puts it back when it is done::

    kind = cache.kinds.get(key)
    setup = kind.pop()            # AttributeError, IndexError: there is no entry
    ...
    if kind.evicted or setup.nbytes > cache.LARGE:
        cache.keep(key, setup)     # so does a call that has made a new entry
    else:
        kind.last = next(cache.clock)
        kind.append(setup)

Meanwhile the entry belongs to this call alone, in whichever thread it runs. A call that fails does
not put its entry back, so it leaves nothing behind. The current CUDA stream is part of ``key``:
so calls on two streams do not wait for each other's workspace.
"""

import itertools
import threading
from collections.abc import Hashable
from contextlib import suppress
from typing import Any, Protocol

import numpy as np

MOST = 16  # entries of all kinds together
LARGE = 16 << 20  # bytes: at most one entry is kept that holds more memory than this


class Keepable(Protocol):
    """An entry of the cache."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it holds."""


class Kind(list[Any]):
    """The entries for one kind of call that are not in use."""

    __slots__ = ("evicted", "last")

    def __init__(self) -> None:
        super().__init__()
        #: When an entry was last put back, as a number of ``clock``.
        self.last = 0
        #: Whether it was removed from ``kinds``, because a call had taken its only entry.
        self.evicted = False


kinds: dict[tuple[Any, ...], Kind] = {}
#: A clock: it counts 1, 2, 3, ... with each entry that is put back.
clock = itertools.count(1)
# It protects ``kinds``, not the lists in it: a call takes an entry, and puts it back, without the
# lock, in one atomic step of Python. So the code below changes a list in one atomic step, too.
_lock = threading.RLock()


def acquire(key: tuple[Any, ...]) -> tuple[Any, Kind | None]:
    """Take an entry out of the cache; return it and its kind, or None twice if there is none."""
    kind = kinds.get(key)
    try:
        return kind.pop(), kind  # type: ignore[union-attr]
    except (AttributeError, IndexError):
        return None, None


def release(key: tuple[Any, ...], entry: Keepable, kind: Kind | None) -> None:
    """Put an entry into the cache that was acquired from a kind, or is new: of no kind."""
    if kind is None or kind.evicted or entry.nbytes > LARGE:
        keep(key, entry)
    else:
        kind.last = next(clock)
        kind.append(entry)


def keep(key: tuple[Any, ...], setup: Keepable) -> None:
    """Put an entry into the cache that is new or large, and drop the oldest beyond the limits."""
    with _lock:
        if setup.nbytes > LARGE:
            for kind in kinds.values():
                for other in [other for other in kind if other.nbytes > LARGE]:
                    with suppress(ValueError):  # another thread has taken it
                        kind.remove(other)
        kind = kinds.setdefault(key, Kind())
        kind.last = next(clock)
        kind.append(setup)
        while len(everything()) > MOST:
            oldest = min(filter(None, kinds.values()), key=lambda kind: kind.last, default=Kind())
            del oldest[:1]  # nothing, if another thread has taken it
        for unused in [key for key, kind in kinds.items() if not kind]:
            kinds.pop(unused).evicted = True


def everything() -> list[Any]:
    """Return all entries that are not in use, the most recently used last."""
    with _lock:
        return [
            each for kind in sorted(kinds.values(), key=lambda kind: kind.last) for each in kind
        ]


def clear() -> None:
    """Empty the cache."""
    with _lock:
        kinds.clear()


def bits_of(initial: Any) -> Hashable:
    """Return a key that is equal for equal bits of ``initial``: 0.0 and -0.0 differ.

    The key has the value, not the object: an array may change its value.
    """
    if isinstance(initial, tuple | list):  # the fields of a structure
        return type(initial), *map(bits_of, initial)
    try:
        value = np.asarray(initial)
    except Exception:  # no call shares this key; ``set_up`` raises the right exception
        return object()
    # Objects have no bits to compare. Only integers of more than 64 bits can be scanned.
    bits = object() if value.dtype.hasobject else value.tobytes()
    return type(initial), value.dtype, value.shape, bits
