"""The compiled kernels, as the library's tables list them, and the sweeps over a shard by them.

A sweep reduces a shard, or scans it from a seed. A block is a fixed number of elements. Threads
draw blocks in order, each has a slot for its prefix, and prefixes are combined in the order of
blocks. So the number of threads changes no bit.
"""

import ctypes
import functools
from collections.abc import Callable
from ctypes import (
    POINTER,
    Structure,
    addressof,
    byref,
    c_char,
    c_char_p,
    c_int,
    c_int64,
    c_void_p,
)
from itertools import count
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..core.dtypes import Types
from ..core.form import Extents, Form, chunks
from ..core.operators import (
    BUILTIN,
    MAPS,
    MAPS_IN_SEGMENTS,
    SKIPPING_NAN,
    Operator,
    load_into,
    unloaded,
)
from ..fsum.words import TWO_WORDS, FixedSum
from . import library, threads
from .chunked import store

# ---- the tables of kernels -------------------------------------------------------------------


class KernelArguments(Structure):
    """``Job`` of kernels/cpu/job.hpp: one call, on which all threads work together."""

    _fields_: ClassVar = [
        ("x", c_void_p),
        ("y", c_void_p),
        ("heads", c_void_p),
        ("find", c_void_p),
        ("before", c_void_p),
        ("first", c_void_p),
        ("slots", c_void_p),
        ("states", c_void_p),
        ("outer", c_int64),
        ("n", c_int64),
        ("inner", c_int64),
        ("x_step", c_int64),
        ("y_step", c_int64),
        ("block", c_int64),
        ("strip", c_int64),
        ("ticket", c_int64),
        ("end", c_int64),
        ("exclusive", c_int),
        ("reverse", c_int),
        ("before_row", c_int),
        ("stream", c_int),
        ("a", c_void_p),
        ("a_step", c_int64),
        ("a_column", c_int64),
        ("lowest", c_int64),
        ("low", c_int64),
        ("high", c_int64),
        ("outside", c_void_p),
    ]


Function = Callable[[Any], None]  # of a pointer to arguments
_Function = ctypes.CFUNCTYPE(None, POINTER(KernelArguments))  # runs without the interpreter's lock


class Kernel(Structure):
    """``Kernel`` of kernels/cpu/table.hpp: the functions for one operator and three types."""

    _fields_: ClassVar = [
        ("op", c_char_p),
        ("x", c_char_p),
        ("acc", c_char_p),
        ("out", c_char_p),
        ("scan", _Function),
        ("reduce", _Function),
        ("scan_columns", _Function),
        ("reduce_columns", _Function),
        ("total", _Function),
        ("seed", _Function),
    ]
    scan: Function
    reduce: Function
    scan_columns: Function
    reduce_columns: Function
    total: Function
    seed: Function


_TABLES = ("sum", "prod", "max", "min", "bitwise", "recurrence", "nan", "logaddexp", "fsum")


@functools.cache
def _tables(handle: ctypes.CDLL) -> dict[tuple[str, str, str, str], Kernel]:
    """Return the kernels of a library by operator, type of x, of the running value, of results."""
    kernels = {}
    for name in _TABLES:
        for kernel in library.entries(handle, f"distscan_{name}", Kernel):
            key = (kernel.op, kernel.x, kernel.acc, kernel.out)
            kernels[tuple(text.decode() for text in key)] = kernel
    return kernels


def find(op: Operator, types: Types) -> Kernel | None:
    """Return the kernel for an operator and three types; None if none is compiled."""
    op = unloaded(op)
    if BUILTIN.get(op.name) is not op:
        return None
    return _find(op.name, types)


def find_skipping_nan(op: Operator, types: Types) -> Kernel | None:
    """Return the kernel for elements of which ``op`` replaces NaN; it reads them as they are."""
    skips = SKIPPING_NAN.get(op.name) is op
    return _find(f"nan{op.name}", types) if skips else None


def find_fixed(op: Operator, types: Types) -> Kernel | None:
    """Return the kernel for exact sums of floats of a narrow window, and the type of results."""
    return _find("fsum", types) if isinstance(op, FixedSum) else None


