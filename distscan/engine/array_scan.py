"""The scan of an array that is spread over ranks: the algorithm, on one screen, and its set-up.

call.begin(x, out)     1. each rank finds the total of its shard
call.exchange()        2. MPI_Exscan: each rank gets its offset, the total of all earlier ranks
call.finish()          3. each rank scans its shard, seeded with its offset

``scan_array`` does that for one array. What it decides is kept for calls with arguments of the same
kind: their types, shapes, strides and options are equal.
"""

import pickle  # nosec B403 # it writes only
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter, methodcaller
from typing import Any

import numpy as np

from ..core import arrays
from ..core.form import Extents, memory_order
from ..core.segments import check_shape
from ..core.steps import Pending
from ..mpi.agree import Agreement, Terms
from ..mpi.communicators import MPI, Comm
from ..mpi.handshake import Handshake
from ..options import ScanRequest
from . import cache
from .shard_scan import GPU_STRATEGIES, PeerAccess, ShardScan, make

_NUMBERS = {bool, int, float, complex}


class CollectiveCall:
    """One call in flight on one rank, from its first step to its last.

    A step keeps its fault, and ``finish`` raises it. Until then the rank takes part in the
    exchange, because the other ranks wait for it.
    """

    def __init__(self, part: ShardScan, comm: Comm) -> None:
        self.part, self._comm = part, comm
        self._pending: Pending | None = None
        self.offset: Any = part.form.seed  # what comes before the shard
        self._started = False
        self.fault: BaseException | None = None

    def begin(self, x: Any, out: Any, segments: Any = None, *, overlap: bool = True) -> None:
        """Begin to find the total of ``x``; with ``overlap``, the other steps follow at once."""
        try:
            self._pending = self.part.steps.begin(x, out, segments, overlap=overlap)
        except BaseException as fault:
            self.fault = fault

    def start(self) -> None:
        """Begin the exchange, without waiting for other ranks."""
        self.part.exscan.start(self._comm, self._pending)
        self._started = True

    def come(self, handshake: Handshake) -> None:
        """Begin a handshake in place of an exchange, unless it has begun: later ranks wait for it.

        The call is queued as soon as ``exchange`` returns: other GPUs may wait for this one then.
        """
        if not self._started:
            handshake.come(failed=self.fault is not None)
            self._started = True

    def queue(self) -> None:
        """Queue a call of GPUs that exchange totals themselves, before ``finish``."""
        steps: Any = self.part.steps
        try:
            steps.queue(self._pending)
        except BaseException as fault:
            self.fault = fault

    def exchange(self) -> None:
        """Exchange the totals: find this rank's offset, the total of all earlier ranks."""
        exscan, comm = self.part.exscan, self._comm
        try:
            self.offset = exscan.wait(comm) if self._started else exscan(comm, self._pending)
        except BaseException as fault:
            if self.fault is None:
                self.fault = fault
                self.part.steps.call_off()

    def finish(self) -> None:
        """Scan the shard, seeded with the offset; raise the fault of an earlier step."""
        if self.fault is not None:
            raise self.fault
        self.part.steps.finish(self._pending, self.offset)


def run(part: ShardScan, agreement: Agreement, x: Any, out: Any, segments: Any = None) -> Any:
    """Scan ``x`` into ``out``, and return the offset; collective.

    If one rank has a fault, every rank raises it.

    The open step of the agreement has the arguments: the ranks compare them, and whether any rank
    has elements. Meanwhile a GPU finds the total. The last step stays open: so what the caller does
    with the result is agreed on, too; but not where GPUs exchange totals themselves.
    """
    if part.strategy in GPU_STRATEGIES:
        return _run_on_gpus(part, agreement, x, out, segments)
    call = CollectiveCall(part, agreement.comm)
    call.begin(x, out, segments)
    if not agreement.several:
        call.finish()
        return call.offset
    agreement.settle()
    if part.exscan.long:  # buffers for the exchange of long rows
        agreement.begin()
        if agreement.has_elements:
            part.exscan.reserve()
    agreement.begin()
    if agreement.has_elements and part.across:
        call.exchange()
    call.finish()
    return call.offset


def _run_on_gpus(
    part: ShardScan, agreement: Agreement, x: Any, out: Any, segments: Any = None
) -> Any:
    """Do the same where the GPUs exchange totals themselves: all is queued when all ranks agree.

    So no GPU waits for a rank that does not come. Nor does a host wait for its GPU. No step stays
    open: what is left to fail is CUDA.
    """
    steps: Any = part.steps
    steps.refuse_capture("the hosts agree on each call")
    if not steps.is_connected:
        assert part.peers is not None
        part.peers.links.connect(part, agreement)
    steps.raise_fault()  # of an earlier call
    call = steps.begin(x, out, segments, overlap=True)
    agreement.settle()
    steps.queue(call)
    first = agreement.comm.size - 1 if part.form.reverse else 0
    return part.form.seed if agreement.comm.rank == first else call.work.total


