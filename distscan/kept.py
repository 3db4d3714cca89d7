"""The plans that ``scan`` used last: a call takes one out, and puts it back when it is done."""

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from .local import LocalPlan, make

MOST = 16  # plans
LARGE = 16 << 20  # bytes: of plans that hold more beside their arrays, one at most is kept

_lock = threading.RLock()
_plans: "OrderedDict[tuple[Any, ...], list[LocalPlan]]" = OrderedDict()  # the last used behind


def take(queue: int, *given: Any, **options: Any) -> tuple[LocalPlan, Callable[[], None]]:
    """Return what ``make`` makes of these arguments, or made before; and what puts it back.

    The plan belongs to one call, in whichever thread. A call that is broken off does not put it
    back, and so leaves nothing behind. ``queue`` is the CUDA stream that work is ordered on, or 0:
    calls on two streams need not wait for each other's workspace.
    """
    key = queue, *given, *options.values()
    plan = None
    with _lock:
        if key in _plans:
            plan = _pop(key)
    if plan is None:
        plan = make(*given, **options)
    return plan, functools.partial(_put_back, key, plan)


def plans() -> list[LocalPlan]:
    """Return what is kept, the last used behind."""
    with _lock:
        return [plan for alike in _plans.values() for plan in alike]


def clear() -> None:
    """Forget all."""
    with _lock:
        _plans.clear()


def _put_back(key: tuple[Any, ...], plan: LocalPlan) -> None:
    with _lock:
        if plan.nbytes > LARGE:
            for other in [key for key, alike in _plans.items() if alike[0].nbytes > LARGE]:
                del _plans[other]
        _plans.setdefault(key, []).append(plan)
        _plans.move_to_end(key)
        if len(_plans) > MOST or len(_plans[key]) > 1:
            while len(plans()) > MOST:
                _pop(next(iter(_plans)))


def _pop(key: tuple[Any, ...]) -> LocalPlan:
    plan = _plans[key].pop()
    if not _plans[key]:
        del _plans[key]
    return plan
