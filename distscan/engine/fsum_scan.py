"""``fsum``: every prefix is the exact sum of all elements up to it, rounded once.

::

    1. window   the bits that the elements of all ranks need              MPI_Allreduce
    2. total    each rank adds the integers of its shard                  MPI_Exscan
    3. scan     each rank scans integers, seeded with its offset; each sum is rounded on the store

Integers add exactly in any order. So the result depends on the elements alone: not on ranks, cuts,
devices or strategies. Steps 2 and 3 are a scan by an operator like any other. In a narrow window
its running value is an integer of one or two words, in a wide one several digits
(``fsum/words.py``).
"""

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ..binding import threads as thread_count
from ..core import arrays
from ..core import segments as segmented
from ..core.form import Extents
from ..core.operators import BUILTIN
from ..cpu import reductions
from ..fsum.request import check_strategy, check_window, number_of, result_type
from ..fsum.special import (
    FINITE,
    NEGATIVE_ZERO,
    NOT_FINITE,
    bands,
    chunks,
    code_of,
    codes,
    codes_of_all,
    firsts,
    has_negative_zero,
    is_negative_zero,
    special_bits,
    store_codes,
)
from ..fsum.window import Window, magnitudes
from ..fsum.words import Check, FixedSum, digit_sum, narrowest_accumulator
from ..mpi.agree import Agreement, Terms
from ..mpi.communicators import Comm, allreduce_max
from ..options import RunOptions, ScanOptions, ScanRequest
from . import cache
from .array_scan import check_memory, check_out, scan_array
from .shard_scan import adds_exactly

BITWISE_OR = BUILTIN["bitwise_or"]


class _Part(NamedTuple):
    """The scan of one array of real numbers: the real or the imaginary parts of complex ones."""

    x: Any
    out: Any
    segments: Any
    extents: Extents
    options: ScanOptions  # initial is a number of Python, or None
    run_options: RunOptions
    call: Agreement

    def scan(self, x: Any, out: Any, op: Any, initial: Any, **types: Any) -> Any:
        """Scan ``x`` into ``out`` by an operator, in the form of this part; collective."""
        first = None if self.options.initial is None else initial
        options = self.options._replace(op=op, window=None, initial=first, **types)
        request = ScanRequest(x, out, self.segments, options, self.run_options)
        return scan_array(self.call, request)


def scan_exactly(call: Agreement, request: ScanRequest) -> Any:
    """Scan with ``op="fsum"``; collective. The last step of the agreement stays open."""
    x, out, segments, options, run_options = request
    if x is None:
        raise TypeError("x is None; a scan takes an array or a sequence")
    given = x, out, segments
    array = arrays.as_native(x)
    target = None if out is None else arrays.as_target(out)
    flags = None if segments is None else arrays.as_native(segments, "segments")
    native = array, target, flags
    extents = Extents.of(array.shape, options.axis)
    result = result_type(array.dtype, None if target is None else target.dtype, options.dtype)
    if target is not None:
        check_out(out, target, array)
        if target.shape != extents.result_shape:
            raise ValueError(f"out has shape {target.shape}; the result has {extents.result_shape}")
    if flags is not None:
        check_memory("segments", flags, array)
        segmented.check_shape(flags, array)
        segmented.check_type(flags.dtype, extents)
    check_strategy(run_options.strategy, call.comm.size if extents.goes_on else 1)
    first = None if options.initial is None else number_of(options.initial, result)
    resolved = options._replace(
        axis=extents.axis,
        dtype=result,
        segments=None if flags is None else flags.dtype,
        initial=repr(first),  # of -0.0 and 0.0 it differs
    )
    call.same = _terms(resolved, array.dtype, extents.shape[1:])
    with arrays.on_device(array):
        xp = arrays.namespace(array)
        direct = target is not None and target.flags.c_contiguous and target.dtype == result
        sums = target if direct else xp.empty(extents.result_shape, result)
        if direct and arrays.overlap(array, sums):
            array = array.copy()
        if direct and flags is not None and arrays.overlap(flags, sums, in_place=False):
            flags = flags.copy()
        flags = None if flags is None else flags.reshape(-1)
        parts = []
        for of in (_real, _imag) if result.kind == "c" else (_real,):
            of_part = options._replace(initial=of(first))
            parts.append(_Part(of(array), of(sums), flags, extents, of_part, run_options, call))
        _scan_parts(parts)
        if target is None:
            convert = arrays.converter(x)
            found = sums if convert is None else convert(sums)
        else:
            found = out
            if not direct:
                target[...] = sums
        arrays.release(*zip(given, native, strict=True))
        return found


