"""The exchange of totals between the GPUs of a node, in their own memory: inboxes and kernels.

An inbox is memory of one GPU that the others write. Each rank allocates one, sends its handle to
the others, and opens theirs::

    inbox = Inbox(types.acc, ranks)
    cards = comm.allgather(inbox.card())      # of the caller: nothing here uses MPI
    inbox.open(cards, rank, reverse=reverse)
    ...
    inbox.close_others()                      # on every rank, before any rank frees its own
    comm.Barrier()
    inbox.free()
"""

from typing import Any, NamedTuple

import cupy
import numpy as np
from cupy.cuda import runtime
from numpy.typing import NDArray

from ..core.dtypes import Types
from ..core.errors import RankError
from ..core.form import Form
from ..core.operators import Operator
from ..core.steps import WAIT, wait_limit
from .arguments import Peers, view
from .definitions import definitions, settable
from .kernel import Kernel
from .launches import Reduce

_LANES = 32
_DEPTH = 2  # exchanges that an inbox has places for; DEPTH of kernels/linear/exchange.cuh
_FAULTS = {1: "its call was refused", 2: "it did not call in time"}  # Fault of the same file


class Card(NamedTuple):
    """What other ranks need to open an inbox."""

    gpu: bytes  # its UUID
    handle: bytes  # of CUDA IPC


def words_of(dtype: np.dtype[Any]) -> int:
    """Return the number of status words of an offset: a state, then 4 bytes of the value in each.

    >>> words_of(np.dtype("f4")), words_of(np.dtype("f8"))
    (2, 3)
    """
    return 1 + -(-dtype.itemsize // 4)


class Inbox:
    """The memory of this rank's GPU that its peers write, and their inboxes, once ``open``."""

    def __init__(self, acc: np.dtype[Any], ranks: int) -> None:
        """Allocate on the current GPU. ``acc`` is the type of totals in registers."""
        self.limit = wait_limit()
        size = 8 * ranks * (_DEPTH * words_of(acc) + 1)
        self.pointer = int(runtime.malloc(size))  # not from a pool: its handle is of it alone
        runtime.memset(self.pointer, 0, size)
        self._opened: list[int] = []
        self._number = cupy.zeros(1, np.uint32)
        self._fault = cupy.cuda.alloc_pinned_memory(8)
        self._fault_word: NDArray[np.uint64] = np.frombuffer(self._fault, np.uint64, 1)
        self._fault_word[0] = 0
        self._inboxes: Any = None
        #: Whether a CUDA graph uses it, which may be launched until the process ends.
        self.is_captured = False
        self.arguments: Any = None
        cupy.cuda.Device().synchronize()

    def card(self) -> Card:
        """Return what other ranks need to open this inbox."""
        device = cupy.cuda.Device()
        uuid = runtime.getDeviceProperties(device.id)["uuid"]
        return Card(bytes(uuid), bytes(runtime.ipcGetMemHandle(self.pointer)))

    def open(self, cards: list[Card], rank: int, *, reverse: bool) -> None:
        """Open the inboxes of all ranks, in rank order; this one is that of ``rank``.

        Raises ValueError if ranks share a GPU, and CUDARuntimeError if GPUs do not reach each
        other.
        """
        if len({card.gpu for card in cards}) < len(cards):
            raise ValueError("strategy 'fused' needs a GPU for each rank: some ranks share one")
        pointers = []
        for number, card in enumerate(cards):
            if number == rank:
                pointers.append(self.pointer)
                continue
            flags = runtime.cudaIpcMemLazyEnablePeerAccess
            self._opened.append(int(runtime.ipcOpenMemHandle(card.handle, flags)))
            pointers.append(self._opened[-1])
        step = -1 if reverse else 1
        self._inboxes = cupy.asarray(np.array(pointers[::step], np.uint64))
        place = len(cards) - 1 - rank if reverse else rank
        self.arguments = Peers(
            self._inboxes.data.ptr,
            self._number.data.ptr,
            self._fault.ptr,
            round(self.limit * 1e9),
            place,
            len(cards),
        )
        cupy.cuda.Device().synchronize()

    def raise_fault(self) -> None:
        """Raise RankError, once, if an exchange that has ended was without another GPU's total."""
        word = int(self._fault_word[0])
        if word:
            self._fault_word[0] = 0
            why = _FAULTS.get(word & 0xFFFFFFFF, "an unknown fault")
            raise RankError(
                f"call {word >> 32} of this plan has stored nothing on this rank: the total of an "
                f"earlier rank is missing, because {why} (limit: {self.limit:g} s, {WAIT})"
            )

    def close_others(self) -> None:
        """Close the inboxes of the other ranks. All work that writes to them must have ended."""
        for pointer in self._opened:
            runtime.ipcCloseMemHandle(pointer)
        self._opened.clear()

    def free(self) -> None:
        """Free this inbox. The other ranks must have closed it."""
        pointer, self.pointer = self.pointer, 0
        if pointer:
            runtime.free(pointer)


class OffsetWords:
    """The status words of an offset on the GPU, and behind them a word for the scan's answer."""

    def __init__(self, acc: np.dtype[Any]) -> None:
        size = words_of(acc)
        self._words = cupy.zeros(size + 1, np.uint64)
        self.nbytes = int(self._words.nbytes)
        self.pointer = int(self._words.data.ptr)
        self.answer = self.pointer + 8 * size


class ReduceExchange(Reduce):
    """The kernel of ``kernels/reduce_exchange.cu``: it finds the total, and exchanges it."""

    _entry = "reduce_exchange"

    def _bind(self, op: Operator) -> None:
        """Do nothing: exact sums, which have a unit, are not exchanged by GPUs."""

    def seed(self, first: NDArray[Any] | None, acc: np.dtype[Any], words: OffsetWords) -> None:
        """Set what comes before the first shard, and where the offset goes."""
        set_exchange(self.arguments, first, acc, words)

    def prepare_exchange(self, x: Any, inbox: Inbox, epoch: int) -> None:
        """Set the other arguments."""
        self._prepare(x, epoch)
        self.arguments.peers = inbox.arguments


class CallOff(Kernel):
    """The kernel of ``kernels/exchange.cu``: it takes part in an exchange without a total."""

    def __init__(self, op: Operator, types: Types, words: OffsetWords) -> None:
        """Compile; ``types`` are those in registers."""
        super().__init__("exchange", definitions(op, types, Form()), types.acc, _LANES)
        set_exchange(self.arguments, None, types.acc, words)

    def prepare(self, inbox: Inbox, epoch: int) -> None:
        """Set the other arguments."""
        self.arguments.peers, self.arguments.epoch = inbox.arguments, epoch


def set_exchange(
    arguments: Any, first: NDArray[Any] | None, acc: np.dtype[Any], words: OffsetWords
) -> None:
    """Set the arguments of an exchange that are the same in each launch."""
    arguments.offset, arguments.has_first = words.pointer, first is not None
    if first is not None:
        settable(view(arguments, "first", acc))[0] = first