def find_recurrence(op: Operator, types: Types) -> Kernel | None:
    """Return the kernel for a linear recurrence, of which ``h`` alone is stored; else None.

    The arrays that it reads have the type of ``h``.
    """
    if op not in {MAPS, MAPS_IN_SEGMENTS} or types.out.names != ("x1",):
        return None
    number = types.out["x1"]
    return _find(op.name, Types(number, types.acc["x1"], number))


def _find(name: str, types: Types) -> Kernel | None:
    if (loaded := library.load()) is None:
        return None
    names: Any = (name, *(_name(dtype) for dtype in types))
    return _tables(loaded.handle).get(names)


class Keys(Structure):
    """``Keys`` of kernels/cpu/keys.hpp: the function that finds the heads among keys of a type."""

    _fields_: ClassVar = [("type", c_char_p), ("find", c_void_p)]


def finder(keys: np.dtype[Any] | None) -> int | None:
    """Return the address of the function that finds heads among keys; None: no kernel has it."""
    if keys is None or (loaded := library.load()) is None:
        return None
    entries = library.entries(loaded.handle, "distscan_keys", Keys)
    return next((int(entry.find) for entry in entries if entry.type.decode() == keys.name), None)


@functools.cache  # NumPy takes 4 us to name a type
def _name(dtype: Any) -> str:
    if dtype == TWO_WORDS:
        return "fixed128"
    return dtype.name if dtype.isnative else ""


# ---- the sweeps ------------------------------------------------------------------------------

BLOCK = 1 << 17  # bytes of running values in a block: they stay in the L2 cache
_COLUMNS_BLOCK = 1 << 18  # the same for columns, whose prefixes are rows
_FEWEST_ROWS = 64  # in a block of columns: there is a prefix for 64 elements
_STRIP = 1 << 14  # bytes of running values in a row of a strip; WIDEST of kernels/cpu/columns.hpp
# The same where elements are converted: 64 rows of a strip, which a thread has a buffer for.
_CONVERTED_STRIP = 1 << 12
_SLOTS = 8 << 20  # bytes of slots: columns that need more are scanned in several bands
_BUFFERS = 16 << 20  # bytes of the buffers of all threads: more threads do not convert
# Results of so many bytes go past the caches, where that is faster: see stores.py. Smaller results
# stay in the caches for their readers.
_STREAMED = 8 << 20
_THREAD = 1 << 20  # bytes of input and results for which a thread is worth its start
_READY = 1  # the state of a slot; READY of kernels/cpu/job.hpp


class _Layout(NamedTuple):
    """How a kernel takes arrays of some strides."""

    function: Function
    run: Callable[[], object]  # calls the function, with the arguments that are set, in threads
    direct: bool  # whether the kernel is for the types of the arrays
    in_pieces: bool  # whether threads convert, or load, the elements of pieces
    x_step: int | None  # elements from a row to the next; None: not as they are
    y_step: int | None
    strip: int  # columns
    end: int  # of the numbers of blocks
    x_is_buffer: bool  # whether ``_begin_of`` takes the array
    y_is_buffer: bool