@lru_cache(maxsize=32)  # a dtype takes microseconds to name
def _terms(resolved: ScanOptions, x: np.dtype[Any], shape: tuple[int, ...]) -> Terms:
    """Return the terms of a scan by fsum."""
    arrays_of_ranks = {"the dtype of x": x, "the shape beyond axis 0": shape}
    return Terms({"the function": "scan", "op": "fsum", **arrays_of_ranks, **resolved.compared()})


def _local_window(part: _Part) -> "LocalWindow":
    """Find what this rank knows of its elements: their window, and what is special; local.

    Kernels check elements of a named window as they add them. Only -0.0 must be known before.
    """
    x, options, check = part.x, part.options, None
    limits, initial, starts = options.window, options.initial, None
    if part.segments is None:
        starts = firsts(x, part.extents.axis, reverse=options.reverse)
    if limits is None or (starts is None and without_zeros(NEGATIVE_ZERO, None, initial)):
        # The number of threads is asked for only if several can share the array: it takes 7 us.
        one = arrays.is_cuda(x) or x.nbytes <= reductions.PART
        window, special = window_of(x, 1 if one else thread_count(part.run_options.threads))
        if limits is not None:
            check_window("x", window, limits, finite=not special & NOT_FINITE)
    else:
        window = Window(*limits, x.size) if x.size > 0 else Window(0, 0, 0)
        special, check = NEGATIVE_ZERO, check_of(limits)
    special = without_zeros(special, starts, initial)
    compiled = adds_exactly(x.dtype, part.out.dtype, arrays.gpu(x))
    return LocalWindow(window, special, compiled, (x.dtype, part.out.dtype), check)


def _scan_parts(parts: list[_Part]) -> None:
    """Scan the parts of numbers, one after the other; collective.

    The step that is open has the arguments. One vote and one exchange of windows serve all parts.
    The last step stays open.
    """
    extents, call, limits = parts[0].extents, parts[0].call, parts[0].options.window
    numbers = [0 if part.options.initial is None else part.options.initial for part in parts]
    local = [_local_window(part) for part in parts]
    if limits is not None:
        for number in numbers:
            check_window("initial", Window.of_one(number), limits, finite=math.isfinite(number))
    call.settle()
    most = extents.length * (call.comm.size if extents.goes_on else 1)
    windows = agree(call.comm, local, numbers, limits, most)
    call.begin()
    for part, number, window, check in zip(
        parts, numbers, windows, [each.check for each in local], strict=True
    ):
        _scan_real(part, number, window, check)


