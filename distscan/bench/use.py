"""One use of scans: its data on one rank, and the check of a result.

A result that depends on the one before it is compared with one step from that result. So the check
takes other code than the measured call, and any size.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..mpi.communicators import Comm
from .case import first_difference, pieces
from .machine import Host


class Place(NamedTuple):
    """Where a use runs: on a rank and a chip."""

    comm: Comm
    machine: Host
    random: Any  # a generator of random numbers, another on each rank

    def integers(self, low: int, high: int, shape: Any) -> Any:
        """Draw integers from ``low`` to below ``high``, as float32."""
        drawn = self.machine.xp.empty(shape, np.float32)
        flat = drawn.reshape(-1)
        for a, b in pieces(flat.size):
            flat[a:b] = self.random.randint(low, high, b - a)
        return drawn


class Drawn(NamedTuple):
    """The data of a use on one rank. Results are what ``call`` and the peers return."""

    given: tuple[Any, ...]  # the input arrays
    out: tuple[Any, ...]  # arrays like those of the result, if calls take them
    call: Callable[..., Any]  # distscan's way, of the inputs and the results' arrays
    fault: Callable[[Any, list[Any]], str]  # of a result and what all ranks show; "" if it is right
    show: Callable[[Any], Any] = lambda result: None  # what the check of other ranks needs


@dataclass(frozen=True)
class Use:
    """One use at one size."""

    kind: str  # for which there are peers
    title: str
    n: int  # elements per rank
    bytes: int  # that a perfect way reads and writes on one rank
    draw: Callable[[Place], Drawn]
    waits: bool = False  # whether the host waits for the result: its clock counts then
    loops: int = 1  # calls in a row that are one sample


def following(
    place: Place,
    x: tuple[Any, ...],
    first: Sequence[Any],
    step: Callable[[tuple[Any, ...], tuple[Any, ...]], tuple[Any, ...]],
) -> tuple[Callable[[Any, list[Any]], str], Callable[[Any], Any]]:
    """Return ``fault`` and ``show`` of results that are ``step(the result before, elements of x)``.

    ``first`` comes before the first element of rank 0.
    """
    comm, xp = place.comm, place.machine.xp

    def show(result: Any) -> list[Any]:
        return [on_host(array[-1]) for array in _arrays(result)]

    def fault(result: Any, shown: list[Any]) -> str:
        results = _arrays(result)
        starts = shown[comm.rank - 1] if comm.rank > 0 else first
        before = tuple(
            xp.concatenate([xp.asarray(start, array.dtype)[None], array[:-1]])
            for start, array in zip(starts, results, strict=True)
        )
        faults = (
            first_difference(array.reshape(-1), want.reshape(-1))
            for array, want in zip(results, step(before, x), strict=True)
        )
        return next(filter(None, faults), "")

    return fault, show


def _arrays(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


def on_host(array: Any) -> Any:
    """Return an array or element of NumPy or CuPy in host memory."""
    return array.get() if hasattr(array, "get") else np.asarray(array)
