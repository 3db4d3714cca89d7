"""The calls of a plan, and their faults, which reach every rank, at once or later."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..core import arrays
from ..core.errors import RankError
from ..fsum.request import FsumRequest, part_of
from ..fsum.window import Window
from ..mpi.agree import Agreement, Votes, agreed
from ..mpi.communicators import Comm
from ..mpi.handshake import Handshake
from ..mpi.notices import Notices
from ..options import RunOptions, ScanOptions, ScanRequest
from .array_scan import CollectiveCall, locator
from .fsum_scan import check_of, scan_exactly
from .shard_scan import ShardScan, adds_exactly

# ---- what a plan and its calls may be passed -----------------------------------------------------


class Expected(NamedTuple):
    """The arrays that the calls of a plan expect."""

    plan: ShardScan
    shape: tuple[int, ...]  # of x
    out_shape: tuple[int, ...]
    size: int
    array: type  # numpy.ndarray or cupy.ndarray
    gpu: int | None
    flags: np.dtype[Any] | None  # the type of segments; None: calls pass none

    def check(self, x: Any, out: Any, segments: Any) -> tuple[Any, Any, Any, Any]:
        """Return flat views of ``x``, ``out`` and ``segments``, and the array that a call returns.

        Raises TypeError and ValueError.
        """
        types = self.plan.types
        shard = self._checked("x", x, self.shape, types.x)
        if out is None:
            target = self.plan.steps.empty()
            out = target.reshape(self.out_shape)
        else:
            target = self._checked("out", out, self.out_shape, types.out)
            if self.gpu is None and not target.flags.writeable:
                raise ValueError("out is read-only")
            if arrays.overlap(shard, target):
                raise ValueError("out overlaps x; it may be x itself, or apart from it")
        return shard, target, self._segments(segments, target), out

    def _segments(self, segments: Any, target: Any) -> Any:
        if self.flags is None:
            if segments is not None:
                raise TypeError("the plan was made without segments=")
            return None
        if segments is None:
            raise TypeError(f"the plan is for segments of type {self.flags}; none are given")
        flags = self._checked("segments", segments, (self.size,), self.flags)
        if arrays.overlap(flags, target, in_place=flags.dtype == np.bool_):
            raise ValueError("out overlaps segments")
        return flags

    def _checked(self, name: str, array: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """Return a flat view of an array; raise if its type, shape or device is not the plan's."""
        if type(array) is not self.array:
            if not isinstance(array, self.array):
                wanted = f"{self.array.__module__.split('.')[0]}.{self.array.__name__}"
                raise TypeError(f"{name} is a {type(array).__name__}; the plan is for a {wanted}")
            array = arrays.as_native(array)
        if array.shape != shape:
            whose = "the result has" if name == "out" else "the plan is for"
            raise ValueError(f"{name} has shape {array.shape}; {whose} {shape}")
        if array.dtype != dtype:
            raise TypeError(f"{name} is {array.dtype}; the plan is for {dtype}")
        if not array.flags.c_contiguous:
            raise ValueError(f"{name} is not contiguous")
        if self.gpu is not None and array.data.device_id != self.gpu:
            raise ValueError(f"{name} is on GPU {arrays.gpu(array)}; the plan is for {self.gpu}")
        return array if array.ndim == 1 else array.reshape(-1)


# ---- the calls, and their faults, which reach every rank, at once or later -----------------------


