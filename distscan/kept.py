"""The plans that ``scan`` used last: a call takes one out, and puts it back when it is done."""

import itertools
import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

MOST = 16  # plans
LARGE = 16 << 20  # bytes: of plans that hold more beside their arrays, one at most is kept


class Keepable(Protocol):
    """What is kept."""

    @property
    def nbytes(self) -> int:
        """How much memory it holds."""


P = TypeVar("P", bound=Keepable)


class _Kind:
    """The plans of one kind of call that are not in use, and when the last one was put back."""

    __slots__ = ("forgotten", "last", "plans")

    def __init__(self) -> None:
        self.plans: list[Any] = []
        self.last = 0
        self.forgotten = False  # no more in ``_kinds``: a call had its only plan


_kinds: dict[tuple[Any, ...], _Kind] = {}
_turns = itertools.count(1)
_lock = threading.RLock()  # around what is more than one step of Python's


def take(key: tuple[Any, ...], make: Callable[[], P]) -> tuple[P, Callable[[], None]]:
    """Return a plan that was kept under ``key``, else what ``make`` makes; and what puts it back.

    The plan belongs to one call, in whichever thread. A call that is broken off does not put it
    back, and so leaves nothing behind. The CUDA stream that work is ordered on is to be a part of
    ``key``: calls on two streams need not wait for each other's workspace.
    """
    kind = _kinds.get(key)
    try:
        plan: P = kind.plans.pop()  # type: ignore[union-attr]
    except (AttributeError, IndexError):  # no such call yet, or all its plans are in use
        plan = make()
        return plan, lambda: _keep(key, plan)

    def put_back() -> None:
        if plan.nbytes > LARGE or kind.forgotten:  # type: ignore[union-attr]
            _keep(key, plan)
        else:
            kind.last = next(_turns)  # type: ignore[union-attr]
            kind.plans.append(plan)  # type: ignore[union-attr]

    return plan, put_back


def plans() -> list[Any]:
    """Return what is kept, the last used behind."""
    with _lock:
        kinds = sorted(_kinds.values(), key=lambda kind: kind.last)
        return [plan for kind in kinds for plan in kind.plans]


def clear() -> None:
    """Forget all."""
    with _lock:
        _kinds.clear()


def _keep(key: tuple[Any, ...], plan: Keepable) -> None:
    """Keep a new plan, and drop what that is too much."""
    with _lock:
        if plan.nbytes > LARGE:
            for kind in _kinds.values():
                kind.plans[:] = [other for other in kind.plans if other.nbytes <= LARGE]
        kind = _kinds.setdefault(key, _Kind())
        kind.last = next(_turns)
        kind.plans.append(plan)
        while len(plans()) > MOST:
            oldest = min((kind.last, key) for key, kind in _kinds.items() if kind.plans)[1]
            _kinds[oldest].plans.pop(0)
        for unused in [key for key, kind in _kinds.items() if not kind.plans]:
            _kinds.pop(unused).forgotten = True
