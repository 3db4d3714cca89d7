"""``fsum``: every prefix is the exact sum of all elements up to it, rounded once.

::

    1. window   the bits that the elements of all ranks need              MPI_Allgather
    2. total    each rank adds the digits of its shard                    MPI_Exscan
    3. scan     each rank scans digits, seeded with its offset; each sum is rounded on the store

Digits are integers, which add exactly in any order. So the result depends on the elements alone:
not on ranks, cuts, devices or strategies. Elements are taken in chunks, so that digits need little
memory.
"""

import math
from collections.abc import Callable
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from .build import Strategy
from .core import arrays
from .core import segments as segmented
from .core.extents import Extents, axis_number
from .core.fixed import Window
from .core.special import FINITE, NOT_FINITE, code_of
from .decide import check_memory, check_out
from .exact_check import check_strategy, check_window, limits_of, number_of, result_type
from .exact_shard import Shard, Total
from .mpi.agree import Agreement, Terms, agreed
from .mpi.communicators import Comm

Scan = Callable[..., Any]  # distscan.scan


class Options(NamedTuple):
    """How elements are scanned."""

    axis: int | None
    exclusive: bool
    reverse: bool
    initial: int | float | complex | None
    segmented: bool


class _Part(NamedTuple):
    """The scan of one array of real numbers: the real or the imaginary parts of complex ones."""

    x: Any
    out: Any
    segments: Any
    extents: Extents
    how: Options


def scan_exactly(
    scan: Scan,
    x: Any,
    *,
    comm: Comm | None,
    axis: Any,
    exclusive: Any,
    initial: Any,
    reverse: Any,
    dtype: Any,
    out: Any,
    segments: Any,
    strategy: Strategy,
    window: Any,
) -> Any:
    """Scan as ``distscan.scan``, which is ``scan``, does with ``op="fsum"``; collective."""
    with Agreement(comm) as checked:
        if x is None:
            raise TypeError("x is None; a scan takes an array or a sequence")
        given = x, out, segments
        native: list[Any] = [None if each is None else arrays.as_native(each) for each in given]
        array, target, flags = native
        extents = Extents.of(array.shape, axis_number(axis))
        result = result_type(array.dtype, None if target is None else target.dtype, dtype)
        if target is not None:
            check_out(out, target, array)
            if target.shape != extents.result_shape:
                raise ValueError(
                    f"out has shape {target.shape}; the result has {extents.result_shape}"
                )
        if flags is not None:
            check_memory("segments", flags, array)
            segmented.check_shape(flags, array)
            segmented.check_type(flags.dtype, extents)
        check_strategy(strategy, checked.comm.size if extents.goes_on else 1)
        first = None if initial is None else number_of(initial, result)
        how = Options(extents.axis, bool(exclusive), bool(reverse), first, flags is not None)
        limits = None if window is None else limits_of(window)
        checked.same = Terms(
            {
                "the function": "scan",
                "op": "fsum",
                "the dtype of x": array.dtype,
                "the dtype of the result": result,
                "the shape beyond axis 0": extents.shape[1:],
                "axis": extents.axis,
                "exclusive, reverse, initial": tuple(map(repr, how[1:])),
                "the dtype of segments": flags
                if flags is None
                else segmented.edge_dtype(flags.dtype),
                "window": limits,
            }
        )
    checked.settle()
    comm = checked.comm
    with arrays.on_device(array):
        with agreed(comm):
            xp = arrays.namespace(array)
            direct = target is not None and target.flags.c_contiguous and target.dtype == result
            sums = target if direct else xp.empty(extents.result_shape, result)
            if direct and arrays.overlap(array, sums):
                array = array.copy()
            if direct and flags is not None and arrays.overlap(flags, sums, in_place=False):
                flags = flags.copy()
            flags = None if flags is None else flags.reshape(-1)
        for of in (_real, _imag) if result.kind == "c" else (_real,):
            part = _Part(of(array), of(sums), flags, extents, how._replace(initial=of(first)))
            _scan_real(scan, part, limits, comm)
        if target is None:
            convert = arrays.converter(x)
            found = sums if convert is None else convert(sums)
        else:
            found = out
            if not direct:
                target[...] = sums
        arrays.release(*zip(given, native, strict=True))
        return found


def _scan_real(scan: Scan, part: _Part, limits: tuple[int, int] | None, comm: Comm) -> None:
    """Scan real numbers; collective."""
    extents, how = part.extents, part.how
    number: Any = 0 if how.initial is None else how.initial
    with agreed(comm):
        given = {"exclusive": how.exclusive, "reverse": how.reverse}
        shard = Shard(part.x, part.out, part.segments, extents, **given)
        own, special = shard.window()
        initial = Window.of_one(number)
        if limits is not None:
            check_window("x", own, limits, finite=not special & NOT_FINITE)
            check_window("initial", initial, limits, finite=math.isfinite(number))
    everyone = comm.allgather((own, special))
    window = reduce(Window.joined, [each for each, _ in everyone], initial)
    if limits is not None:
        window = Window(*limits, window.most)
    finite = number if math.isfinite(number) else 0
    first = before = np.array(window.split_one(finite), np.int64)[:, None]
    if extents.goes_on and comm.size > 1:
        with agreed(comm):
            total = shard.total(window)
        before = _before(scan, total, first, how, comm)
    codes = None
    if any(each for _, each in everyone) or code_of(number) != FINITE:
        with agreed(comm):
            own_codes = shard.codes()
        codes = scan(
            own_codes,
            "bitwise_or",
            comm=comm,
            axis=how.axis,
            exclusive=how.exclusive,
            reverse=how.reverse,
            segments=part.segments,
            initial=None if how.initial is None else code_of(number),
        )
    with agreed(comm):
        shard.scan(window, first, before)
        if codes is not None:
            shard.store_special(codes)


def _before(scan: Scan, total: Total, first: Any, how: Options, comm: Comm) -> Any:
    """Return the digits [digits, inner] of all that comes before this rank's shard; collective."""
    if how.segmented:
        everyone = comm.allgather(total)
        if how.reverse:
            everyone.reverse()
        rank = comm.size - 1 - comm.rank if how.reverse else comm.rank
        return _before_in_segments(everyone[: rank + 1], first)
    exclusive = {"exclusive": True, "reverse": how.reverse}
    return first + scan(total.digits[None], "sum", comm=comm, axis=0, **exclusive)[0]


def _before_in_segments(totals: list[Total], first: Any) -> Any:
    """Return what comes before the last shard of some, which are in scan order."""
    *earlier, own = [each for each in totals[:-1] if each.edges is not None] + totals[-1:]
    before, last = first, None
    for each in [*earlier, own]:
        if last is not None and each.edges is not None and last.leaves != each.edges.enters:
            before = first  # a segment begins between the shards
        if each is not own:
            before = each.digits + (first if each.head else before)
            last = each.edges
    return before


# ---- the parts of complex numbers ----------------------------------------------------------------


def _real(of: Any) -> Any:
    is_array = hasattr(of, "dtype")
    return of if of is None or (is_array and of.dtype.kind != "c") else of.real


def _imag(of: Any) -> Any:
    return None if of is None else of.imag
