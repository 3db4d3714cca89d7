"""The steps of GPUs that exchange totals themselves: the host waits for nothing.

::

    fused        shards up to 2^26 float32   one kernel
                 longer ones, or segments    reduction and exchange, seeded scan
                 rows of totals              reduction, exchange, seeded scan, fill
    nccl         all, but rows               reduction, all-gather, offset, seeded scan
                 rows of totals              reduction, all-gather, offsets, seeded scan, fill

Without an offset, a scan of columns stores wrong results, which the kernel ``fill`` replaces. Other
scans store none.
"""

from collections.abc import Callable
from typing import Any

import cupy
from cupy_backends.cuda.api import runtime
from numpy.typing import NDArray

from ..core.dtypes import Types
from ..core.form import Form
from ..core.operators import Operator
from ..core.steps import Pending
from . import columns, workspace
from .definitions import register_types
from .kernel import launch, side_by_side
from .launches import Reduce
from .nccl import Communicator, GatheredOffset, GatheredRow, GatheredTotals
from .peers import (
    CallOff,
    FaultWord,
    Fills,
    FusedScan,
    Inbox,
    OffsetRow,
    OffsetWords,
    ReduceExchange,
    RowExchange,
    place_words,
)
from .policy import fused_config
from .steps import GpuCall, Strategy
from .workspace import Workspace, is_capturing


class OnGpus(Strategy):
    """A strategy whose GPUs exchange totals themselves; the host waits for nothing.

    A call is queued as a whole. ``begin`` queues it. With ``follows_hosts``, ``finish`` does, when
    the hosts of the ranks have come to this call. The caller connects the ranks before the first
    call.
    """

    captured = ""
    #: Whether a call waits for ``queue`` or ``finish``.
    follows_hosts = False
    #: Whether this GPU has taken part in as many exchanges as the others. They have no other number
    #: by which they could tell the totals of two calls apart.
    in_step = True
    #: Whether ranks agree on faults before a call is queued: then none is called off.
    agrees = False
    #: Whether the caller has connected the ranks.
    is_connected = False

    def begin(self, x: Any, out: Any, segments: Any = None, *, overlap: bool = False) -> Pending:
        """Begin the scan of ``x`` into ``out``."""
        self.are_set = False
        if not self.in_step:
            raise RuntimeError(
                "this plan is out of step with other ranks: in an earlier call, this rank took no "
                "part in the exchange of totals; make a new plan"
            )
        try:
            call = GpuCall(self, x, out, segments, overlap)
            self._set_arrays(call.work, call.x, call.out, call.heads)
        except BaseException:
            if not self.agrees:
                self.call_off()
            raise
        if not (self.follows_hosts or self.agrees):
            self.queue(call)
        return call

    def queue(self, call: Any) -> None:
        """Queue a call."""
        self.in_step = False
        self._launch_in_order(call)
        self.in_step = call.is_queued = True
        call.end()
        self._note_arguments(call)

    def finish(self, call: Any, offset: NDArray[Any] | None) -> None:
        """End a call, whose result is ready in the order of the current stream.

        Raises RankError if an earlier call of this plan has found no offset.
        """
        if not call.is_queued:
            self.in_step = False  # if ``resume`` raises
            call.resume()
            self.queue(call)
        elif not call.at_once:
            call.resume()
            call.end_part()
        self.raise_fault()

    def repeat(self) -> bool:
        """Scan the last arrays again, on the stream of the last call alone."""
        number = self.begin_again()
        if number is None:
            return False
        self.finish_again(number)
        return True

    def begin_again(self) -> int | None:
        """Begin to scan the last arrays again; return the call's number, or None: it cannot be."""
        try:
            return self._next_number()
        except runtime.CUDARuntimeError:  # another stream is captured: ``begin`` says so
            return None

    def finish_again(self, number: int) -> None:
        """End what ``begin_again`` has begun."""
        self.in_step = False
        self._launch(self.work, number & workspace.LAST, self.work.last.stream)
        self.in_step = True
        self.raise_fault()

    def check(self) -> None:
        """Wait for all work of this GPU; raise RankError if a call has found no offset."""
        cupy.cuda.Device().synchronize()
        self.raise_fault()

    def call_off(self) -> None:
        """Queue an exchange without a total: the other GPUs need not wait for this one.

        A graph does not get it: its replays would all be without a total. The plan is out of step
        then, as after an exception here.
        """
        if not self.in_step:
            return
        self.are_set = self.in_step = False
        stream, work = cupy.cuda.get_current_stream(), self.work
        if is_capturing(stream):
            return
        if stream is not work.last.stream:
            work.last.order(stream)
        work.last.recorded = False
        self._launch_call_off(work, stream)
        self.in_step = True
        if work.last.at_once:
            work.last.record()

    def _launch_in_order(self, call: Any) -> None:
        """Queue a call after earlier ones of the same exchange, on whichever stream they were."""
        self._launch(call.work, call.epoch, call.stream)

    def _launch(self, work: Any, epoch: int, stream: Any) -> None:
        """Queue a call."""
        raise NotImplementedError

    def _launch_call_off(self, work: Any, stream: Any) -> None:
        """Queue an exchange without a total."""
        raise NotImplementedError

    def raise_fault(self) -> None:
        """Raise RankError, once, if a call that has ended has found no offset."""
        raise NotImplementedError


