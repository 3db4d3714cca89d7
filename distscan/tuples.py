"""Scans of tuples of arrays: each element is spread over arrays of one shape.

GPUs read and write the arrays as they are, and so do the compiled kernels for recurrences on CPUs.
Elsewhere each element is gathered into one structure, and an array of these is scanned.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import plan_cache
from .build import CompiledScan, make
from .core import arrays, dtypes
from .core.extents import Extents, axis_number
from .core.operators import Operator
from .core.segments import check_shape
from .cpu.recurrence import as_read
from .cpu.sweeps import fields_read
from .decide import check_memory, check_out
from .mpi.agree import Agreement, Terms
from .mpi.communicators import Comm


@dataclass(eq=False)
class DecidedFields:
    """How all tuples of arrays of the same kind are scanned; see ``decide.Decided`` for arrays."""

    compiled: CompiledScan
    x: np.dtype[Any] | None  # the fields of the arrays that are read; None: elements are gathered
    acc: np.dtype[Any]  # the fields of the running value
    out: np.dtype[Any]  # the fields of the result
    terms: Terms  # the ranks must agree on these

    @property
    def nbytes(self) -> int:
        """Bytes of memory that are kept between calls."""
        return self.compiled.nbytes


class Shard:
    """One rank's part of one call: checked arrays, what scans them, and where results go."""

    def __init__(
        self,
        op: Operator,
        x: Sequence[Any],
        targets: Sequence[Any] | None = None,
        flags: Any = None,
        *,
        axis: int | None = None,
        initial: Any = None,
        types: tuple[np.dtype[Any] | None, np.dtype[Any] | None] = (None, None),
        ranks: int,
        **options: Any,
    ) -> None:
        """Check and prepare; local. All arrays are NumPy's, or CuPy's on one GPU.

        ``types`` are those of the running value and of the result; None are the operator's own.
        """
        if flags is not None:
            check_memory("segments", flags, x[0])
            check_shape(flags, x[0])
            flags = flags.reshape(-1)
        self._x, self._targets, self._flags = x, targets, flags
        gpu, self.device = arrays.gpu(x[0]), arrays.on_device(x[0])
        segments = None if flags is None else flags.dtype
        stored, to = ([a.dtype for a in arrays_] for arrays_ in (x, targets or ()))
        with self.device:
            bits = None if initial is None else plan_cache.bits_of(initial)
            given = op, x[0].shape, axis, *stored, None, *to, *types, segments, bits, ranks
            self._key = gpu, arrays.stream(x[0]), *given, *options.values()
            known = plan_cache.taken(self._key)
            self._put_back = plan_cache.keep if known is None else plan_cache.put_back
            if known is None:
                extents = Extents.of(x[0].shape, axis)
                kinds = types if targets is None else (types[0], dtypes.fields(to))
                asked = {**options, "initial": initial, "segments": segments, "ranks": ranks}
                known = _decide(op, extents, gpu, dtypes.fields(stored), kinds, **asked)
            self._decided: DecidedFields = known
            self.scan, self.terms = self._decided.compiled, self._decided.terms
            self._shape = self.scan.form.extents.result_shape
            if self._decided.x is None:
                self._gather()
            else:
                self._place(self._decided.x)

    def _gather(self) -> None:
        """Gather the elements of host arrays into structures [n], which are scanned in place."""
        acc = self._decided.acc
        self._shard: Any = np.empty(self.scan.form.extents.size, acc)
        with np.errstate(all="ignore"):
            for name, array in zip(acc.names or (), self._x, strict=True):
                self._shard[name] = array.reshape(-1)
        self._results: Any = self._shard

    def _place(self, read: np.dtype[Any]) -> None:
        """Choose the arrays that are read and written; copy where they are no use."""
        xp, size, out = arrays.namespace(self._x[0]), self.scan.form.extents.size, self._decided.out
        targets = self._targets or (None,) * len(out.names or ())
        self._results = tuple(
            target.reshape(-1)
            if target is not None and target.flags.c_contiguous
            else xp.empty(size, out[i])
            for i, target in enumerate(targets)
        )
        if xp is np:
            self._shard = as_read(tuple(self._x), read)
            return
        shard = [xp.ascontiguousarray(array).reshape(-1) for array in self._x]
        copied = not all(array.flags.c_contiguous for array in self._x)
        if self._targets is not None:
            for i in _overwritten(shard, self._results):
                shard[i], copied = shard[i].copy(), True
            flags, safe = self._flags, self.scan.form.keys is None
            if flags is not None and any(
                arrays.overlap(flags, result, in_place=safe) for result in self._results
            ):
                self._flags, copied = flags.copy(), True
        if copied:
            self.scan.steps.refuse_capture("x or segments must be copied")
        self._shard = tuple(shard)

    def scanned(self, run: Callable[..., None], arguments: Agreement) -> list[Any]:
        """Scan, and return the results, in the shape of the result; collective.

        ``run`` is that of ``scan.py``.
        """
        with self.device:
            run(self.scan, arguments, self._shard, self._results, self._flags)
            self._put_back(self._key, self._decided)
            results, out = self._results, self._decided.out
            if not isinstance(results, tuple):
                with np.errstate(all="ignore"):
                    results = tuple(results[name].astype(out[name]) for name in out.names or ())
            results = [result.reshape(self._shape) for result in results]
            for target, result in zip(self._targets or (), results):  # noqa: B905 - no targets
                if not (target.flags.c_contiguous and arrays.is_cuda(target)):
                    target[...] = result
            return results


