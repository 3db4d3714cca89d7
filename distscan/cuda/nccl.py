"""The exchange of totals by NCCL: they stay on the GPUs, of any number of nodes."""

import functools
import warnings
from contextlib import suppress
from typing import Any

import cupy
import numpy as np

from ..core.dtypes import Types
from ..core.form import Form
from ..core.operators import Operator
from .definitions import definitions
from .kernel import Kernel
from .launches import source_of
from .peers import FaultWord, OffsetRow, OffsetWords, set_exchange
from .workspace import zeros

_THREADS = 256


@functools.cache
def _library() -> Any:
    """Return CuPy's module for NCCL, which is imported where it is used; None if there is none."""
    with warnings.catch_warnings(), suppress(ImportError):
        warnings.simplefilter("ignore")  # CuPy's, with the advice to install it
        from cupy.cuda import nccl  # noqa: PLC0415

        return nccl if nccl.available else None
    return None


def missing() -> str:
    """Return why there is no NCCL; empty if there is.

    >>> missing() in {"", "CuPy finds no NCCL library (pip install nvidia-nccl-cu13)"}
    True
    """
    return "" if _library() else "CuPy finds no NCCL library (pip install nvidia-nccl-cu13)"


def new_name() -> Any:
    """Return a name for a new communicator, which one rank sends to all."""
    return _library().get_unique_id()


class Communicator:
    """A communicator of NCCL, of the current GPU."""

    def __init__(self, name: Any, rank: int, ranks: int) -> None:
        """Join; collective over NCCL. Each rank has a GPU of its own."""
        self.gpu, self.rank, self.ranks = cupy.cuda.Device().id, rank, ranks
        library = _library()
        self._nccl, self._word = library.NcclCommunicator(ranks, name, rank), library.NCCL_UINT64

    def all_gather(self, sent: int, received: int, words: int, stream: Any) -> None:
        """Queue an all-gather of so many words of 8 bytes; both are addresses on the GPU."""
        self._nccl.allGather(sent, received, words, self._word, stream.ptr)

    def leave(self) -> None:
        """Leave, after all work of the GPU."""
        with cupy.cuda.Device(self.gpu):
            cupy.cuda.Device().synchronize()
        self._nccl.destroy()


class Communicators(list[Communicator]):
    """Those of NCCL that are kept with one of MPI: a new one where a rank has taken another GPU."""

    def Free(self) -> None:
        """Leave all, when MPI frees its own."""
        for communicator in self:
            communicator.leave()


class GatheredTotals:
    """The total of this rank's shard on its GPU, and those of all ranks.

    A total, or a row of totals, is followed by a word, which is not 0 if the call was refused.

    Attributes
    ----------
    words
        The words of 8 bytes of a total, with the one that follows it.
    sent, received
        The addresses of this rank's total, and of all totals [ranks, words].
    """

    def __init__(self, words: int, ranks: int) -> None:
        """Allocate for totals of so many words of 8 bytes, and the words that follow them."""
        words += 1
        self.words, self.ranks = words, ranks
        self._sent, self._received = zeros(words, np.uint64), zeros(words * ranks, np.uint64)
        self.sent, self.received = int(self._sent.data.ptr), int(self._received.data.ptr)
        self.nbytes = int(self._sent.nbytes + self._received.nbytes)

    def gather(self, communicator: Communicator, stream: Any) -> None:
        """Queue the exchange."""
        communicator.all_gather(self.sent, self.received, self.words, stream)

    def gather_nothing(self, communicator: Communicator, stream: Any) -> None:
        """Queue an exchange without this rank's total: its call was refused."""
        refused = self._sent[-1:].data
        refused.memset_async(1, 8, stream)
        self.gather(communicator, stream)
        refused.memset_async(0, 8, stream)


class GatheredOffset(Kernel):
    """The kernel of ``kernels/gathered_offset.cu``."""

    def __init__(self, op: Operator, types: Types, form: Form, n: int, offset: OffsetWords) -> None:
        """Compile. ``types`` are those in registers."""
        source = source_of(form)
        macros = definitions(op, types, Form(reverse=form.reverse), source=source, threads=_THREADS)
        super().__init__("gathered_offset", macros, types.acc, _THREADS)
        self.arguments.n = n
        set_exchange(self.arguments, form.seed, types.acc, offset)

    def prepare(self, y: Any, totals: GatheredTotals, fault: FaultWord, place: int) -> None:
        """Set all other arguments but the epoch; ``place`` ranks come before in scan order."""
        arguments = self.arguments
        arguments.y, arguments.gathered, arguments.ranks = y.data.ptr, totals.received, totals.ranks
        arguments.place, arguments.fault = place, fault.pointer


class GatheredRow(Kernel):
    """The kernel of ``kernels/gathered_row.cu``."""

    def __init__(self, op: Operator, types: Types, form: Form, offset: OffsetRow) -> None:
        """Compile. ``types`` are those in registers."""
        totals = types._replace(out=types.acc)  # as in ``RowExchange``
        macros = definitions(op, totals, Form(reverse=form.reverse), threads=_THREADS)
        super().__init__("gathered_row", macros, types.acc, _THREADS)
        self.blocks = -(-form.extents.inner // _THREADS)
        arguments = self.arguments
        arguments.inner, arguments.called_off = form.extents.inner, offset.called_off
        set_exchange(arguments, form.seed, types.acc, offset)

    def prepare(self, totals: GatheredTotals, fault: FaultWord, place: int) -> None:
        """Set all other arguments; ``place`` ranks come before in scan order."""
        arguments = self.arguments
        arguments.gathered, arguments.pitch = totals.received, totals.words
        arguments.ranks, arguments.place, arguments.fault = totals.ranks, place, fault.pointer
