"""Arrays that clients send: scanned by rank 0 alone, or by all ranks of one host.

An array is in the memory of the host. On CPUs, rank 0 alone scans it by all cores of the node: one
sweep over the array, and no exchange. On GPUs, rank 0's GPU does, or for a large array every rank's
GPU, since each has its own bus.
"""

from contextlib import ExitStack
from io import BytesIO
from typing import Any, NamedTuple

from numpy.typing import NDArray

from ..binding import Binding
from ..core.errors import InputError
from ..core.extents import axis_number
from ..core.shards import bounds
from ..cpu import cores
from ..cpu import memory as host
from ..cpu.threads import usable
from ..job import files, npy
from ..mpi.agree import agreed
from ..mpi.communicators import Comm, alone
from ..options import number
from ..scan import scan
from .maps import Maps, Place, array_in

SMALL = 1 << 20  # bytes of an array below which a GPU, or a turn among large arrays, costs time
_LARGE = 1 << 26  # bytes of an array above which several GPUs share it
_HEADER = 1 << 16  # bytes of a .npy file in which its header must be


class Task(NamedTuple):
    """The scan of an array in a buffer into another place, for all ranks."""

    x: Place
    out: Place
    segments: Place | None
    options: dict[str, Any]


class Scanner:
    """Scans arrays of this host's memory."""

    def __init__(self, comm: Comm, bound: Binding) -> None:
        self._comm, self._bound, self._gpu = comm, bound, bound.memory.current_gpu()
        self.maps = Maps(bound.memory)

    def needs_all(self, x: NDArray[Any]) -> bool:
        """Whether all ranks are to scan an array."""
        several = self._comm.size > 1 and self._bound.nodes == 1
        return several and self._gpu is not None and x.nbytes > _LARGE

    def gpu_memory(self) -> tuple[int, int]:
        """Return the bytes of memory of this rank's GPU that are in use, and all bytes."""
        used, size = self._bound.memory.usage(self._gpu)
        return used, size

    def alone(self, x: Any, out: Any, segments: Any, options: dict[str, Any]) -> None:
        """Scan an array into another one by this rank alone; any thread calls this."""
        cores.unbind()
        memory = host if x.nbytes <= SMALL else self._bound.memory
        self._scan(alone(), memory, (out, x, segments), options)

    def together(self, task: Task) -> None:
        """Scan this rank's part of an array; collective."""
        axis = axis_number(task.options.get("axis"))

        def part(place: Place | None) -> NDArray[Any] | None:
            if place is None:
                return None
            array = self.maps.array(place)
            rows = array.reshape(-1) if axis is None else array
            return rows[slice(*bounds(len(rows), self._comm.size, self._comm.rank))]

        with agreed(self._comm):
            arrays = part(task.out), part(task.x), part(task.segments)
        self._scan(self._comm, self._bound.memory, arrays, task.options)

    def _scan(
        self, comm: Comm, memory: Any, arrays: tuple[Any, Any, Any], options: dict[str, Any]
    ) -> None:
        """Scan host arrays (out, x, segments), by the backend that has ``memory``; collective."""
        given = options | {"axis": axis_number(options.get("axis"))}
        given.pop("out", None)  # the type of ``out``
        if isinstance(initial := given.get("initial"), str):
            given["initial"] = number(initial)
        with ExitStack() as held:
            with agreed(comm):
                there = held.enter_context(memory.staged(self._gpu, *arrays))
            out, x, segments = there
            scan(x, comm=comm, out=out, segments=segments, threads=usable(1), **given)
            with agreed(comm):
                held.close()


# ---- the format .npy, in memory ------------------------------------------------------------------


def parse(body: memoryview) -> tuple[NDArray[Any], int]:
    """Return the array in a ``.npy`` file, without a copy, and the number of bytes of the file."""
    stream = BytesIO(body[:_HEADER])
    try:
        shape, fortran, dtype = npy.read_header(stream)
        files.check_shape("it", shape, dtype)
        x = array_in(body, stream.tell(), dtype, shape, "F" if fortran else "C")
    except Exception as error:  # NumPy's parser raises many types for a wrong header
        raise InputError(f"the body is not a .npy file: {error}") from error
    return x, stream.tell() + x.nbytes