class Fused(OnGpus):
    """Strategy ``fused``, for GPUs of one node that reach each other's memory.

    One kernel reduces, exchanges its total with those of the other GPUs, and scans. It takes the
    whole GPU while it waits for another one. There are two kernels for segments, for a shard that
    is too large, and with ``follows_hosts``, where nobody has asked for that one: the reduction,
    whose last block exchanges the total, and waits alone; and the seeded scan.
    """

    inbox: Any = None  # an ``Inbox``, when the ranks are connected

    def __init__(self, op: Operator, types: Types, form: Form, *, follows_hosts: bool) -> None:
        """Do as ``Strategy``."""
        self.follows_hosts = follows_hosts
        super().__init__(op, types, form)
        #: The status words of a total.
        self.place_words = place_words(register_types(op, types).acc, form)

    @side_by_side()
    def make(self) -> Workspace:
        """Make the kernels, and the words of the offset between them."""
        op, types, n, form = self.op, self.types, self.n, self.form
        registers = register_types(op, types)
        words, call_off, config = OffsetWords(registers.acc, form), CallOff(), None
        if not (self.follows_hosts or form.segmented):
            config = fused_config(registers, n, form)
        if config is not None:
            fused = FusedScan(op, registers, n, form, config, words=words)
            return Workspace(scan=fused, call_off=call_off, total=words)
        reduce = ReduceExchange(op, types, n, form, words=words)
        scan = self.make_scan(op, types)
        return Workspace(scan=scan, reduce=reduce, call_off=call_off, total=words)

    def connect(self, inbox: Inbox, release: Callable[[], object]) -> None:
        """Take inboxes, which are open. ``release`` is called when they are no longer needed."""
        self.inbox, self._release, self.is_connected = inbox, release, True

    def share(self, inbox: Inbox) -> None:
        """Take inboxes that serve other scans, too; the ranks agree on each call."""
        self.inbox, self.agrees, self.is_connected = inbox, True, True

    def _launch_in_order(self, call: Any) -> None:
        last = None if self.inbox is None else self.inbox.last
        if last is not None:
            if call.stream is not last.stream:
                last.order(call.stream)
            last.recorded = False
        super()._launch_in_order(call)
        if last is not None and last.at_once:
            last.record()

    def _set_arrays(self, work: Any, x: Any, out: Any, heads: Any = None) -> None:
        if work.reduce is None:
            work.scan.prepare(x, out, self.inbox)
        else:
            work.reduce.prepare_exchange(x, out, heads, self.inbox)
            work.scan.prepare(x, out, heads)
        if work.is_of_a_graph:
            self.inbox.is_captured = True

    def _launch(self, work: Any, epoch: int, stream: Any) -> None:
        if work.reduce is None:
            launch(work.scan, stream)
            return
        work.reduce.arguments.epoch = epoch
        launch(work.reduce, stream)
        work.scan.take_offset(work.total.pointer, work.total.answer, epoch)
        launch(work.scan, stream)

    def _launch_call_off(self, work: Any, stream: Any) -> None:
        work.call_off.prepare(self.inbox)
        launch(work.call_off, stream)

    def raise_fault(self) -> None:
        """Raise RankError, once, if a call that has ended has found no offset."""
        self.inbox.raise_fault()

    def close(self) -> None:
        """Free the memory once all queued work has ended. Raises as ``check``."""
        try:
            super().close()
        finally:
            self._release()


class FusedRows(Fused):
    """Strategy ``fused`` along an axis that is not the last: a total is a row."""

    @side_by_side()
    def make(self) -> Workspace:
        """Make the kernels, and the rows of totals and of offsets between them."""
        op, types, n, form = self.op, self.types, self.n, self.form
        registers = register_types(op, types)
        row = OffsetRow(registers.acc, form.extents.inner)
        return Workspace(
            scan=self.make_scan(op, types),
            reduce=columns.Reduce(op, types, n, form),
            exchange=RowExchange(op, registers, form, row),
            call_off=CallOff(),
            fills=Fills(op, types, self.size, row),
            total=row,
        )

    def _set_arrays(self, work: Any, x: Any, out: Any, heads: Any = None) -> None:
        work.reduce.prepare(x, work.exchange.totals, 0)
        work.exchange.prepare(self.inbox)
        work.scan.prepare(x, out)
        work.fills.prepare(out)
        if work.is_of_a_graph:
            self.inbox.is_captured = True

    def _launch(self, work: Any, epoch: int, stream: Any) -> None:
        launch(work.reduce, stream)
        launch(work.exchange, stream)
        launch_rows(work, epoch, stream, seed=self.form.seed, place=self.inbox.arguments.rank)


