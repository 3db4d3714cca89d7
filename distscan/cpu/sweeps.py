"""The sweeps over a shard, of which strategies consist: by compiled kernels, or by NumPy."""

import functools
from ctypes import byref
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..core.dtypes import Types, cast, fields
from ..core.form import Form
from ..core.operators import Operator
from ..fsum.words import ONE_WORD, TWO_WORDS, FixedSum, fixed_sum
from . import chunked, compiled, library
from .compiled import _STRIP, CompiledSweeps, Kernel, KernelArguments, address, loaded_type


class Sweeps(Protocol):
    """The sweeps of one form and type. Heads are bool [n] in the order of memory.

    They need little memory beside the arrays, whatever the length of rows. Totals are valid until
    the next sweep.
    """

    @property
    def takes_keys(self) -> bool:
        """Whether ``heads`` may also be keys [n], contiguous and of the form's type."""

    @property
    def window_violated(self) -> bool:
        """Whether the last call has seen an element outside of a window that it checks.

        A scan that is ``reduced`` looks at none.
        """

    @property
    def nbytes(self) -> int:
        """Bytes of memory that are kept between calls."""

    def close(self) -> None:
        """Free the memory."""

    def cut(self, x: Any, columns: slice) -> Any:
        """View some columns of ``x`` or ``out``, which ``reduce`` and ``scan`` take, too."""

    def reduce(self, x: NDArray[Any], heads: NDArray[Any] | None) -> tuple[NDArray[Any], bool]:
        """Return the totals [inner] of ``x``, and whether a segment begins in it.

        With segments, the total is that of the elements from the last head on.
        """

    def scan(
        self,
        x: NDArray[Any],
        out: NDArray[Any],
        heads: NDArray[Any] | None,
        before: NDArray[Any] | None,
        *,
        reduced: bool = False,
    ) -> NDArray[Any] | None:
        """Scan ``x`` into ``out``, which may be ``x``; return the totals [inner] of a single scan.

        ``before``, 0-d or [inner], comes before the first element, and counts in the totals.
        ``reduced`` says that ``reduce`` has run on the same ``x`` and ``heads``.
        """

    def repeat(self) -> bool:
        """Scan the last arrays again, without heads; return False if arguments must be set."""


class NumpySweeps:
    """The sweeps by NumPy, for every operator and type; the reference for the compiled ones."""

    nbytes = 0
    window_violated = False
    takes_keys = False

    def __init__(self, op: Operator, types: Types, form: Form, *, totals: bool) -> None:
        self._op, self._types, self._form, self._totals = op, types, form, totals

    def close(self) -> None:
        """Do nothing: no memory is kept."""

    def repeat(self) -> bool:
        """Return False: no arguments are kept."""
        return False

    def cut(self, x: Any, columns: slice) -> Any:
        """View some columns of an array, as [outer, n, width]."""
        extents = self._form.extents
        return x.reshape(extents.outer, extents.length, extents.inner)[..., columns]

    def reduce(self, x: NDArray[Any], heads: NDArray[Any] | None) -> tuple[NDArray[Any], bool]:
        """Return the totals [inner] of ``x``, and whether a segment begins in it."""
        x, head = chunked.in_scan_order(x, self._form), False
        if heads is not None and (starts := np.flatnonzero(self._heads(heads))).size:
            x, head = x[:, starts[-1] :], True
        return chunked.reduce(self._op, x, self._types.acc, self._form.extents.inner), head

    def scan(
        self,
        x: NDArray[Any],
        out: NDArray[Any],
        heads: NDArray[Any] | None,
        before: NDArray[Any] | None,
        *,
        reduced: bool = False,
    ) -> NDArray[Any] | None:
        """Scan ``x`` into ``out``, which may be ``x``; return the totals [inner] if asked for."""
        form, acc = self._form, self._types.acc
        x, out = chunked.in_scan_order(x, form), chunked.in_scan_order(out, form)
        if heads is None:
            totals = np.empty(x.shape[2], acc) if self._totals else None
            how: Any = {"exclusive": form.exclusive, "row": form.extents.inner}
            chunked.scan(self._op, x, out, before, acc, totals=totals, **how)
            return totals
        chunked.scan_segments(
            self._op,
            x[0, :, 0],
            out[0, :, 0],
            self._heads(heads),
            before,
            first=form.seed,
            acc=acc,
            exclusive=form.exclusive,
        )
        return None

    def _heads(self, heads: NDArray[Any]) -> NDArray[Any]:
        return heads[::-1] if self._form.reverse else heads


# ---- linear recurrences, by compiled kernels, over the arrays as they are in memory -----------