class Calls:
    """The calls of a plan whose scan is decided."""

    def __init__(
        self,
        scan: ShardScan,
        comm: Comm,
        expected: Expected,
        check: Callable[[Any], None] | None = None,
        *,
        has_elements: bool,
        agree: bool,
        number: int,
    ) -> None:
        """Prepare the exchange; collective. The plan has the same ``number`` on every rank.

        ``check`` raises ValueError for shards whose elements cannot be scanned.
        """
        self._scan, self._comm, self._agree = scan, comm, agree
        self._expected, self._check = expected, check
        self._type, self._describe = expected.array, arrays.describer(expected.gpu)
        self._locate = locator(expected.gpu)
        #: The properties and the addresses of the last arrays that were checked.
        self._properties: tuple[Any, ...] = ()
        self._addresses: tuple[int, ...] = ()
        types = scan.types
        self._sizes = (
            expected.size * types.x.itemsize,
            math.prod(expected.out_shape) * types.out.itemsize,
        )
        self._in_place = types.x == types.out
        #: Whether the last call has scanned these arrays, whose elements need no check.
        self._repeats = False
        self._exchanges = scan.across and has_elements
        if self._exchanges:
            with agreed(comm):
                scan.exscan.reserve()
            scan.exscan.prepare(comm)
        self._notices = None
        if self._exchanges and not agree:  # then faults are not agreed on, but sent later
            self._notices = Notices(comm, number, reverse=scan.form.reverse)
        self._are_local = not self._exchanges and not (agree and comm.size > 1)
        self._handshake = scan.exscan if isinstance(scan.exscan, Handshake) else None

    def run(self, x: Any, out: Any, segments: Any) -> Any:
        """Scan ``x`` into ``out``, and return the result; collective."""
        steps: Any = self._scan.steps
        again = self._repeats and self._can_repeat(x, out, segments)
        if self._are_local:
            if again and steps.repeat():
                return out
            shard, target, flags, out = self._arrays(x, out, segments)
            steps.finish(steps.begin(shard, target, flags, overlap=True), self._scan.form.seed)
            self._repeats = self._check is None
            return out
        if self._handshake is not None and again:
            number = steps.begin_again()
            if number is not None:
                return self._run_again(number, out)
        result = self.wait(self._begin(x, out, segments, overlap=True))
        self._repeats = self._handshake is not None
        return result

    def _run_again(self, number: int, out: Any) -> Any:
        """Scan the last arrays again, when the hosts of the other ranks have come to this call."""
        assert self._handshake is not None
        assert self._notices is not None
        self._handshake.come()
        steps: Any = self._scan.steps
        heard = self._notices.receive()
        try:
            self._handshake.wait(self._comm)
        except RankError:
            steps.call_off()
            raise
        steps.finish_again(number)
        if heard:
            self._notices.raise_fault()
        return out

    def _arrays(self, x: Any, out: Any, segments: Any) -> tuple[Any, Any, Any, Any]:
        """Return what ``Expected.check`` does; arrays like the last ones are not checked again."""
        self._repeats = False
        addresses = self._addresses_alike(x, out, segments)
        if addresses is not None:
            self._addresses = addresses
            flat = x if x.ndim == 1 else x.reshape(-1)
            result = flat, out if out.ndim == 1 else out.reshape(-1), None, out
        else:
            self._properties = ()
            try:
                result = self._expected.check(x, out, segments)
            except BaseException:
                self._scan.steps.call_off()
                raise
            if type(x) is type(out) is self._type and segments is None:
                self._properties = self._describe(x), self._describe(out)
                self._addresses = self._locate(x), self._locate(out)
        if self._check is not None:
            self._check(result[0])
        return result

    def _can_repeat(self, x: Any, out: Any, segments: Any) -> bool:
        """Return whether the steps may ``repeat`` their last call, on these arrays."""
        addresses = self._addresses_alike(x, out, segments)
        if addresses is None:
            return False
        if addresses != self._addresses:
            if not self._scan.steps.move(x, out):
                return False
            self._addresses = addresses
        return True

    def _addresses_alike(self, x: Any, out: Any, segments: Any) -> tuple[int, int] | None:
        """Return the addresses of arrays that differ from the last ones in nothing else; or None.

        They are the same array, or do not overlap.
        """
        describe = self._describe
        if (
            type(x) is not type(out)
            or type(x) is not self._type
            or segments is not None
            or self._properties != (describe(x), describe(out))
        ):
            return None
        source, target = addresses = self._locate(x), self._locate(out)
        x_size, out_size = self._sizes
        in_place = source == target and self._in_place
        apart = source + x_size <= target or target + out_size <= source
        return addresses if in_place or apart else None

    def start(self, x: Any, out: Any, segments: Any) -> tuple[CollectiveCall, Any]:
        """Begin a call, and its exchange; do not wait for other ranks."""
        hosts = self._handshake
        ready = hosts is not None and hosts.is_ready()
        call, out = self._begin(x, out, segments, overlap=False, comes=ready)
        if ready:
            call.exchange()
            if call.fault is None:
                call.queue()
        elif self._exchanges and hosts is None:
            call.start()
        return call, out

    def _begin(
        self, x: Any, out: Any, segments: Any, *, overlap: bool, comes: bool = True
    ) -> tuple[CollectiveCall, Any]:
        """Check the arrays, and begin to find the total; return the call and its result.

        With ``comes``, this rank comes to the handshake, if there is one.
        """
        call = CollectiveCall(self._scan, self._comm)
        try:
            shard, target, flags, out = self._arrays(x, out, segments)
        except BaseException as fault:
            call.fault = fault
        if self._handshake is not None and comes:
            call.come(self._handshake)
        if call.fault is None:
            call.begin(shard, target, flags, overlap=overlap)
        return call, out

    def wait(self, started: tuple[CollectiveCall, Any]) -> Any:
        """Exchange and scan; return the result. With ``agree`` every rank raises, or none does."""
        call, out = started
        if self._handshake is not None:
            call.come(self._handshake)
        if self._agree:
            with Agreement(Votes.of(self._comm)):
                self._exchange_and_finish(call)
        elif self._notices is None:
            self._exchange_and_finish(call)
        else:
            heard = self._notices.receive()
            self._exchange_and_finish(call)
            if heard:
                self._notices.raise_fault()
        return out

    def _exchange_and_finish(self, call: CollectiveCall) -> None:
        if self._exchanges:
            call.exchange()
        fault, notices = call.fault, self._notices
        if fault is not None and notices is not None and not isinstance(fault, RankError):
            notices.send(fault)
        call.finish()

    def check(self) -> None:
        """Raise the faults of earlier calls; local."""
        self._scan.steps.check()
        if self._notices is not None and self._notices.receive():
            self._notices.raise_fault()

    def close(self, call: Agreement) -> None:
        """Free the memory; collective. Raises RankError for faults that no call has raised."""
        self._scan.steps.close()
        call.settle()
        if self._notices is not None:
            self._notices.close()


