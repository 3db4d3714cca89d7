"""Scans of tuples of arrays: each element is spread over arrays of one shape.

GPUs read and write the arrays as they are, and so do the compiled kernels for recurrences on CPUs.
Elsewhere each element is gathered into one structure, chunk by chunk.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from ..core import arrays, dtypes
from ..core.arrays import FieldArrays, HostFields, contiguous
from ..core.form import Extents
from ..core.operators import Operator
from ..core.segments import check_shape
from ..cpu.sweeps import as_read, fields_read
from ..mpi.agree import Agreement, Terms
from ..options import RunOptions, ScanOptions, ScanRequest
from . import cache
from .array_scan import check_memory, check_out, run
from .shard_scan import PeerAccess, ShardScan, make

DEFAULT = RunOptions()


@dataclass(eq=False)
class TupleSetup:
    """How all tuples of arrays of the same kind are scanned; see ``ArraySetup`` for one array."""

    part: ShardScan
    x: np.dtype[Any] | None  # the fields of the arrays that are read; None: elements are gathered
    acc: np.dtype[Any]  # the fields of the running value
    out: np.dtype[Any]  # the fields of the result
    direct: bool  # whether kernels read and write the arrays themselves, which are 1-D
    foreign: bool  # whether an array on a GPU is of a library other than CuPy
    converters: list[Callable[[Any], Any]] | None  # of new results to the libraries of x
    terms: Terms  # the ranks must agree on these

    @property
    def nbytes(self) -> int:
        """Bytes of memory that are kept between calls."""
        return self.part.nbytes


class TupleScan:
    """One rank's part of one call: checked arrays, what scans them, and where results go."""

    def __init__(
        self,
        options: ScanOptions,
        x: Sequence[Any],
        targets: Sequence[Any] | None = None,
        flags: Any = None,
        *,
        run_options: RunOptions = DEFAULT,
        given: Sequence[Any] = (),
        check: Callable[[], None] = lambda: None,
        types: tuple[np.dtype[Any] | None, np.dtype[Any] | None] = (None, None),
        ranks: int,
        peers: PeerAccess | None = None,
    ) -> None:
        """Check and prepare; local. All arrays are NumPy's, or CuPy's on one GPU.

        ``given`` are what the caller passed for ``x``, ``targets`` and ``flags``. ``check`` checks
        them; it is called once for all calls with arrays of the same kind. ``types`` are those of
        the running value and of the result; None are the operator's own, and those of ``targets``.
        For ``peers`` see ``scan_array``.
        """
        self._x, self._targets, self._flags = x, targets, flags
        to = () if targets is None else targets
        every = (*x, *to) if flags is None else (*x, *to, flags)
        initial = options.initial
        _, self.device, stream = arrays.where(x[0])
        with self.device:
            # A view of the caller's arrays, which may change, is not kept.
            self._cached = not isinstance(initial, HostFields)
            bits: Hashable = object()
            if self._cached:
                bits = None if initial is None else cache.bits_of(initial)
            asked = (
                *options[:-1],
                bits,
                run_options,
                targets is None,
                flags is None,
                types,
                ranks,
                peers,
            )
            self._key = stream, *asked, *map(_kind, every), *map(type, given)
            known, self._of_kind = cache.acquire(self._key)
            if known is None:
                check()
                if flags is not None:
                    check_memory("segments", flags, x[0])
                    check_shape(flags, x[0])
                known = self._set_up(options, run_options, given, types, ranks=ranks, peers=peers)
            self.setup: TupleSetup = known
            self.part, self.terms = known.part, known.terms
            if flags is not None and flags.ndim != 1:
                self._flags = flags.reshape(-1)
            if known.x is None:
                self._gather()
            else:
                self._place(known.x)

    def _set_up(
        self,
        options: ScanOptions,
        run_options: RunOptions,
        given: Sequence[Any],
        types: tuple[np.dtype[Any] | None, np.dtype[Any] | None],
        *,
        ranks: int,
        peers: PeerAccess | None,
    ) -> TupleSetup:
        """Decide how such arrays are scanned; CPUs scan structures of the running values."""
        x, targets, flags = self._x, self._targets, self._flags
        op = options.op
        gpu, native = arrays.gpu(x[0]), (*x, *(targets or ()))
        stored = dtypes.fields([array.dtype for array in x])
        if targets is not None and types[1] is None:
            types = types[0], dtypes.fields([target.dtype for target in targets])
        whole = dtypes.resolve(op, stored, *types)
        read = stored if gpu is not None else fields_read(op, whole)
        source, out = read or whole.acc, whole.out
        if read is None and _fields_of(out) == _fields_of(whole.acc):
            out = whole.acc  # they may differ in their padding
        extents = Extents.of(x[0].shape, options.axis)
        shape = extents.result_shape
        for i, target in enumerate(targets or ()):
            if target.shape != shape:
                raise ValueError(f"out[{i}] has shape {target.shape}; the result has {shape}")
        converters = [arrays.converter(each) for each in given[: len(x)]]
        segments = None if flags is None else flags.dtype
        options = options._replace(dtype=whole.acc, segments=segments)
        part = make(extents, source, gpu, options, run_options, out=out, ranks=ranks, peers=peers)
        terms = part.terms | {"the dtype of x": stored, "the dtype of the result": whole.out}
        return TupleSetup(
            part,
            read,
            whole.acc,
            whole.out,
            gpu is not None
            and shape == x[0].shape
            and all(array.ndim == 1 and array.flags.c_contiguous for array in native),
            any(map(arrays.is_foreign, zip(given, (*native, flags), strict=False))),
            [each or _unchanged for each in converters] if any(converters) else None,
            Terms(terms),
        )

    def _gather(self) -> None:
        """Read and write the arrays as structures, which are gathered chunk by chunk."""
        extents, setup = self.part.form.extents, self.setup
        shape = extents.outer, extents.length, extents.inner
        targets = self._targets or (None,) * len(setup.out.names or ())
        results = []
        for i, target in enumerate(targets):
            view = None if target is None else extents.view(target)
            view = np.empty(extents.size, setup.out[i]) if view is None else view
            results.append(view.reshape(shape))
        x = []
        for array in self._x:
            view = extents.view(array)
            view = (array.reshape(-1) if view is None else view).reshape(shape)
            x.append(view.copy() if any(arrays.overlap(view, to) for to in results) else view)
        self._shard: Any = HostFields(x, setup.acc)
        self._results: Any = HostFields(results, self.part.types.out)

    def _place(self, read: np.dtype[Any]) -> None:
        """Choose the arrays that are read and written; copy where they are no use."""
        xp, size, out = arrays.namespace(self._x[0]), self.part.form.extents.size, self.setup.out
        direct, targets = self.setup.direct, self._targets
        if direct and targets is not None:
            results = targets
        else:
            results = [
                target.reshape(-1)
                if target is not None and target.flags.c_contiguous
                else xp.empty(size, out[i])
                for i, target in enumerate(targets or (None,) * len(out.names or ()))
            ]
        if xp is np:
            self._shard, self._results = as_read(tuple(self._x), read), tuple(results)
            return
        shard, copied = list(self._x), False
        if not direct:
            shard = [contiguous(array).reshape(-1) for array in self._x]
            copied = not all(array.flags.c_contiguous for array in self._x)
        self._shard, self._results = FieldArrays(shard), FieldArrays(results)
        if targets is not None:
            overwritten = self._shard.overwritten(self._results)
            if overwritten:
                for i in overwritten:
                    shard[i], copied = shard[i].copy(), True
                self._shard = FieldArrays(shard)
            flags, safe = self._flags, self.part.form.keys is None
            if flags is not None and any(
                arrays.overlap(flags, result, in_place=safe) for result in results
            ):
                self._flags, copied = flags.copy(), True
        if copied:
            self.part.steps.refuse_capture("x or segments must be copied")

    def run(
        self, call: Agreement, use_offset: Callable[[Any], None] = lambda offset: None
    ) -> Sequence[Any]:
        """Scan, and return the results, in the shape of the result; collective.

        It leaves a step of the agreement open, but where GPUs exchange totals themselves.
        ``use_offset`` gets the total of all earlier ranks: None, a structure, or those of a row.
        """
        with self.device:
            use_offset(run(self.part, call, self._shard, self._results, self._flags))
            if self._cached:
                cache.release(self._key, self.setup, self._of_kind)
            results = self._results
            if self.setup.direct:
                return cast(Sequence[Any], results)
            if isinstance(results, HostFields):
                results = results.arrays
            shape = self.part.form.extents.result_shape
            if self._targets is None:
                return [result.reshape(shape) for result in results]
            for target, result in zip(self._targets, results, strict=True):
                if not arrays.overlap(result, target, in_place=False):
                    target[...] = result.reshape(shape)
            return self._targets