_VECTOR = 64  # the most elements of a vector: VECTOR of kernels/cpu/vector.hpp, of one byte each

Arrays = tuple[NDArray[Any], ...]


class RecurrenceSweeps(CompiledSweeps):
    """The sweeps of one form and type by one kernel, for one call at a time.

    The shard is what ``as_read`` returns, the result a tuple of ``h`` alone.
    """

    def __init__(
        self, op: Operator, types: Types, form: Form, kernel: Kernel, **options: Any
    ) -> None:
        """Allocate the slots; ``options`` are those of ``CompiledSweeps``."""
        self._total = types.acc
        fields = [(name, types.acc[name]) for name in ("x0", "x1")]
        super().__init__(op, types._replace(acc=np.dtype(fields)), form, kernel, kernel, **options)
        self._rows = self._rows and op.arity == 2
        self._seed = None  # as kernels read it, and its address
        if isinstance(form.seed, np.ndarray):
            maps = self._maps_of(form.seed)
            self._seed = maps, address(maps)

    def cut(self, x: Any, columns: slice) -> Any:
        """View some columns of the arrays; heads are those of all columns."""
        shape = self._lines[1], self._inner
        return *(each.reshape(shape)[:, columns] for each in x[:2]), *x[2:]

    def reduce(self, x: Any, heads: NDArray[Any] | None) -> tuple[NDArray[Any], bool]:
        """Return the totals [inner] of ``x``, and whether a segment begins in it."""
        totals, head = super().reduce(x, heads)
        if self._total == self._acc:
            return totals, head
        packed = np.full(totals.shape, head, self._total)
        for name in ("x0", "x1"):
            packed[name] = totals[name]
        return packed, False

    def _width_of(self, x: Arrays) -> int:
        terms = x[1]
        return int(terms.shape[1]) if terms.ndim > 1 else self._inner

    def _reduce(self, x: Any, heads: NDArray[Any] | None, width: int) -> NDArray[Any]:
        assert self._slots is not None
        arguments = self._new_arguments(x[2] if len(x) > 2 else heads, width)
        self._cut_strips(arguments, _STRIP)
        factors = self._read(arguments, x)  # the arguments have its address
        reduce = self._kernel.reduce if self._rows else self._kernel.reduce_columns
        self._in_threads(lambda: reduce(byref(arguments)), width)()
        self._kernel.total(byref(arguments))
        del factors
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
    ) -> None:
        arguments = (
            self._arguments
            if reduced
            else self._new_arguments(x[2] if len(x) > 2 else heads, width)
        )
        arguments.ticket = 0
        self._cut_strips(arguments, _STRIP)
        factors = self._read(arguments, x)  # the arguments have its address
        arguments.before = None
        if before is not None and before is self._first and self._seed:
            maps, arguments.before = self._seed
            arguments.before_row = maps.size > 1
        elif before is not None:
            maps = self._maps_of(before)
            arguments.before, arguments.before_row = address(maps), maps.size > 1
        if reduced:
            self._kernel.seed(byref(arguments))
        h = out[0]
        arguments.y, arguments.y_step, arguments.stream = (
            address(h),
            _row_step(h, width),
            self._streams,
        )
        scan = self._kernel.scan if self._rows else self._kernel.scan_columns
        self._in_threads(lambda: scan(byref(arguments)), width)()
        del factors

    def _maps_of(self, states: NDArray[Any]) -> NDArray[Any]:
        """Return the fields of states that kernels read."""
        maps = np.empty(states.shape, self._acc)
        maps["x0"], maps["x1"] = states["x0"], states["x1"]
        return maps

    def _read(self, arguments: KernelArguments, x: Arrays) -> NDArray[Any]:
        """Set the arrays that the kernel reads; return the factors that it reads."""
        factors, terms = x[:2]
        arguments.x, arguments.x_step = address(terms), _row_step(terms, arguments.inner)
        arguments.a_step, arguments.a_column = _row_step(factors, arguments.inner), 1
        if factors.strides[0] == 0:
            arguments.a_step = 0
            if self._rows or factors.strides[1] == 0:  # one number
                factors, arguments.a_column = np.full(_VECTOR, factors.flat[0]), 0
        arguments.a = address(factors)
        return factors


def _row_step(array: NDArray[Any], width: int) -> int:
    """Return the elements from a row [width] of an array to the next."""
    return width if array.flags.c_contiguous else array.strides[0] // array.itemsize


