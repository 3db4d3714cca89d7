"""The exchange of totals between the GPUs of a node, in their own memory: inboxes and kernels.

An inbox is memory of one GPU that the others write. Each rank allocates one, sends its handle to
the others, and opens theirs::

    inbox = Inbox(name, place_words(acc, form), rank, ranks, reverse=reverse)
    handles = comm.allgather(inbox.handle())  # of the caller: nothing here uses MPI
    inbox.open(handles)

Inboxes are kept until the process ends: kernels of other GPUs may still write them. A later plan
takes them again.
"""

from contextlib import suppress
from typing import Any

import cupy
import numpy as np
from cupy.cuda import runtime
from numpy.typing import NDArray

from ..core.arrays import FieldArrays
from ..core.dtypes import Types
from ..core.errors import RankError
from ..core.form import Form
from ..core.operators import BUILTIN, GRADIENT_MAPS, Operator
from ..core.steps import WAIT, wait_limit
from .arguments import Peers, flagged, total_type, view
from .definitions import definitions, register_types, settable
from .kernel import Kernel, launch
from .launches import Reduce, count_unaligned
from .policy import LaunchConfig
from .workspace import LastUse, field_of_row, zeros

_LANES = 32
_ROW_THREADS = 512
_FILL_THREADS = 1024
_DEPTH = 2  # exchanges that an inbox has places for; DEPTH of kernels/linear/exchange.cuh
# Fault of the same file.
_FAULTS = {1: "its call was refused", 2: f"it did not call in time (limit: {{:g}} s, {WAIT})"}


def gpu_uuid() -> bytes:
    """Return the identity of the current GPU, which differs from that of any other."""
    return bytes(runtime.getDeviceProperties(cupy.cuda.Device().id)["uuid"])


