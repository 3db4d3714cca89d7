"""The expert's scan over ranks, with NumPy in CUB's place and MPI in NCCL's: at any ranks."""

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest

from distscan.bench import contenders, cub, suite
from distscan.bench.case import Case
from distscan.bench.contenders import CONTENDERS
from distscan.bench.timing import Host
from distscan.core.operators import BUILTIN

(EXPERT,) = (contender for contender in CONTENDERS if contender.name == "by-hand-expert")
SIZE = 77  # of CUB's temporary memory


class Array(np.ndarray):
    """Has an address where CuPy's arrays have it."""

    @property
    def data(self):
        return SimpleNamespace(ptr=self.ctypes.data)


class Pretended(Host):
    """NumPy where the expert expects CuPy."""

    def __init__(self):
        super().__init__("a chip")
        self.cache = 1 << 12
        self.xp = SimpleNamespace(
            empty=lambda *given: np.empty(*given).view(Array),
            random=np.random,
            cuda=SimpleNamespace(get_current_stream=lambda: SimpleNamespace(ptr=5)),
        )


def at(pointer, n, dtype):
    """The array of ``n`` elements at an address."""
    address = pointer.value if isinstance(pointer, ctypes.c_void_p) else pointer
    buffer = (ctypes.c_char * (n * np.dtype(dtype).itemsize)).from_address(address)
    return np.frombuffer(buffer, dtype)


class Entries:
    """Those of cub.cu."""

    def __init__(self, dtype):
        self.dtype, self.fails = dtype, False

    def _sized(self, temp, size):
        assert (temp is None) == (size._obj.value != SIZE)
        size._obj.value = SIZE
        return temp is None

    def reduce(self, temp, size, x, total, n, stream):
        if self._sized(temp, size):
            return
        if self.fails:
            raise RuntimeError("CUB's reduce ended with CUDA error 2")
        assert stream.value == 5
        at(total, 1, self.dtype)[0] = at(x, n.value, self.dtype).sum()

    def scan_behind(self, temp, size, x, out, totals, rank, start, n, stream):
        if self._sized(temp, size):
            return
        assert stream.value == 5
        before = at(start, 1, self.dtype)
        before[0] = at(totals, rank.value, self.dtype).sum() if rank.value else 0
        at(out, n.value, self.dtype)[...] = before + at(x, n.value, self.dtype).cumsum()


@pytest.fixture
def pretend(comm, monkeypatch):
    """Put NumPy and MPI in place; return CUB's entries."""
    entries, identity = Entries("f4"), b"the ranks' own"

    class Communicator:
        def __init__(self, size, given, rank):
            assert (size, given, rank) == (comm.size, identity, comm.rank)

        def allGather(self, one, everyone, count, kind, stream):
            assert (kind, stream) == (0, 5)
            found = comm.allgather(ctypes.string_at(one, count))
            ctypes.memmove(everyone, b"".join(found), count * comm.size)

    nccl = SimpleNamespace(NCCL_INT8=0, get_unique_id=lambda: identity,
                           NcclCommunicator=Communicator)  # fmt: skip
    monkeypatch.setattr(cub, "entries", lambda part, case: entries)
    monkeypatch.setattr(contenders, "nccl_module", lambda: nccl)
    monkeypatch.setattr(contenders, "nccl_communicators", {})
    return entries


def measured(comm):
    case = Case(BUILTIN["sum"], np.dtype("f4"), np.dtype("f4"), 1000, comm.size)
    (row,) = suite.measure(comm, Pretended(), [EXPERT], case, 11)
    return row


def test_right(comm, pretend):
    row = measured(comm)
    assert row.message == ""
    assert row.status == "timed"


def test_a_fault_on_one_rank_leaves_no_other_waiting(comm, pretend):
    pretend.fails = comm.rank == comm.size - 1
    row = measured(comm)
    assert row.status == "error"
    assert "CUDA error 2" in row.message


def test_no_identity_leaves_no_other_waiting(comm, pretend, monkeypatch):
    def fail():
        raise RuntimeError("no network")

    monkeypatch.setattr(contenders.nccl_module(), "get_unique_id", fail)
    row = measured(comm)
    assert row.status == "error"
    assert "no network" in row.message
