"""The names of ``mpi4py.MPI`` that distscan uses, for one process without an MPI library.

``communicators`` takes them where mpi4py cannot load a library. The communicators have one rank.
Types and operators serve process groups of PyTorch (``torch_group``), too.
"""

import itertools
import os
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

_handles = itertools.count(1)

# ---- buffers, types and operators ----------------------------------------------------------------

buffer = memoryview
IN_PLACE, ANY_SOURCE, COMM_TYPE_SHARED = "in place", -1, "shared"


class Datatype:
    """The type of the elements of a buffer."""

    def __init__(self, dtype: DTypeLike) -> None:
        self.dtype, self.handle = np.dtype(dtype), next(_handles)

    @classmethod
    def fromcode(cls, code: str) -> "Datatype":
        """Return the type of NumPy's character."""
        return cls(code)

    def Create_contiguous(self, count: int) -> "Datatype":
        """Return the type of so many bytes."""
        return Datatype(f"V{count}")

    def Commit(self) -> "Datatype":
        """Return the type."""
        return self

    def Free(self) -> None:
        """Do nothing."""


BYTE, INT64_T = Datatype("u1"), Datatype("i8")


class Op:
    """An operator on the elements of two buffers."""

    def __init__(self, reduce: Callable[[Any, Any, Datatype], object]) -> None:
        self._reduce = reduce

    @classmethod
    def Create(cls, function: Callable[[Any, Any, Datatype], None], commute: bool = False) -> "Op":
        """Return the operator of a function of two buffers and their type; it sets the second."""
        return cls(function)

    @classmethod
    def of(cls, ufunc: np.ufunc) -> "Op":
        """Return the operator of a function of NumPy."""

        def reduce(earlier: Any, later: Any, kind: Datatype) -> None:
            elements = np.frombuffer(later, kind.dtype)
            with np.errstate(all="ignore"):
                ufunc(np.frombuffer(earlier, kind.dtype), elements, out=elements)

        return cls(reduce)

    def Reduce_local(self, earlier: list[Any], later: list[Any]) -> None:
        """Combine two buffers [memory, count, type] into the second one."""
        self._reduce(memoryview(earlier[0]), memoryview(later[0]), later[-1])


OP_NULL = None
SUM, PROD, MAX, MIN = map(Op.of, (np.add, np.multiply, np.maximum, np.minimum))
BAND, BOR, BXOR = map(Op.of, (np.bitwise_and, np.bitwise_or, np.bitwise_xor))

# ---- communicators -------------------------------------------------------------------------------


class Request:
    """A message that has arrived."""

    def Wait(self) -> None:
        """Do nothing."""

    def Test(self) -> bool:
        """Return True."""
        return True


class Status:
    """The source of a message."""

    source = 0


REQUEST_NULL = Request()


class Comm:
    """A communicator: what is the same for one rank and for several."""

    _keys = itertools.count(1)

    def __init__(self) -> None:
        self._attributes: dict[int, Any] = {}
        self.handle = f"a communicator, {next(_handles)}"

    @classmethod
    def Create_keyval(cls, delete_fn: Any = None) -> int:
        """Return a new key of attributes."""
        return next(cls._keys)

    def Get_attr(self, key: int) -> Any:
        """Return an attribute, or None."""
        return self._attributes.get(key)

    def Set_attr(self, key: int, value: Any) -> None:
        """Set an attribute."""
        self._attributes[key] = value

    def Free(self) -> None:
        """Do nothing."""


class Intracomm(Comm):
    """The communicator of this process alone."""

    rank, size = 0, 1

    def Dup(self) -> "Intracomm":
        """Return another one."""
        return Intracomm()

    def Split(self, color: int, key: int) -> "Intracomm":
        """Return another one."""
        return Intracomm()

    def Split_type(self, kind: object) -> "Intracomm":
        """Return another one."""
        return Intracomm()

    def Barrier(self) -> None:
        """Do nothing."""

    def Abort(self, code: int) -> None:
        """End the process."""
        os._exit(code)

    def allgather(self, value: Any) -> list[Any]:
        """Return [value]."""
        return [value]

    def gather(self, value: Any, root: int = 0) -> list[Any]:
        """Return [value]."""
        return [value]

    def bcast(self, value: Any = None, root: int = 0) -> Any:
        """Return the value."""
        return value

    def allreduce(self, value: Any, op: Any = None) -> Any:
        """Return the value."""
        return value

    def Allreduce(self, sent: Any, received: Any, op: Any = None) -> None:
        """Copy a buffer."""
        if isinstance(sent, list):
            self.Allgather(sent, received)

    def Allgather(self, sent: list[Any], received: list[Any]) -> None:
        """Copy a buffer."""
        np.frombuffer(received[0], np.uint8)[:] = np.frombuffer(sent[0], np.uint8)

    def Gather(self, sent: list[Any], received: list[Any], root: int = 0) -> None:
        """Copy a buffer."""
        self.Allgather(sent, received)

    def Bcast(self, memory: list[Any], root: int = 0) -> None:
        """Do nothing."""

    def Iprobe(self, source: int = ANY_SOURCE, tag: int = 0, status: Any = None) -> bool:
        """Return False: there are no messages."""
        return False


COMM_WORLD, COMM_SELF, COMM_NULL = Intracomm(), Intracomm(), None

# ---- the library ---------------------------------------------------------------------------------


def Is_finalized() -> bool:
    """Return False."""
    return False


def Get_library_version() -> str:
    """Return what is in the place of a library's name."""
    return "no MPI library"


def Get_address(array: Any) -> int:
    """Return the address of an array."""
    return int(array.ctypes.data)