def _scan_real(part: _Part, number: Any, agreed: "GlobalWindow", check: Check | None) -> None:
    """Scan real numbers by an operator of their window; collective.

    ``number`` comes before the first element. A step is open before and after.
    """
    window, has_special, words = agreed
    dtype = part.out.dtype
    if words is None:
        if check is not None:
            check(part.x)
        digits = digit_sum(window)
        part.scan(part.x, part.out, digits, digits.encode(number), dtype=dtype)
        return
    if not has_special:
        part.scan(part.x, part.out, words, words.encode(number), dtype=dtype)
        return
    seed = words.encode(number if math.isfinite(number) else 0)
    for x, out in _in_bands(part, (window.most - 1) // part.call.comm.size):
        codes = codes_of_all(x).reshape(out.shape)
        part.scan(codes, codes, BITWISE_OR, code_of(number), dtype=None)
        part.scan(x, out, words, seed, dtype=dtype)
        store_codes(codes, out)


def _in_bands(part: _Part, n: int) -> Iterator[tuple[Any, Any]]:
    """Yield elements and results, some columns at a time: their codes need memory.

    ``n`` is the most rows of a rank: so every rank has the same columns. Other axes have one band.
    """
    extents, x, out = part.extents, part.x, part.out
    if not (extents.goes_on and extents.has_rows):
        yield x, out
        return
    x, out = (array.reshape(extents.length, extents.inner) for array in (x, out))
    for band in bands(extents.inner, n):
        yield x[:, band], out[:, band]


# ---- the parts of complex numbers ----------------------------------------------------------------


def _real(of: Any) -> Any:
    is_array = hasattr(of, "dtype")
    return of if of is None or (is_array and of.dtype.kind != "c") else of.real


def _imag(of: Any) -> Any:
    return None if of is None else of.imag


# ---- the window of one rank ----------------------------------------------------------------------


class LocalWindow(NamedTuple):
    """What one rank knows of its elements."""

    window: Window
    special: int  # codes of fsum/special.py: what is not finite, and -0.0 where it matters
    compiled: bool  # whether kernels take its arrays
    types: tuple[np.dtype[Any], np.dtype[Any]]  # of the elements, and of the results
    check: Check | None  # of elements that were not looked at yet


def window_of(x: Any, threads: int = 1) -> tuple[Window, int]:
    """Return the window of the elements of an array, and what is special among them.

    ``threads`` is the most threads that look. Kernels look where there are any.
    """
    if x.dtype.kind == "c":
        (real, special), (imag, other) = window_of(x.real, threads), window_of(x.imag, threads)
        return real.joined(imag), special | other
    if x.size > 0 and x.dtype.kind not in "biu":
        found = _on_gpu(x) if arrays.is_cuda(x) else reductions.find_window(x, threads)
        if found is not None:
            return found
    xp, window, special = arrays.namespace(x), Window(0, 0, 0), 0
    for (chunk,) in chunks(x):
        window = window.joined(Window.of(xp, magnitudes(xp, chunk)))
        special |= special_bits(codes(xp, chunk))
    return window, special


@lru_cache(maxsize=64)  # always the same function, so that cached plans are found
def check_of(limits: tuple[int, int], name: str = "x") -> Check:
    """Return the function that raises ValueError if elements are beyond the caller's window."""

    def check(x: Any) -> None:
        window, special = window_of(x)
        check_window(name, window, limits, finite=not special & NOT_FINITE)

    return check


def _on_gpu(x: Any) -> tuple[Window, int] | None:
    """Return the same by a kernel; None if numbers are not finite, which it does not leave out."""
    from ..cuda.reductions import BitRangeOf  # noqa: PLC0415 - a CPU job need not have CuPy

    x = arrays.namespace(x).ascontiguousarray(x).reshape(-1)
    gpu, _, stream = arrays.where(x)
    key = "bit range", gpu, stream, x.dtype, x.size
    kept, kind = cache.acquire(key)
    kept = kept or BitRangeOf(x.dtype, x.size)
    found = kept(x)
    cache.release(key, kept, kind)
    if not found.finite:
        return None
    return Window(found.low, found.high, x.size), NEGATIVE_ZERO * found.negative_zero


def without_zeros(special: int, starts: Any, initial: Any) -> int:
    """Return what is special, without -0.0 if no sum can be -0.0.

    Only a sum whose elements all are -0.0 is. So the first element must be. ``starts`` are the
    first elements of all scans; None: they are not known.
    """
    if special & NEGATIVE_ZERO:
        can_be = initial is None or is_negative_zero(code_of(initial))
        if not can_be or (starts is not None and not has_negative_zero(starts)):
            special &= ~NEGATIVE_ZERO
    return special


# ---- the window of all ranks ---------------------------------------------------------------------

_NONE = 1 << 20  # stands for an exponent where there is none: beyond those of all numbers


class GlobalWindow(NamedTuple):
    """What all ranks know."""

    window: Window  # of all elements, and of ``initial``
    special: bool  # whether a result may be infinite, NaN or -0.0
    words: FixedSum | None  # None: kernels do not hold the sums, or a rank has none


def agree(
    comm: Comm,
    local: list[LocalWindow],
    numbers: list[Any],
    limits: tuple[int, int] | None,
    most: int,
) -> list[GlobalWindow]:
    """Agree on windows that hold the elements of all ranks, one for each part; collective.

    ``numbers`` come before the first element, one for each part. ``limits`` are those that the
    caller has named. ``most`` is the number of elements of one sum, if all ranks have as many as
    this one.
    """
    numbers_of_all = [each for part in local for each in _as_maxima(part, limits, most)]
    maxima = allreduce_max(comm, numbers_of_all)
    windows = []
    for i, (part, number) in enumerate(zip(local, numbers, strict=True)):
        negative, high, most, not_compiled, special = maxima[5 * i : 5 * i + 5]
        low = -negative
        window = Window(low, high, most) if low < high else Window(0, 0, most)
        window = window.joined(Window.of_one(number))
        words = None if not_compiled else narrowest_accumulator(window, *part.types, part.check)
        windows.append(GlobalWindow(window, bool(special) or code_of(number) != FINITE, words))
    return windows


def _as_maxima(part: LocalWindow, limits: tuple[int, int] | None, most: int) -> list[int]:
    """Return five numbers of a part, whose maxima over all ranks tell its ``GlobalWindow``."""
    low, high = part.window[:2] if limits is None else limits
    if part.window.is_empty:
        low, high = _NONE, -_NONE
    return [-low, high, most, not part.compiled, part.special != 0]
