"""The scan over ranks as people write it by hand: a first form, and an expert's form for GPUs."""

import warnings
from ctypes import c_int, c_longlong, c_void_p
from functools import partial
from typing import Any

import numpy as np

from ..mpi.agree import agreed
from ..mpi.communicators import Comm
from . import cub
from .case import Task
from .timing import Call


def first_form(task: Task) -> list[Call]:
    """Scan the shard, exchange the last elements on the host, and add in place.

    This takes 4 passes over memory.
    """
    xp, comm = task.machine.xp, task.comm

    def call(x: Any, out: Any) -> None:
        xp.cumsum(x, dtype=out.dtype, out=out)
        last = out[-1:] if xp is np else out[-1:].get()
        before = np.zeros_like(last)
        comm.Exscan(last, before)
        if comm.rank > 0:
            out += before[0]

    return [partial(call, *pair) for pair in task.pairs]


# ---- the expert's form ---------------------------------------------------------------------


def expert_version() -> str:
    """Return the versions of CUB and NCCL; raise ImportError if one of them is missing."""
    return f"{cub.version()}, NCCL {nccl_module().get_version()}"


def expert(task: Task) -> list[Call]:
    """Reduce by CUB, gather all totals by NCCL, and scan by CUB from a start value on the device.

    The host waits for nothing. This takes 3 passes over memory.
    """
    steps, between = _Steps(task), nccl_communicator(task.comm)
    total, totals, size = steps.total.data.ptr, steps.totals.data.ptr, steps.total.nbytes
    stream, in_bytes = task.machine.xp.cuda.get_current_stream().ptr, nccl_module().NCCL_INT8

    def call(x: c_void_p, out: c_void_p) -> None:
        steps.reduce(x)
        between.allGather(total, totals, size, in_bytes, stream)
        steps.scan_behind(x, out, task.comm.rank)

    return [partial(call, *pair) for pair in steps.pairs]


def rehearse_expert(task: Task) -> None:
    """Do the local steps. So a rank that fails alone does so before other ranks wait for it."""
    steps = _Steps(task)
    steps.reduce(steps.pairs[0][0])
    steps.scan_behind(*steps.pairs[0], 0)


class _Steps:
    """The local steps of the expert's form, and the memory that they share."""

    def __init__(self, task: Task) -> None:
        xp, case = task.machine.xp, task.case
        self._entries = cub.entries("BY_HAND", case)
        self.total, self._start = xp.empty(1, case.out), xp.empty(1, case.out)
        self.totals = xp.empty(task.comm.size, case.out)
        self.pairs = [(c_void_p(x.data.ptr), c_void_p(out.data.ptr)) for x, out in task.pairs]
        self._n, self._stream = c_longlong(case.n), cub.stream_of(xp)
        self._to_total, self._from_totals, self._to_start = (
            c_void_p(array.data.ptr) for array in (self.total, self.totals, self._start)
        )
        x, out = self.pairs[0]
        self._memory = cub.Memory(
            xp,
            lambda temp, size: self._reduce(temp, size, x),
            lambda temp, size: self._scan_behind(temp, size, x, out, 0),
        )

    def reduce(self, x: c_void_p) -> None:
        """Find this rank's total."""
        self._reduce(self._memory.pointer, self._memory.size, x)

    def scan_behind(self, x: c_void_p, out: c_void_p, rank: int) -> None:
        """Combine the totals of the ranks before ``rank`` to the offset, and scan from it on."""
        self._scan_behind(self._memory.pointer, self._memory.size, x, out, rank)

    def _reduce(self, temp: Any, size: Any, x: c_void_p) -> None:
        self._entries.reduce(temp, size, x, self._to_total, self._n, self._stream)

    def _scan_behind(self, temp: Any, size: Any, x: c_void_p, out: c_void_p, rank: int) -> None:
        self._entries.scan_behind(
            temp, size, x, out, self._from_totals, c_int(rank), self._to_start, self._n,
            self._stream,
        )  # fmt: skip


def nccl_module() -> Any:
    """Return CuPy's module of NCCL; raise ImportError where there is none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # CuPy warns if it finds no NCCL
        from cupy.cuda import nccl  # noqa: PLC0415 - a CPU run need not have CuPy
    if not nccl.available:
        raise ImportError("CuPy finds no NCCL")
    return nccl


communicators: dict[int, Any] = {}  # NCCL's communicators, by the handles of MPI's


def nccl_communicator(comm: Comm) -> Any:
    """Return NCCL's communicator of the ranks of ``comm``. It is made once; collective."""
    nccl, handle = nccl_module(), comm.py2f()
    if handle not in communicators:
        with agreed(comm):
            identity = nccl.get_unique_id() if comm.rank == 0 else None
        identity = comm.bcast(identity)
        communicators[handle] = nccl.NcclCommunicator(comm.size, identity, comm.rank)
    return communicators[handle]
