"""``fsum``: every prefix is the exact sum of all elements up to it, rounded once.

::

    1. window   the bits that the elements of all ranks need              MPI_Allreduce
    2. total    each rank adds the integers of its shard                  MPI_Exscan
    3. scan     each rank scans integers, seeded with its offset; each sum is rounded on the store

Integers add exactly in any order. So the result depends on the elements alone: not on ranks, cuts,
devices or strategies. Steps 2 and 3 are a scan by an operator like any other. In a narrow window
its running value is an integer of one or two words (``core/fixed_sum.py``). In a wide one it has
several digits (``core/digit_sum.py``).
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from .binding import threads as thread_count
from .build import Strategy, adds_exactly
from .core import arrays
from .core import segments as segmented
from .core.digit_sum import digit_sum
from .core.digits import encode
from .core.extents import Extents, axis_number
from .core.fixed import Window
from .core.special import NEGATIVE_ZERO, NOT_FINITE, code_of
from .cpu import windows
from .decide import check_memory, check_out
from .exact_check import check_strategy, check_window, limits_of, number_of, result_type
from .exact_special import bands, codes_of_all, firsts, store_codes
from .exact_window import Own, agree, check_of, window_of, without_zeros
from .mpi.agree import Agreement, Terms

Scan = Callable[..., Any]  # the body of distscan.scan


class Options(NamedTuple):
    """How elements are scanned."""

    axis: int | None
    exclusive: bool
    reverse: bool
    initial: int | float | complex | None
    strategy: Strategy
    threads: int | None


class _Part(NamedTuple):
    """The scan of one array of real numbers: the real or the imaginary parts of complex ones."""

    x: Any
    out: Any
    segments: Any
    extents: Extents
    how: Options
    call: Agreement
    scan: Scan

    def scanned(self, x: Any, op: Any, initial: Any, **options: Any) -> Any:
        """Scan ``x`` as the elements of this part are scanned; collective, by steps as ``scan``."""
        how = self.how
        return self.scan(
            self.call,
            x,
            op,
            axis=how.axis,
            exclusive=how.exclusive,
            reverse=how.reverse,
            segments=self.segments,
            initial=None if how.initial is None else initial,
            threads=how.threads,
            **options,
        )


def scan_exactly(
    scan: Scan,
    call: Agreement,
    x: Any,
    *,
    axis: Any,
    exclusive: Any,
    initial: Any,
    reverse: Any,
    dtype: Any,
    out: Any,
    segments: Any,
    strategy: Strategy,
    threads: int | None,
    window: Any,
) -> Any:
    """Scan as ``distscan.scan``, whose body is ``scan``, does with ``op="fsum"``; collective."""
    if x is None:
        raise TypeError("x is None; a scan takes an array or a sequence")
    given = x, out, segments
    array = arrays.as_native(x)
    target = None if out is None else arrays.as_target(out)
    flags = None if segments is None else arrays.as_native(segments, "segments")
    native = array, target, flags
    extents = Extents.of(array.shape, axis_number(axis))
    result = result_type(array.dtype, None if target is None else target.dtype, dtype)
    if target is not None:
        check_out(out, target, array)
        if target.shape != extents.result_shape:
            raise ValueError(f"out has shape {target.shape}; the result has {extents.result_shape}")
    if flags is not None:
        check_memory("segments", flags, array)
        segmented.check_shape(flags, array)
        segmented.check_type(flags.dtype, extents)
    check_strategy(strategy, call.comm.size if extents.goes_on else 1)
    first = None if initial is None else number_of(initial, result)
    form = extents.axis, bool(exclusive), bool(reverse), first
    how = Options(*form, strategy, threads)
    limits = None if window is None else limits_of(window)
    call.same = Terms(
        {
            "the function": "scan",
            "op": "fsum",
            "the dtype of x": array.dtype,
            "the dtype of the result": result,
            "the shape beyond axis 0": extents.shape[1:],
            "axis": extents.axis,
            "exclusive, reverse, initial": tuple(map(repr, form[1:])),
            "the dtype of segments": flags if flags is None else segmented.edge_dtype(flags.dtype),
            "window": limits,
        }
    )
    call.begin()
    with arrays.on_device(array):
        xp = arrays.namespace(array)
        direct = target is not None and target.flags.c_contiguous and target.dtype == result
        sums = target if direct else xp.empty(extents.result_shape, result)
        if direct and arrays.overlap(array, sums):
            array = array.copy()
        if direct and flags is not None and arrays.overlap(flags, sums, in_place=False):
            flags = flags.copy()
        flags = None if flags is None else flags.reshape(-1)
        for of in (_real, _imag) if result.kind == "c" else (_real,):
            its = how._replace(initial=of(first))
            _scan_real(_Part(of(array), of(sums), flags, extents, its, call, scan), limits)
        if target is None:
            convert = arrays.converter(x)
            found = sums if convert is None else convert(sums)
        else:
            found = out
            if not direct:
                target[...] = sums
        arrays.release(*zip(given, native, strict=True))
        return found


def _own(part: _Part, limits: tuple[int, int] | None) -> Own:
    """Find what this rank knows of its elements: their window, and what is special; local.

    Kernels check elements of a named window as they add them. Only -0.0 must be known before.
    """
    x, how, check = part.x, part.how, None
    starts = firsts(x, part.extents.axis, reverse=how.reverse) if part.segments is None else None
    if limits is None or (starts is None and without_zeros(NEGATIVE_ZERO, None, how.initial)):
        # The number of threads is asked for only if several can share the array: it takes 7 us.
        one = arrays.is_cuda(x) or x.nbytes <= windows.PART
        window, special = window_of(x, 1 if one else thread_count(how.threads))
        if limits is not None:
            check_window("x", window, limits, finite=not special & NOT_FINITE)
    else:
        window = Window(*limits, x.size) if x.size > 0 else Window(0, 0, 0)
        special, check = NEGATIVE_ZERO, check_of(limits)
    special = without_zeros(special, starts, how.initial)
    compiled = adds_exactly(x.dtype, part.out.dtype, arrays.gpu(x))
    return Own(window, special, compiled, (x.dtype, part.out.dtype), check)


def _scan_real(part: _Part, limits: tuple[int, int] | None) -> None:
    """Scan real numbers; collective. The first step is open, and the last one stays open."""
    extents, how, call = part.extents, part.how, part.call
    number: Any = 0 if how.initial is None else how.initial
    own = _own(part, limits)
    if limits is not None:
        check_window("initial", Window.of_one(number), limits, finite=math.isfinite(number))
    call.settle()
    most = extents.n * (call.comm.size if extents.goes_on else 1)
    window, has_special, words = agree(call.comm, own, number, limits, most)
    call.begin()
    given: Any = {"out": part.out, "dtype": part.out.dtype, "strategy": how.strategy}
    if words is None:
        if own.check is not None:
            own.check(part.x)
        digits = digit_sum(window)
        part.scanned(part.x, digits, encode(digits, number), **given)
        return
    if not has_special:
        part.scanned(part.x, words, words.encode(number), **given)
        return
    first = words.encode(number if math.isfinite(number) else 0)
    for x, out in _in_bands(part, (window.most - 1) // call.comm.size):
        codes = codes_of_all(x).reshape(out.shape)
        part.scanned(codes, "bitwise_or", code_of(number), out=codes)
        part.scanned(x, words, first, **given | {"out": out})
        store_codes(codes, out)


def _in_bands(part: _Part, n: int) -> Iterator[tuple[Any, Any]]:
    """Yield elements and results, some columns at a time: their codes need memory.

    ``n`` is the most rows of a rank: so every rank has the same columns. Other axes have one band.
    """
    extents, x, out = part.extents, part.x, part.out
    if not (extents.goes_on and extents.has_rows):
        yield x, out
        return
    x, out = (array.reshape(extents.n, extents.inner) for array in (x, out))
    for band in bands(extents.inner, n):
        yield x[:, band], out[:, band]


# ---- the parts of complex numbers ----------------------------------------------------------------


def _real(of: Any) -> Any:
    is_array = hasattr(of, "dtype")
    return of if of is None or (is_array and of.dtype.kind != "c") else of.real


def _imag(of: Any) -> Any:
    return None if of is None else of.imag