def as_read(x: Arrays, dtype: np.dtype[Any]) -> Arrays:
    """Return factors, terms and, for columns with segments, heads, as the kernels read them.

    ``x`` are arrays [n] or [n, inner], of which the heads are the same for all columns. ``dtype``
    has the fields' types. Factors that are one number, or a row, are read as they are, with a
    stride of 0 along n; other factors and terms are contiguous. Heads become [n].
    """
    factors, terms = (
        array if array.dtype == dtype[i] else cast(array, dtype[i]) for i, array in enumerate(x[:2])
    )
    alike = factors.strides[0] == 0 and factors.strides[-1] in {0, factors.itemsize}
    factors = factors if alike else _plain(factors)
    return factors, _plain(terms), *(heads[:, :1].ravel() for heads in x[2:])


def _plain(array: NDArray[Any]) -> NDArray[Any]:
    """Return a contiguous array at an address that its type can have: ``array``, or a copy."""
    flags = array.flags
    plain = flags.c_contiguous and flags.aligned
    return array if plain else np.require(array, requirements=["C", "A"])


# ---- the choice of the sweeps ----------------------------------------------------------------


def is_compiled(op: Operator, types: Types) -> bool:
    """Return whether there are compiled kernels for an operator and the type that accumulates."""
    if op.arity > 1:
        return compiled.find_recurrence(op, types) is not None
    acc = types.acc
    return compiled.find(op, Types(acc, acc, acc)) is not None


def adds_exactly(x: np.dtype[Any], out: np.dtype[Any]) -> bool:
    """Return whether there are compiled kernels for sums of one word, and of two.

    Shards of type ``x`` and results of type ``out`` may have any byte order, strides and alignment.
    NumPy's sweeps do not take a ``FixedSum``.
    """
    return _adds_exactly(library.load(), x, out)


@functools.cache  # for each library
def _adds_exactly(_: library.Library | None, x: np.dtype[Any], out: np.dtype[Any]) -> bool:
    return all(
        compiled.find_fixed(fixed_sum(0, acc), _native(Types(x, acc, out))) is not None
        for acc in (ONE_WORD, TWO_WORDS)
    )


def _native(types: Types) -> Types:
    return types._replace(x=types.x.newbyteorder("="), out=types.out.newbyteorder("="))


def fields_read(op: Operator, types: Types) -> np.dtype[Any] | None:
    """Return the fields that compiled kernels read from a tuple of arrays; None if none does."""
    if compiled.find_recurrence(op, types) is None:
        return None
    number = types.out["x1"]
    return fields([number, number, np.dtype(np.bool_)][: op.arity])


def _is_for_numpy(op: Operator, acc: np.dtype[Any], form: Form) -> bool:
    """Return whether NumPy is faster: logaddexp of lines so short that vectors are mostly empty.

    Nanoseconds for an element on one core of an AMD EPYC with AVX-512, NumPy / compiled::

                  rows of 5  rows of 64  3 columns  64 columns
        float32     15 / 36      33 / 3    43 / 28      42 / 3
        float64     16 / 52      30 / 7    40 / 53     39 / 15
    """
    extents = form.extents
    rows = extents.outer > 1 and extents.inner == 1 and extents.length <= 16
    return op.name == "logaddexp" and (rows or (1 < extents.inner < 4 and acc.itemsize == 8))


def make(op: Operator, types: Types, form: Form, *, totals: bool, threads: int) -> Sweeps:
    """Return the compiled sweeps of an operator, or, if it is not compiled, NumPy's.

    ``totals`` says whether the totals of shards are needed.
    """
    options: Any = {"find": compiled.finder(form.keys), "totals": totals, "most": threads}
    if op.arity > 1:
        kernel = compiled.find_recurrence(op, types)
        if kernel is not None and form.extents.size > 0:
            return RecurrenceSweeps(op, types, form, kernel, **options)
        return NumpySweeps(op, types, form, totals=totals)
    if isinstance(op, FixedSum):
        x, _, out = native = _native(types)
        kernel = compiled.find_fixed(op, native)
        if kernel is not None and form.extents.size > 0:
            options |= {"converted": (x, out), "exact": op}
            return CompiledSweeps(op, types, form, kernel, kernel, **options)
        return NumpySweeps(op, types, form, totals=totals)
    kernel = compiled.find(op, Types(types.acc, types.acc, types.acc))
    if kernel is None or form.extents.size == 0 or _is_for_numpy(op, types.acc, form):
        return NumpySweeps(op, types, form, totals=totals)
    direct, loads = compiled.find_skipping_nan(op, types), False
    if direct is None:
        loads = op.load is not None
        direct = compiled.find(op, types._replace(x=loaded_type(types) if loads else types.x))
    return CompiledSweeps(op, types, form, kernel, direct, loads=loads, **options)