class Nccl(OnGpus):
    """Strategy ``nccl``, for GPUs of any nodes: reduction, all-gather of the totals, seeded scan.

    Each call has the steps of ``reduce-scan``; NCCL takes the place of MPI.
    """

    def __init__(self, op: Operator, types: Types, form: Form, *, ranks: int) -> None:
        """Do as ``Strategy``, for so many ranks."""
        self._ranks, self._fault = ranks, FaultWord()
        super().__init__(op, types, form)

    @side_by_side()
    def make(self) -> Workspace:
        """Make the kernels, and the words of totals and of the offset between them."""
        op, types, n, form = self.op, self.types, self.n, self.form
        registers = register_types(op, types)
        words = OffsetWords(registers.acc, form)
        return Workspace(
            scan=self.make_scan(op, types),
            reduce=Reduce(op, types, n, form),
            exchange=GatheredOffset(op, registers, form, n, words),
            totals=GatheredTotals(place_words(registers.acc, form) - 1, self._ranks),
            total=words,
            fault=self._fault,
        )

    def connect(self, communicator: Communicator) -> None:
        """Take a communicator of all ranks, which is kept with MPI's."""
        self._communicator, rank = communicator, communicator.rank
        self._place = self._ranks - 1 - rank if self.form.reverse else rank
        self.is_connected = True

    def share(self, communicator: Communicator) -> None:
        """Take one that serves other scans, too; the ranks agree on each call."""
        self.connect(communicator)
        self.agrees = True

    def _set_arrays(self, work: Any, x: Any, out: Any, heads: Any = None) -> None:
        work.reduce.prepare(x, work.totals.sent, 0, heads)  # its epoch: `_launch`
        work.exchange.prepare(out, work.totals, self._fault, self._place)
        work.scan.prepare(x, out, heads)

    def _launch(self, work: Any, epoch: int, stream: Any) -> None:
        work.reduce.arguments.epoch = work.exchange.arguments.epoch = epoch
        launch(work.reduce, stream)
        work.totals.gather(self._communicator, stream)
        launch(work.exchange, stream)
        work.scan.take_offset(work.total.pointer, work.total.answer, epoch)
        launch(work.scan, stream)

    def _launch_call_off(self, work: Any, stream: Any) -> None:
        work.totals.gather_nothing(self._communicator, stream)

    def raise_fault(self) -> None:
        """Raise RankError, once, if a call that has ended has found no offset."""
        self._fault.raise_fault()


class NcclRows(Nccl):
    """Strategy ``nccl`` along an axis that is not the last: a total is a row."""

    @side_by_side()
    def make(self) -> Workspace:
        """Make the kernels, and the rows of totals and of offsets between them."""
        op, types, n, form = self.op, self.types, self.n, self.form
        registers, inner = register_types(op, types), form.extents.inner
        row = OffsetRow(registers.acc, inner)
        return Workspace(
            scan=self.make_scan(op, types),
            reduce=columns.Reduce(op, types, n, form),
            exchange=GatheredRow(op, registers, form, row),
            totals=GatheredTotals(-(-inner * registers.acc.itemsize // 8), self._ranks),
            fills=Fills(op, types, self.size, row),
            total=row,
            fault=self._fault,
        )

    def _set_arrays(self, work: Any, x: Any, out: Any, heads: Any = None) -> None:
        work.reduce.prepare(x, work.totals.sent, 0)
        work.exchange.prepare(work.totals, self._fault, self._place)
        work.scan.prepare(x, out)
        work.fills.prepare(out)

    def _launch(self, work: Any, epoch: int, stream: Any) -> None:
        launch(work.reduce, stream)
        work.totals.gather(self._communicator, stream)
        launch(work.exchange, stream)
        launch_rows(work, epoch, stream, seed=self.form.seed, place=self._place)


def launch_rows(
    work: Any, epoch: int, stream: Any, *, seed: NDArray[Any] | None, place: int
) -> None:
    """Queue the scan of columns, seeded with a row of offsets; the first GPU has none."""
    if place == 0:
        work.scan.set_offset(seed, epoch)
    else:
        work.scan.take_offset(work.total.pointer, epoch)
    launch(work.scan, stream)
    work.fills.launch(stream)