# ---- plans of fsum: of a known window, or of the window that each call finds ---------------------

MakeScan = Callable[[ScanOptions], ShardScan]  # ``make`` for the shard of a plan


class WindowCalls:
    """The calls of a plan that first look at their elements, as ``scan``; each is collective."""

    def __init__(
        self, comm: Comm, expected: Expected, options: ScanOptions, run_options: RunOptions
    ) -> None:
        """``options`` are those of ``scan`` by fsum."""
        self._comm, self._expected = comm, expected
        self._options = options, run_options

    def run(self, x: Any, out: Any, segments: Any) -> Any:
        """Scan ``x`` into ``out``, and return the result; collective."""
        expected = self._expected
        with Agreement(Votes.of(self._comm)) as call:
            shard, target, flags, out = expected.check(x, out, segments)
            result = target.reshape(expected.out_shape)
            shard = shard.reshape(expected.shape)
            scan_exactly(call, ScanRequest(shard, result, flags, *self._options))
        return out

    def start(self, x: Any, out: Any, segments: Any) -> tuple[Any, Any, Any]:
        """Keep the arrays for ``wait``, which does the work."""
        return x, out, segments

    def wait(self, started: tuple[Any, Any, Any]) -> Any:
        """Scan the arrays that ``start`` was given; collective."""
        return self.run(*started)

    def check(self) -> None:
        """Do nothing: each call raises its faults on every rank."""

    def close(self, call: Agreement) -> None:
        """Do nothing: no memory is kept."""


class ExactPlan(NamedTuple):
    """A plan of ``fsum``, and the window of all elements that there may be."""

    sums: FsumRequest
    x: np.dtype[Any]  # of the elements
    window: Window | None  # None: each call finds it
    asked: ScanOptions
    run_options: RunOptions

    @classmethod
    def of(
        cls, x: np.dtype[Any], asked: ScanOptions, run_options: RunOptions, ranks: int
    ) -> "ExactPlan":
        """Check what a plan asks for; raise TypeError and ValueError."""
        sums = FsumRequest.of(
            x,
            dtype=asked.dtype,
            initial=asked.initial,
            window=asked.window,
            strategy=run_options.strategy,
            ranks=ranks,
        )
        return cls(sums, x, known_window(sums, x), asked, run_options)

    def options(self, most: int, *, words: bool = False) -> ScanOptions:
        """Return the options of a scan of at most so many elements, by an operator of the window.

        For ``words`` see ``FsumRequest.operator``.
        """
        window = Window(0, 0, most) if self.window is None else self.window._replace(most=most)
        check = None if self.sums.limits is None else check_of(self.sums.limits)
        op, initial = self.sums.operator(window, self.x, check=check, words=words)
        return self.asked._replace(op=op, initial=initial, dtype=self.sums.result, window=None)

    def calls(
        self, comm: Comm, make_scan: MakeScan, expected: Expected, **told: Any
    ) -> tuple[ShardScan, Calls | WindowCalls]:
        """Return the scan and the calls of a plan; collective."""
        sums, x, limits = self.sums, self.x, self.sums.limits
        by_scan = WindowCalls(
            comm, expected, self.asked._replace(dtype=sums.result), self.run_options
        )
        if self.window is None:
            return expected.plan, by_scan
        by_kernels = adds_exactly(part_of(x), part_of(sums.result), expected.gpu)
        sizes, words = zip(*comm.allgather((expected.size, by_kernels)), strict=True)
        window = self.window._replace(most=sum(sizes))
        by_words = limits is not None and all(words) and sums.narrow(window, x) is not None
        # Without ``initial``, a sum may be -0.0. Only ``scan`` looks for such sums.
        plain = sums.initial is not None and sums.is_plain and x.kind != "c"
        if by_words and not plain:
            return expected.plan, by_scan
        with agreed(comm):
            part = make_scan(self.options(sum(sizes), words=by_words))
        check = None if limits is None or by_words else check_of(limits)
        return part, Calls(part, comm, expected._replace(plan=part), check, **told)


def known_window(sums: FsumRequest, x: np.dtype[Any]) -> Window | None:
    """Return the window of all elements that there may be, if it is named, or that of a type.

    >>> sums = FsumRequest(np.dtype("f2"), None, None)
    >>> known_window(sums, np.dtype("f2")), known_window(sums, np.dtype("f8"))
    (Window(low=-24, high=16, most=0), None)
    """
    if sums.limits is not None:
        return Window(*sums.limits, 0)
    if x.kind in "biu":
        return Window(0, 64, 0)
    return Window(-24, 16, 0) if x == np.float16 else None