class CompiledSweeps:
    """The ``Sweeps`` of one form and type by one kernel, for one call at a time."""

    def __init__(
        self,
        op: Operator,
        types: Types,
        form: Form,
        kernel: Kernel,
        direct: Kernel | None,
        *,
        find: int | None,
        loads: bool = False,
        converted: tuple[np.dtype[Any], np.dtype[Any]] | None = None,
        exact: FixedSum | None = None,
        totals: bool,
        most: int,
        streams: bool | None = None,
    ) -> None:
        """Allocate the slots, for at most ``most`` threads; with ``totals``, also for totals.

        ``loads`` says that the operator loads elements by a function of Python. ``direct`` is the
        kernel for x and results in their types; with ``loads``, for loaded elements. ``kernel`` is
        the kernel for x and results in the types ``converted``, by default the type that
        accumulates, and loaded. ``find`` is the address of the function that finds the heads among
        keys; None if segments are flags. ``exact`` is the operator of exact sums. If it has a
        ``check``, kernels look for elements that are outside of its window. ``streams`` says
        whether results go past the caches; None: large ones do where that is faster.
        """
        extents = form.extents
        self._converted = converted or (types.acc, types.acc)
        self._op, self._acc, self._kernel, self._direct = op, types.acc, kernel, direct
        self._find = find
        self._loads, self._loaded = loads, loaded_type(types) if loads else types.acc
        self._lines = (extents.outer, extents.length)
        rows, size = extents.inner == 1, types.acc.itemsize
        self._rows, self._inner = rows, extents.inner
        # Columns of a long row have the blocks, and so the bits, of the whole row.
        self._block = block_of(extents.inner, size)
        self._blocks = -(-extents.length // self._block)
        fit = (self._block if rows else BLOCK // size // extents.inner) // extents.length
        self._height = max(1, min(extents.outer, fit))  # of a piece, in rows or matrices
        self._most, self._totals = most, totals
        self._work = extents.outer * extents.length * (types.x.itemsize + types.out.itemsize)
        self._first = form.seed  # the arguments have its address
        if streams is None:
            large = extents.size * types.out.itemsize >= _STREAMED
            streams = large and go_past_caches()
        self._streams = streams
        self._slots: NDArray[Any] | None = None
        self._states = np.empty(0, np.intc)
        #: The most columns whose slots there is room for.
        self._width = extents.inner
        if totals or self._blocks > 1:
            slots = extents.outer * (self._blocks + 1)
            self._width = max(1, min(extents.inner, _SLOTS // (slots * size)))
            self._slots = np.empty(slots * self._width, types.acc)
            strips = -(-self._width // min(self._width, _CONVERTED_STRIP // size))
            self._states = np.zeros(slots * strips, np.intc)
        self._arguments = KernelArguments(
            outer=extents.outer,
            n=extents.length,
            inner=extents.inner,
            block=self._block,
            exclusive=form.exclusive,
            reverse=form.reverse,
            first=address(form.seed) if form.segmented else None,
            slots=address(self._slots),
            states=address(self._states),
        )
        #: The layouts of the last arrays that were reduced and scanned, each after its key.
        self._layouts: dict[bool, tuple[tuple[Any, ...], _Layout]] = {}
        #: Runs the kernel as the last scan did; None if its arguments are not as they were then.
        self._run_again: Callable[[], object] | None = None
        self._outside = np.zeros(1, np.intc)  # see ``KernelArguments``
        self._checks = exact is not None and exact.check is not None
        if exact is not None:
            self._arguments.lowest, (self._arguments.low, self._arguments.high) = (
                exact.lowest,
                exact.limits,
            )

    @property
    def takes_keys(self) -> bool:
        """Whether ``heads`` may be keys."""
        return self._find is not None

    @property
    def window_violated(self) -> bool:
        """Whether the last call has seen an element outside of the window."""
        return bool(self._outside[0])

    @property
    def nbytes(self) -> int:
        """Bytes of memory that are kept between calls."""
        return self._states.nbytes + (0 if self._slots is None else self._slots.nbytes)

    def close(self) -> None:
        """Free the memory."""
        self._slots, self._states = None, np.empty(0, np.intc)
        self._run_again = None

    def repeat(self) -> bool:
        """Scan the last arrays again, without heads; return False if arguments must be set."""
        run = self._run_again
        if run is None:
            return False
        self._arguments.ticket = 0
        self._states.fill(0)
        self._outside[0] = 0
        run()
        return True

    def cut(self, x: Any, columns: slice) -> Any:
        """View some columns of an array, as [outer, n, width]."""
        x = x if x.ndim == 3 else x.reshape(*self._lines, self._inner)
        return x[..., columns]

    def reduce(self, x: Any, heads: NDArray[Any] | None) -> tuple[NDArray[Any], bool]:
        """Return the totals [inner] of ``x``, and whether a segment begins in it.

        A ``scan`` of the same ``x`` may follow: it uses the totals of blocks.
        """
        assert self._slots is not None
        self._outside[0] = 0
        width = self._inner if type(x) is np.ndarray and x.ndim == 1 else self._width_of(x)
        if width <= self._width:
            totals = self._reduce(x, heads, width)
        else:
            totals = np.empty(width, self._acc)
            for band in self._bands(width):
                totals[band] = self._reduce(self.cut(x, band), heads, band.stop - band.start)
        return totals, bool(self._states[0])

    def scan(
        self,
        x: Any,
        out: Any,
        heads: NDArray[Any] | None,
        before: NDArray[Any] | None,
        *,
        reduced: bool = False,
    ) -> NDArray[Any] | None:
        """Scan ``x`` into ``out``, as ``Sweeps.scan`` in sweeps.py says."""
        width = self._inner if type(x) is np.ndarray and x.ndim == 1 else self._width_of(x)
        if not reduced and self._checks:
            self._outside[0] = 0
        if width <= self._width:
            return self._scan(x, out, heads, before, width, reduced=reduced)
        totals = np.empty(width, self._acc) if self._totals else None
        for band in self._bands(width):
            seed = before if before is None or before.ndim == 0 else before[band]
            arrays = self.cut(x, band), self.cut(out, band), heads, seed, band.stop - band.start
            last = self._scan(*arrays, reduced=False)
            if totals is not None:
                totals[band] = last
        return totals

    def _width_of(self, x: Any) -> int:
        """Return the number of columns of an array: all, unless it was ``cut``."""
        return int(x.shape[2]) if x.ndim == 3 else self._inner

    def _bands(self, width: int) -> list[slice]:
        """Return the columns for which there are slots at a time."""
        return [slice(*band) for band in chunks(0, width, self._width)]

    def _reduce(self, x: Any, heads: NDArray[Any] | None, width: int) -> NDArray[Any]:
        arguments, layout = self._new_arguments(heads, width), self._layout_of(x, None, width)
        if not layout.in_pieces:
            arguments.x = addressof(_begin_of(x)) if layout.x_is_buffer else x.ctypes.data
            arguments.x_step = arguments.y_step = layout.x_step
            arguments.strip, arguments.end = layout.strip, layout.end
            layout.run()
        else:
            dtype = self._loaded if layout.direct else self._converted[0]
            self._run_in_pieces(layout.function, arguments, x, dtype)
        assert self._slots is not None
        self._kernel.total(byref(arguments))
        return self._slots[:width]

    def _scan(
        self,
        x: Any,
        out: Any,
        heads: NDArray[Any] | None,
        before: NDArray[Any] | None,
        width: int,
        *,
        reduced: bool,
    ) -> NDArray[Any] | None:
        arguments = self._arguments if reduced else self._new_arguments(heads, width)
        arguments.ticket = 0
        if reduced:
            arguments.outside = None
        arguments.before = None
        if before is not None:
            before = np.ascontiguousarray(before, self._acc)
            arguments.before, arguments.before_row = address(before), before.size > 1
        layout = self._layout_of(x, out, width)
        arguments.stream, arguments.strip, arguments.end = 0, layout.strip, layout.end
        if reduced:
            self._kernel.seed(byref(arguments))
        if layout.direct:
            begin = addressof(_begin_of(x)) if layout.x_is_buffer else x.ctypes.data
            target = addressof(_begin_of(out)) if layout.y_is_buffer else out.ctypes.data
            arguments.x, arguments.x_step = begin, layout.x_step
            arguments.y, arguments.y_step = target, layout.y_step
            # In place, the lines of x are in the caches: there the results find them.
            arguments.stream = self._streams and begin != target
        if not layout.in_pieces:
            layout.run()
            if heads is None and before is None and not reduced and width == self._inner:
                self._run_again = layout.run
        elif layout.direct:
            self._run_in_pieces(layout.function, arguments, x, self._loaded)
        else:
            self._run_in_pieces(layout.function, arguments, x, self._converted[0], out)
        if self._slots is None:
            return None
        last = self._blocks * width  # of the first matrix
        return self._slots[last : last + width]

    def _new_arguments(self, heads: NDArray[Any] | None, width: int) -> KernelArguments:
        arguments, self._run_again = self._arguments, None
        arguments.ticket, arguments.inner, arguments.heads, arguments.find = 0, width, None, None
        if heads is not None:
            arguments.heads = address(heads)
            arguments.find = None if heads.dtype == np.bool_ else self._find
        self._states.fill(0)
        if self._checks:
            arguments.outside = address(self._outside)
        return arguments

    def _layout_of(self, x: Any, out: Any, width: int) -> _Layout:
        """Return the layout for a scan of ``x`` into ``out``, or, if ``out`` is None, a reduction.

        That of the last arrays is kept, for others that are alike.
        """
        key: tuple[Any, ...] = width, x.strides, x.flags.num, x.dtype.isnative
        if out is not None:
            key = *key, out.strides, out.flags.num, out.dtype.isnative
        last, layout = self._layouts.get(out is None, (None, None))
        if layout is None or key != last:
            layout = self._new_layout(x, out, width)
            self._layouts[out is None] = key, layout
        return layout

    def _new_layout(self, x: Any, out: Any, width: int) -> _Layout:
        step = self._step(x, width)
        y_step = step if out is None else self._step(out, width)
        direct = None if step is None or y_step is None else self._direct
        kernel, in_pieces = direct or self._kernel, direct is None or self._loads
        if out is None:
            function = kernel.reduce if self._rows else kernel.reduce_columns
        else:
            function = kernel.scan if self._rows else kernel.scan_columns
        self._cut_strips(self._arguments, _CONVERTED_STRIP if in_pieces else _STRIP)
        return _Layout(
            function,
            self._in_threads(functools.partial(function, byref(self._arguments)), width),
            direct is not None,
            in_pieces,
            step,
            y_step,
            self._arguments.strip,
            self._arguments.end,
            _is_buffer(x),
            _is_buffer(out),
        )

    def _step(self, array: Any, width: int) -> int | None:
        """Return the elements from a row of ``width`` columns to the next.

        None if kernels do not take the array as it is, because its elements are not aligned, of
        another byte order, or not one after the other.
        """
        flags = array.flags
        if not (flags.aligned and array.dtype.isnative):
            return None
        if flags.c_contiguous:
            return width
        if array.ndim < 3 or self._rows:
            return None
        (outer, n), (matrix, row, column), size = self._lines, array.strides, array.itemsize
        regular = row > 0 and row % size == 0 and (outer == 1 or matrix == n * row)
        return row // size if regular and (column == size or width == 1) else None

    def _cut_strips(self, arguments: KernelArguments, nbytes: int) -> None:
        """Set the strips of a call, of so many bytes of running values in a row, and their end."""
        outer, width = self._lines[0], arguments.inner
        arguments.strip = min(width, nbytes // self._acc.itemsize)
        rows = -(-outer // self._height) if self._rows else outer * -(-width // arguments.strip)
        arguments.end = rows * self._blocks

    def _in_threads(
        self, work: Callable[[], object], width: int, most: int | None = None
    ) -> Callable[[], object]:
        """Return a function that calls ``work`` in at most ``most`` threads, if it is enough."""
        number = min(self._most, self._work * width // _THREAD)
        number = number if most is None else min(number, most)
        if number <= 1:
            return work
        stop = functools.partial(self._states.fill, _READY)  # no reference to ``self``: no cycle
        return functools.partial(threads.run, work, number, stop)

    def _run_in_pieces(
        self,
        function: Function,
        arguments: KernelArguments,
        x: NDArray[Any],
        dtype: np.dtype[Any],
        out: NDArray[Any] | None = None,
    ) -> None:
        """Run a kernel on pieces of ``x`` that threads convert, or load.

        A piece is some columns of a block, or several short rows, in a buffer of ``dtype``. Its
        arguments are those of the call, but its arrays begin at addresses for which the elements of
        the piece lie in the buffer. With ``out``, results are written to the buffer, or to another
        one of their type, and then converted.
        """
        self._cut_strips(arguments, _CONVERTED_STRIP)
        (outer, n), op, to, columns = self._lines, self._op, self._converted[1], arguments.inner
        x = x.reshape(outer, n, columns)
        results = None if out is None else out.reshape(outer, n, columns)
        height, length, strip = self._height, min(self._block, n), arguments.strip
        strips = -(-columns // strip)
        width = columns
        if height == 1:  # as many strips as make a buffer of a block
            at_once = BLOCK // self._acc.itemsize // (length * strip)
            width = min(columns, max(1, at_once) * strip)
        across = -(-columns // width)
        size = height * length * width
        tickets = count()  # numbers of pieces; next() is atomic

        def work() -> None:
            buffer = np.empty(size, dtype)
            stored = buffer if results is None or to == dtype else np.empty(size, to)
            while (piece := next(tickets)) < -(-outer // height) * self._blocks * across:
                left, b = piece % across * width, piece // across % self._blocks
                top = piece // across // self._blocks * height
                low, high = b * length, min(n, (b + 1) * length)
                if arguments.reverse:
                    low, high = n - high, n - low
                where = slice(top, top + height), slice(low, high), slice(left, left + width)
                source = x[where]
                elements = buffer[: source.size].reshape(source.shape)
                if op.load is None:
                    store(source, elements)
                else:
                    load_into(op.name, op.load, source, elements)
                part = KernelArguments.from_buffer_copy(arguments)
                part.x_step = source.shape[2]
                begin = (top * n + low) * source.shape[2] + left
                part.x = buffer.ctypes.data - begin * buffer.itemsize
                if results is not None:
                    part.y_step = source.shape[2]
                    part.y = stored.ctypes.data - begin * stored.itemsize
                part.ticket, part.end = piece, piece + 1
                if not self._rows:
                    part.ticket = (top * self._blocks + b) * strips + left // strip
                    part.end = part.ticket + len(source) * -(-source.shape[2] // strip)
                function(byref(part))
                if results is not None:
                    store(stored[: source.size].reshape(source.shape), results[where])

        nbytes = size * (dtype.itemsize + (0 if results is None or to == dtype else to.itemsize))
        self._in_threads(work, columns, max(1, _BUFFERS // nbytes))()


def go_past_caches() -> bool:
    """Return whether large results go past the caches: see ``stores.go_past_caches``."""
    from . import stores  # noqa: PLC0415 - large results alone need it, and what it imports

    return stores.go_past_caches(_make_scan)


_LARGE = 4 << 20  # elements of float64: more than caches have


def _make_scan() -> Callable[[bool], object]:
    """Return a scan of a large array, whose results go past the caches or do not."""
    op, number = BUILTIN["sum"], np.dtype(np.float64)
    types, form = Types(number, number, number), Form(Extents(length=_LARGE))
    kernel = find(op, types)
    assert kernel is not None, "every library has it"
    x, out = np.ones(_LARGE), np.ones(_LARGE)
    sweeps = {
        past: CompiledSweeps(
            op, types, form, kernel, kernel, find=None, totals=False, most=1, streams=past
        )
        for past in (False, True)
    }
    return lambda past: sweeps[past].scan(x, out, None, None)


def loaded_type(types: Types) -> np.dtype[Any]:
    """Return the type in which elements are loaded: the one that accumulates on GPUs.

    Sums of float32 accumulate in float64 on CPUs alone.

    >>> f4, f8 = np.dtype("f4"), np.dtype("f8")
    >>> loaded_type(Types(f4, f8, f4)), loaded_type(Types(f4, f8, f8))
    (dtype('float32'), dtype('float64'))
    """
    return types.out if types.x == types.out == np.float32 else types.acc


def block_of(inner: int, size: int) -> int:
    """Return the length along n of a block, for running values of ``size`` bytes.

    >>> block_of(1, 8), block_of(2048, 8)
    (16384, 64)
    """
    if inner == 1:
        return BLOCK // size
    return max(_FEWEST_ROWS, _COLUMNS_BLOCK // (inner * size))


#: The first byte of an array that is a writable buffer. To find it takes a third of the time that
#: ``array.ctypes`` takes.
_begin_of = c_char.from_buffer


def _is_buffer(array: Any) -> bool:
    """Return whether an array is a writable buffer; so are all others with its flags and type."""
    try:
        _begin_of(array)
    except (TypeError, ValueError):
        return False
    return True


def address(array: NDArray[Any] | None) -> int | None:
    """Return the address of an array's memory; None for None."""
    if array is None:
        return None
    # The interface of a structure lists its fields, which takes longer.
    return array.ctypes.data if array.dtype.names else array.__array_interface__["data"][0]