def scan_array(call: Agreement, request: ScanRequest, peers: PeerAccess | None = None) -> Any:
    """Scan the shards of one array by an operator, and return the result; collective.

    The step of the agreement that is open has the arguments; the last step stays open. With
    ``peers``, which ``peers.prove`` has found, the ranks' GPUs exchange totals themselves where
    there are kernels for it.
    """
    x, out, segments = request[:3]
    if x is None:
        raise TypeError("x is None; a scan takes an array or a sequence")
    array = x if type(x) in arrays.NATIVE else arrays.as_native(x)
    target: Any = None if out is None else arrays.as_target(out)
    flags = None if segments is None else arrays.as_native(segments, "segments")
    native = [array, target, flags]
    if type(array) is np.ndarray:
        return _scan_native(call, request, native, (None, None), peers)
    gpu, device, stream = arrays.where(array)
    with device:
        return _scan_native(call, request, native, (gpu, stream), peers)


def _scan_native(
    call: Agreement,
    request: ScanRequest,
    native: list[Any],
    place: tuple[int | None, int | None],
    peers: PeerAccess | None,
) -> Any:
    """Do the same at a place, the current GPU and stream; ``native`` are NumPy or CuPy arrays."""
    x, out, segments, options, run_options = request
    array, target, flags = native
    ranks, initial = call.comm.size, options.initial
    bits: Hashable = None
    if initial is not None:
        bits = (pickle.dumps if type(initial) in _NUMBERS else cache.bits_of)(initial)
    key: tuple[Any, ...] = (
        *place,
        ranks,
        peers,
        options if initial is None else options[:-1],
        bits,
        run_options,
        _kind(x, array),
    )
    if target is not None or flags is not None:
        key = *key, _kind(out, target), None if flags is None else _kind(segments, flags)
    known, kind = cache.acquire(key)
    setup = known or set_up(request, native, place[0], ranks, peers)
    locate = None if call.several or target is None or flags is not None else setup.locate
    addresses = None if locate is None else (locate(array), locate(target))
    if addresses and addresses == setup.addresses and setup.part.steps.repeat():
        cache.release(key, setup, kind)
        return out
    setup.addresses = None
    shard, result, flags, copy_back = _as_scanned(setup, *native)
    call.same, call.has_elements = setup.terms, setup.part.has_elements
    run(setup.part, call, shard, result, flags)
    if locate is not None and addresses == (locate(shard), locate(result)):  # no copies
        setup.addresses = addresses
    cache.release(key, setup, kind)
    if setup.restored is not None:
        result = setup.restored(result)
    if copy_back:
        target[...] = result
    if setup.foreign:
        # The conversion of a new result makes the stream of x's library wait, too.
        used = list(zip(request[:3], native, strict=True))
        arrays.release(*(used[2:] if target is None else used))
    if target is not None:
        return out
    return result if setup.convert is None else setup.convert(result)


def _as_scanned(setup: "ArraySetup", array: Any, target: Any, flags: Any) -> tuple[Any, ...]:
    """Return x, out and segments as the steps take them, and whether to copy the result to out."""
    steps, keys = setup.part.steps, setup.part.form.keys
    shard = array if setup.view is None else setup.view(array)
    result = target if setup.view_out is None else setup.view_out(target)
    copy_back = target is not None and result is None
    copied = shard is None or copy_back
    shard = array.reshape(-1) if shard is None else shard
    result = steps.empty() if result is None else result
    flags = None if flags is None else flags.reshape(-1)
    if target is not None:
        if arrays.overlap(shard, result):
            shard, copied = shard.copy(), True
        if flags is not None and arrays.overlap(flags, result, in_place=keys is None):
            flags, copied = flags.copy(), True
    if copied:
        steps.refuse_capture("x, out or segments must be copied")
    return shard, result, flags, copy_back


def locator(gpu: int | None) -> Callable[[Any], int]:
    """Return the function that returns the address of a contiguous array on a GPU, or the host.

    mpi4py finds the address of a NumPy array in a sixth of the time that NumPy takes.
    """
    return MPI.Get_address if gpu is None else attrgetter("data.ptr")


def _kind(given: Any, array: Any) -> Hashable:
    """Return all properties of an array that the checks and the decisions depend on."""
    if array is None:
        return None
    host = isinstance(array, np.ndarray)
    memory = array.flags.writeable if host else array.data.device_id
    return type(given), array.dtype, array.shape, array.strides, host, memory


# ---- the set-up of calls with arguments of the same kind --------------------------------------

# For contiguous arrays, views are made by C functions: they are faster than Python's.
_FLAT = methodcaller("reshape", -1)
Through = Callable[[Any], Any]