def _kind(array: Any) -> Hashable:
    """Return all properties of an array that the checks and the decisions depend on."""
    where = array.flags.writeable if type(array) is np.ndarray else array.data.device_id
    return type(array), array.dtype, array.shape, array.strides, where


def _fields_of(dtype: np.dtype[Any]) -> list[tuple[str, np.dtype[Any]]]:
    return [(name, dtype[name]) for name in dtype.names or ()]


def scan_tuple(call: Agreement, request: ScanRequest) -> tuple[Any, ...]:
    """Scan a tuple of arrays; collective. The last step of the agreement stays open."""
    x, out, segments, options, run_options = request
    op: Operator = options.op
    given = _several("x", x, op.arity)
    wanted = None if out is None else _several("out", out, op.arity)
    native = [arrays.as_native(each, f"x[{i}]") for i, each in enumerate(given)]
    targets = None
    if wanted is not None:
        targets = [arrays.as_target(each, f"out[{i}]") for i, each in enumerate(wanted)]
    flags = None if segments is None else arrays.as_native(segments, "segments")
    if options.dtype is not None:
        raise TypeError("dtype= is for one array; each array of a tuple keeps its own type")

    def check() -> None:
        for i, array in enumerate(native):
            check_memory(f"x[{i}]", array, native[0], "x[0]")
            if array.shape != native[0].shape:
                raise ValueError(f"x[{i}] has shape {array.shape}, x[0] {native[0].shape}")
        for each, target in zip(wanted or (), targets or (), strict=True):
            check_out(each, target, native[0])

    scan = TupleScan(
        options,
        native,
        targets,
        flags,
        run_options=run_options,
        given=(*given, *(wanted or ()), segments),
        check=check,
        ranks=call.comm.size,
    )
    call.same, call.has_elements = scan.terms, scan.part.has_elements
    results, setup = scan.run(call), scan.setup
    with scan.device:
        if setup.foreign:
            pairs = list(zip((*given, segments), (*native, flags), strict=True))
            arrays.release(*pairs, *zip(wanted or (), targets or (), strict=True))
        if wanted is not None:
            return wanted
        if setup.converters is None:
            return tuple(results)
        return tuple(to(result) for to, result in zip(setup.converters, results, strict=True))


def _unchanged(result: Any) -> Any:
    return result


def _several(name: str, given: Any, arity: int) -> tuple[Any, ...]:
    """Return a tuple of as many arrays as the operator takes."""
    if not isinstance(given, tuple | list) or len(given) != arity:
        found = f"{len(given)} arrays" if isinstance(given, tuple | list) else type(given).__name__
        raise TypeError(f"{name} is {found}; the operator takes a tuple of {arity} arrays")
    return tuple(given)