def _decide(
    op: Operator,
    extents: Extents,
    gpu: int | None,
    stored: np.dtype[Any],
    types: tuple[np.dtype[Any] | None, np.dtype[Any] | None],
    **options: Any,
) -> DecidedFields:
    """Decide how tuples of arrays are scanned; CPUs scan structures of the running values."""
    whole = dtypes.resolve(op, stored, *types)
    read = stored if gpu is not None else fields_read(op, whole)
    given, out = (whole.acc, whole.acc) if read is None else (read, whole.out)
    compiled = make(extents, given, gpu, op, dtype=whole.acc, out=out, **options)
    terms = compiled.terms | {"the dtype of x": stored, "the dtype of the result": whole.out}
    return DecidedFields(compiled, read, whole.acc, whole.out, Terms(terms))


def _overwritten(x: Sequence[Any], results: Sequence[Any]) -> list[int]:
    """Return which arrays a scan into ``results`` may overwrite before it reads them.

    An array in the place of a result, element by element, is safe.
    """
    spans = [(result.data.ptr, result.nbytes, result.itemsize) for result in results]
    found = []
    for i, array in enumerate(x):
        begin, size, item = array.data.ptr, array.nbytes, array.itemsize
        for other, length, width in spans:
            shares = begin < other + length and other < begin + size
            if shares and (begin, item) != (other, width):
                found.append(i)
                break
    return found


def scan_tuple(
    run: Callable[..., None],
    x: Any,
    op: Operator,
    *,
    comm: Comm | None,
    axis: Any,
    out: Any,
    segments: Any,
    **options: Any,
) -> tuple[Any, ...]:
    """Scan a tuple of arrays by ``run``; both are ``scan.py``'s."""
    with Agreement(comm) as arguments:
        given = _several("x", x, op.arity)
        native = [arrays.as_native(each) for each in given]
        for i, array in enumerate(native):
            check_memory(f"x[{i}]", array, native[0], "x[0]")
            if array.shape != native[0].shape:
                raise ValueError(f"x[{i}] has shape {array.shape}, x[0] {native[0].shape}")
        targets, wanted = None, None
        if out is not None:
            wanted = _several("out", out, op.arity)
            targets = [arrays.as_native(each) for each in wanted]
            for each, target in zip(wanted, targets, strict=True):
                check_out(each, target, native[0])
        flags = None if segments is None else arrays.as_native(segments)
        if options.pop("dtype") is not None:
            raise TypeError("dtype= is for one array; each array of a tuple keeps its own type")
        for name in ("exclusive", "reverse"):
            options[name] = bool(options[name])
        shard = Shard(
            op, native, targets, flags, axis=axis_number(axis), ranks=arguments.comm.size, **options
        )
        shape = shard.scan.form.extents.result_shape
        for i, target in enumerate(targets or ()):
            if target.shape != shape:
                raise ValueError(f"out[{i}] has shape {target.shape}; the result has {shape}")
        arguments.same, arguments.has_elements = shard.terms, shard.scan.has_elements
    results = shard.scanned(run, arguments)
    with shard.device:
        pairs = list(zip((*given, segments), (*native, flags), strict=True))
        if targets is not None:
            pairs += zip(wanted or (), targets, strict=True)
        arrays.release(*pairs)
        if wanted is not None:
            return wanted
        converters = [arrays.converter(each) for each in given]
        return tuple(
            result if convert is None else convert(result)
            for result, convert in zip(results, converters, strict=True)
        )


def _several(name: str, given: Any, arity: int) -> tuple[Any, ...]:
    """Return a tuple of as many arrays as the operator takes."""
    if not isinstance(given, tuple | list) or len(given) != arity:
        found = f"{len(given)} arrays" if isinstance(given, tuple | list) else type(given).__name__
        raise TypeError(f"{name} is {found}; the operator takes a tuple of {arity} arrays")
    return tuple(given)