@dataclass(eq=False)
class ArraySetup:
    """How all calls with arguments of the same kind are scanned.

    The functions are None where the array is used as it is. ``view`` and ``view_out`` return None
    where no view exists, so that the array must be copied.
    """

    part: ShardScan
    view: Through | None  # returns x as the steps read it
    view_out: Through | None  # returns out as the steps write it
    restored: Through | None  # returns a new result in its shape
    convert: Through | None  # returns a new result as an array of the library of x
    foreign: bool  # whether an array on a GPU is of a library other than CuPy
    locate: Callable[[Any], int] | None  # ``locator``, where steps take x and out as they are
    terms: Terms  # the ranks must agree on these
    #: The addresses of x and out of the last call, if the steps may ``repeat`` it.
    addresses: tuple[int, int] | None = None

    @cached_property
    def nbytes(self) -> int:
        """Bytes of memory that are kept between calls, once the first call has run."""
        return self.part.nbytes


def set_up(
    request: ScanRequest,
    native: list[Any],
    gpu: int | None,
    ranks: int,
    peers: PeerAccess | None = None,
) -> ArraySetup:
    """Check the arguments of ``scan`` and decide how to scan; local.

    ``native`` are the NumPy or CuPy arrays over the memory of x, out and segments. Raises
    TypeError, ValueError and OverflowError for arguments that cannot be scanned.
    """
    x, out, segments, options, run_options = request
    array, target, flags = native
    if out is not None:
        check_out(out, target, array)
    if flags is not None:
        check_memory("segments", flags, array)
        check_shape(flags, array)
    order = None if flags is not None else memory_order(array, target, options.axis)
    extents = Extents.of(array.shape, options.axis, order)
    options = options._replace(segments=None if flags is None else flags.dtype)
    wanted = None if target is None else target.dtype
    part = make(
        extents, array.dtype, gpu, options, run_options, out=wanted, ranks=ranks, peers=peers
    )
    shape = extents.result_shape
    if target is not None and target.shape != shape:
        raise ValueError(f"out has shape {target.shape}; the result has {shape}")
    foreign = any(map(arrays.is_foreign, zip(request[:3], native, strict=True)))
    view, view_out = _view(array, extents), None if target is None else _view(target, extents)
    direct = not foreign and {view, view_out} <= {None, _FLAT}
    return ArraySetup(
        part,
        view,
        view_out,
        extents.restored if extents.order is not None else _shaped(shape),
        arrays.converter(x if out is None else out),
        foreign,
        locator(gpu) if direct else None,
        _terms(part.terms, x, segments),
    )


def _view(array: Any, extents: Extents) -> Through | None:
    """Return the function that views such arrays as the steps take them; None if none is needed."""
    if not array.flags.c_contiguous or extents.order is not None:
        return extents.view
    return None if array.ndim == 1 else _FLAT


def _shaped(shape: tuple[int, ...]) -> Through | None:
    """Return the function that views flat results in ``shape``; None if they are 1-D."""
    return None if len(shape) == 1 else methodcaller("reshape", shape)


def check_out(out: Any, target: Any, x: Any) -> None:
    """Check that the scan of ``x`` can be written to ``out``; ``target`` is the array over it."""
    if not hasattr(out, "__dlpack__"):
        raise TypeError(f"out must be an array, not {type(out).__name__}")
    check_memory("out", target, x)
    arrays.check_writable(out, target)


def check_memory(name: str, array: Any, x: Any, other: str = "x") -> None:
    """Check that an array is in the memory that ``x`` is in, whose name is ``other``."""
    if arrays.gpu(array) != arrays.gpu(x):
        raise TypeError(
            f"{name} is in the memory of {arrays.device(array)}, {other} of {arrays.device(x)}; "
            "both must be in the same memory"
        )


# ---- empty lists, whose type, float64 as in NumPy, disagrees with other ranks --------------------


def _terms(same: Terms, x: Any, segments: Any) -> Terms:
    """Return the terms of a scan, with a hint to be shown where those of an empty list disagree.

    >>> dtype = _terms(Terms({"the dtype of x": "float64"}), [], None).texts()["the dtype of x"]
    >>> dtype == "float64"
    True
    >>> print(dtype)
    float64 of an empty list (pass an empty array of the others' type and shape)
    """
    empty: list[str] = []
    if _is_empty_list(x):
        empty += "the operator's MPI form", "the dtype of x", "the shape beyond axis 0"
    if _is_empty_list(segments):
        empty.append("the dtype of segments")
    return _TermsOfEmptyLists(same, empty) if empty else same


def _is_empty_list(value: Any) -> bool:
    return isinstance(value, list | tuple) and not value


class _TermsOfEmptyLists(Terms):
    """Terms, some of which come from an empty list."""

    def __init__(self, same: Terms, empty: list[str]) -> None:
        super().__init__(same)
        self._empty = empty

    def texts(self) -> dict[str, str]:
        return {
            name: _OfAnEmptyList(text) if name in self._empty else text
            for name, text in super().texts().items()
        }


class _OfAnEmptyList(str):
    """A text that equals an array's text, so that ranks can agree; it is printed with a hint."""

    __slots__ = ()

    def __str__(self) -> str:
        hint = "pass an empty array of the others' type and shape"
        return f"{super().__str__()} of an empty list ({hint})"