def place_words(acc: np.dtype[Any], form: Form) -> int:
    """Return the status words of a total: a state, then 4 bytes in each. A row has several totals.

    >>> place_words(np.dtype("f4"), Form()), place_words(np.dtype("f8"), Form(segmented=True))
    (2, 5)
    """
    return 1 + -(-total_type(acc, form).itemsize // 4) * form.extents.inner


class FaultWord:
    """A word of pinned host memory that a kernel sets if this GPU has no offset."""

    nbytes = 8

    def __init__(self) -> None:
        self._pinned = cupy.cuda.alloc_pinned_memory(self.nbytes)
        self.pointer = int(self._pinned.ptr)
        self._word: NDArray[np.uint64] = np.frombuffer(self._pinned, np.uint64, 1)
        self.clear()

    def clear(self) -> None:
        """Forget a fault."""
        self._word[0] = 0

    def raise_fault(self, limit: float = 0) -> None:
        """Raise RankError, once, if the word is set; ``limit`` is how long GPUs wait."""
        word = int(self._word[0])
        if word:
            self.clear()
            why = _FAULTS[word & 0xFFFFFFFF].format(limit)
            raise RankError(
                "an earlier call has no results on this rank: the total of an earlier rank is "
                f"missing, because {why}"
            )


class Inbox:
    """The memory of this rank's GPU that its peers write, and theirs, for one plan at a time.

    Attributes
    ----------
    name
        The same on all ranks, and of no other inboxes.
    rank, ranks
        This rank and the number of ranks. With ``reverse``, the last rank is the first in the order
        of the scan.
    words
        The status words of a total: see ``place_words``.
    gpu
        The number of the GPU.
    is_captured
        Whether a CUDA graph uses the inboxes, which may be launched until the process ends.
    last
        The last use, where several scans share the inboxes.
    arguments
        The argument of kernels that exchange totals.
    """

    last: LastUse | None = None

    def __init__(self, name: str, words: int, rank: int, ranks: int, *, reverse: bool) -> None:
        """Allocate on the current GPU."""
        self.name, self.words, self.rank, self.ranks = name, words, rank, ranks
        self.reverse, self.gpu, self.is_captured = reverse, cupy.cuda.Device().id, False
        size = 8 * ranks * (_DEPTH * words + 1)
        self._pointer = int(runtime.malloc(size))  # not from a pool: its handle is of it alone
        runtime.memset(self._pointer, 0, size)
        self._number = cupy.zeros(1, np.uint32)
        self._fault = FaultWord()
        self._opened: list[int] = []
        self._pointers: Any = None

    def handle(self) -> bytes:
        """Return the handle by which other ranks open this inbox."""
        return bytes(runtime.ipcGetMemHandle(self._pointer))

    def open(self, handles: list[bytes]) -> None:
        """Open the inboxes of all ranks, by their handles in rank order, and begin.

        Each rank has a GPU of its own. Raises CUDARuntimeError if GPUs do not reach each other.
        """
        pointers = []
        for rank, handle in enumerate(handles):
            if rank == self.rank:
                pointers.append(self._pointer)
                continue
            flags = runtime.cudaIpcMemLazyEnablePeerAccess
            self._opened.append(int(runtime.ipcOpenMemHandle(handle, flags)))
            pointers.append(self._opened[-1])
        step = -1 if self.reverse else 1
        self._pointers = cupy.asarray(np.array(pointers[::step], np.uint64))
        cupy.cuda.Device().synchronize()
        self.begin()

    def begin(self) -> None:
        """Begin to serve a plan; no other one uses the inboxes."""
        self._limit = wait_limit()
        self._fault.clear()
        self.arguments = Peers(
            self._pointers.data.ptr,
            self._number.data.ptr,
            self._fault.pointer,
            round(self._limit * 1e9),
            self.ranks - 1 - self.rank if self.reverse else self.rank,
            self.ranks,
            self.words,
        )

    def count(self) -> int:
        """Wait for all work of the GPU; return how many exchanges there were, modulo 2^32."""
        cupy.cuda.Device().synchronize()
        return int(self._number[0])

    def raise_fault(self) -> None:
        """Raise RankError, once, if an exchange that has ended was without another GPU's total."""
        self._fault.raise_fault(self._limit)

    def close_others(self) -> None:
        """Close what ``open`` has opened, where it has failed on some rank."""
        for pointer in self._opened:
            with suppress(runtime.CUDARuntimeError):
                runtime.ipcCloseMemHandle(pointer)
        self._opened.clear()

    def free(self) -> None:
        """Free this inbox, which no rank has open, and no kernel has used."""
        with suppress(runtime.CUDARuntimeError):
            runtime.free(self._pointer)


class OffsetWords:
    """The status words of an offset on the GPU, and behind them a word for the scan's answer."""

    def __init__(self, acc: np.dtype[Any], form: Form) -> None:
        size = 1 + -(-(flagged(acc) if form.segmented else acc).itemsize // 4)
        self._words = zeros(size + 1, np.uint64)
        self.nbytes = int(self._words.nbytes)
        self.pointer = int(self._words.data.ptr)
        self.answer = self.pointer + 8 * size


class ReduceExchange(Reduce):
    """The kernel of ``kernels/reduce_exchange.cu``: it finds the total, and exchanges it."""

    _entry = "reduce_exchange"

    def __init__(
        self, op: Operator, types: Types, n: int, form: Form, *, words: OffsetWords
    ) -> None:
        """Do as ``Reduce``; the offset goes to ``words``."""
        super().__init__(op, types, n, form)
        set_exchange(self.arguments, form.seed, register_types(op, types).acc, words)

    def _bind(self, op: Operator) -> None:
        """Do nothing: exact sums, which have a unit, are not exchanged by GPUs."""

    def prepare_exchange(self, x: Any, y: Any, heads: Any, inbox: Inbox) -> None:
        """Set the other arguments but the epoch."""
        self._prepare(x)
        self.arguments.y, self.arguments.peers = y.data.ptr, inbox.arguments
        if heads is not None:
            self.arguments.heads = heads.data.ptr


class FusedScan(Kernel):
    """The kernel of ``kernels/fused.cu``: it finds the total, exchanges it, and scans."""

    together = True

    def __init__(
        self,
        op: Operator,
        types: Types,
        n: int,
        form: Form,
        config: LaunchConfig,
        *,
        words: OffsetWords,
    ) -> None:
        """Compile, and allocate a total for each block. ``types`` are those in registers."""
        macros = definitions(op, types, form, **config.policy)
        super().__init__("fused", macros, types.acc, config.threads, config.shared)
        self._n, self._reverse = n, form.reverse
        self._tile, self._most_blocks = config.tile, config.blocks
        arguments, stride = self.arguments, config.blocks
        self._totals = zeros((-(-types.acc.itemsize // 4), stride), np.uint64)
        self.nbytes = int(self._totals.nbytes)
        self._shard = arguments.shard  # sets the arguments
        self._shard.n = n
        arguments.totals.words, arguments.totals.stride = self._totals.data.ptr, stride
        set_exchange(arguments, form.seed, types.acc, words)

    def prepare(self, x: Any, y: Any, inbox: Inbox) -> None:
        """Set all other arguments."""
        head = count_unaligned(y, self._n, reverse=self._reverse)
        tiles = -(-(self._n - head) // self._tile)
        self.blocks = max(1, min(tiles, self._most_blocks))
        arguments, shard = self.arguments, self._shard
        arguments.x, arguments.y, arguments.peers = x.data.ptr, y.data.ptr, inbox.arguments
        shard.unaligned_head, shard.tiles = head, tiles + (head > 0)


class CallOff(Kernel):
    """The kernel of ``kernels/call_off.cu``: it takes part in an exchange without a total."""

    def __init__(self) -> None:
        """Compile; the kernel is the same for all types."""
        super().__init__("call_off", {}, np.dtype(np.uint8), _LANES)

    def prepare(self, inbox: Inbox) -> None:
        """Set the arguments."""
        self.arguments.peers = inbox.arguments


class OffsetRow:
    """A row of offsets on the GPU, and a word that says whether the call has none.

    Attributes
    ----------
    pointer, called_off
        The addresses of the row [inner], and of the word.
    """

    def __init__(self, acc: np.dtype[Any], inner: int) -> None:
        self._row = cupy.empty(inner * acc.itemsize, np.uint8)
        self._called_off = zeros(1, np.uint32)
        self.nbytes = int(self._row.nbytes + self._called_off.nbytes)
        self.pointer, self.called_off = int(self._row.data.ptr), int(self._called_off.data.ptr)

    def field(self, acc: np.dtype[Any], name: str, inner: int) -> Any:
        """View a field [inner] of the row, whose structures are ``acc``."""
        return field_of_row(self._row, acc, name, inner)


class RowExchange(Kernel):
    """The kernel of ``kernels/row_exchange.cu``: it exchanges a row of totals."""

    def __init__(self, op: Operator, types: Types, form: Form, offset: OffsetRow) -> None:
        """Compile, and allocate the row of totals. ``types`` are those in registers."""
        totals = types._replace(out=types.acc)  # the type of results may be declared elsewhere
        macros = definitions(op, totals, Form(), threads=_ROW_THREADS)
        super().__init__("row_exchange", macros, types.acc, _ROW_THREADS)
        inner = form.extents.inner
        self._totals = cupy.empty(inner * types.acc.itemsize, np.uint8)
        self.nbytes = int(self._totals.nbytes)
        #: The address of the row of totals.
        self.totals = int(self._totals.data.ptr)
        self.arguments.total, self.arguments.inner = self.totals, inner
        self.arguments.called_off = offset.called_off
        set_exchange(self.arguments, form.seed, types.acc, offset)

    def prepare(self, inbox: Inbox) -> None:
        """Set all other arguments."""
        self.arguments.peers = inbox.arguments


class Fill(Kernel):
    """The kernel of ``kernels/fill.cu``: it follows the scan of a call that may have no offset."""

    def __init__(self, dtype: np.dtype[Any], n: int, offset: OffsetRow) -> None:
        """Compile, for results [n] of a type."""
        types = Types(dtype, dtype, dtype)
        macros = definitions(BUILTIN["sum"], types, Form(), threads=_FILL_THREADS)
        super().__init__("fill", macros, dtype, _FILL_THREADS)
        self.arguments.n, self.arguments.called_off = n, offset.called_off


class Fills:
    """The kernels that fill the results of a call: one for each array."""

    nbytes = 0

    def __init__(self, op: Operator, types: Types, n: int, offset: OffsetRow) -> None:
        """Compile, for arrays [n] of results."""
        names = types.out.names or ()
        stored = names[:2] if op is GRADIENT_MAPS else names  # the third one is read
        each = [types.out[name] for name in stored] or [types.out]
        self._kernels = [Fill(dtype, n, offset) for dtype in each]

    def prepare(self, y: Any) -> None:
        """Set the results: an array, or one for each field."""
        results = y.addresses if isinstance(y, FieldArrays) else [y.data.ptr]
        for kernel, pointer in zip(self._kernels, results, strict=False):
            kernel.arguments.y = pointer

    def launch(self, stream: Any) -> None:
        """Queue the kernels."""
        for kernel in self._kernels:
            launch(kernel, stream)


def set_exchange(
    arguments: Any,
    first: NDArray[Any] | None,
    acc: np.dtype[Any],
    offset: OffsetWords | OffsetRow,
) -> None:
    """Set the arguments of an exchange that are the same in each launch."""
    arguments.offset, arguments.has_first = offset.pointer, first is not None
    if first is not None:
        settable(view(arguments, "first", acc))[0] = first
