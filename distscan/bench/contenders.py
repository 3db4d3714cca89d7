"""The contenders: this project's strategies, a copy, and the peers, as their users write them.

``prepare`` does the work that a user does once. It returns one call for each pair of buffers. These
calls are timed. Peers that scan over several ranks are rehearsed first: ``rehearse`` does their
local steps, without the exchange. So a rank that fails alone leaves no other rank waiting.
"""

import ctypes
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from ctypes import c_int, c_longlong, c_void_p
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal
from unittest import mock

import numpy as np

import distscan

from .. import binding
from ..core.errors import CheckError
from ..core.steps import PlanStrategy, Strategy
from ..cpu import library, threads
from ..mpi.agree import agreed
from ..mpi.communicators import Comm
from ..version import __version__
from . import cub
from .case import Case, Data, Task, need
from .timing import Call, Entry, Host, Row, Trial, clock, set_share, set_times, stats


@dataclass(frozen=True)
class Contender:
    """One line of the tables."""

    name: str
    prepare: Callable[[Task], list[Call]]
    version: Callable[[], str]  # raises ImportError if the contender cannot be used
    moved: Callable[[Case], int] | None = None  # bytes per element, if they are known
    ranks: Literal["one", "several", "any"] = "any"
    backends: tuple[str, ...] = ("cpu", "cuda")
    ops: tuple[str, ...] = ("sum",)
    scans: bool = True  # False for the copy
    rehearse: Callable[[Task], object] | None = None  # the local steps alone
    takes: Callable[[Case], bool] = lambda case: case.plain  # which forms
    capturable: bool = False  # whether a CUDA graph can hold its calls
    returns: bool = False  # whether calls return new arrays, and leave ``out`` as it is

    def suits(self, backend: str, ranks: int, op: str) -> bool:
        """Return whether the contender scans with ``op`` on so many ranks of this backend."""
        return (
            backend in self.backends
            and op in self.ops
            and self.ranks in ("any", "one" if ranks == 1 else "several")
        )


ALL_OPS = ("sum", "prod", "max", "min")


# ---- this project --------------------------------------------------------------------------


def _plan(strategy: PlanStrategy, task: Task, level: str = "") -> list[Call]:
    case, (x, out) = task.case, task.pairs[0]
    variables = {"DISTSCAN_THREADS": str(case.threads or ""), "DISTSCAN_CPU": level}
    with mock.patch.dict(os.environ, {name: value for name, value in variables.items() if value}):
        plan = distscan.Plan(
            task.comm,
            x.shape,
            x.dtype,
            op=case.op.name,
            out_dtype=out.dtype,
            strategy=strategy,
            backend=task.machine.backend,
            **case.options,
        )
    return [partial(plan, x, None if case.new else out, task.segments) for x, out in task.pairs]


def _scan(task: Task) -> list[Call]:
    scan = partial(distscan.scan, op=task.case.op.name, comm=task.comm)
    return [partial(scan, x, out=out) for x, out in task.pairs]


def _scan_add_moved(case: Case) -> int:
    """Return the bytes per element: the scan writes the type that accumulates, the add reads it.

    The type is that of GPUs.
    """
    acc = 4 if case.out == np.float16 else case.out.itemsize
    return case.x.itemsize + 2 * acc + case.out.itemsize


# ---- copies, the measure of all contenders -------------------------------------------------

_THREAD = 1 << 20  # bytes to move for which a thread is worth its start


def _copy(task: Task) -> list[Call]:
    """Copy as many bytes as a perfect scan moves; on a CPU by as many threads as the scan has."""
    return copies(task.machine, task.copies, _threads(task.case))


def _threads(case: Case) -> int:
    return case.threads or binding.threads(None)


def copies(machine: Host, pairs: Sequence[tuple[Any, Any]], most: int) -> list[Call]:
    """Return calls that copy each pair (source, target); on a CPU by at most so many threads."""
    if machine.backend == "cuda":
        return [
            partial(out.data.copy_from_device_async, x.data, x.nbytes)  # on the current stream
            for x, out in pairs
        ]
    count = max(1, min(most, 2 * pairs[0][0].nbytes // _THREAD))
    return [
        partial(copy_pieces, np.array_split(x, count), np.array_split(out, count))
        for x, out in pairs
    ]


def copy_pieces(sources: list[Any], targets: list[Any]) -> None:
    """Copy each source by whichever thread comes first; some threads may never come."""
    pieces = zip(targets, sources, strict=True)

    def copy() -> None:
        for target, source in pieces:
            np.copyto(target, source)

    threads.run(copy, len(sources))


# ---- peers ---------------------------------------------------------------------------------

_ACCUMULATE = {"sum": "cumsum", "prod": "cumprod"}


def _array_library(task: Task) -> list[Call]:
    """Scan by ``numpy.cumsum`` or ``cupy.cumsum``, or by ``accumulate`` of NumPy's ufunc."""
    if task.case.idiom:
        scan = task.case.scan_in_numpy()
        return [partial(scan, x, out, task.segments) for x, out in task.pairs]
    name = task.case.op.name
    if name in _ACCUMULATE:
        call = getattr(task.machine.xp, _ACCUMULATE[name])
    else:
        combine: Any = task.case.op.numpy
        call = combine.accumulate
    return [partial(call, x, dtype=out.dtype, out=out) for x, out in task.pairs]


def _cupy_cumsum(accelerators: list[str], task: Task) -> list[Call]:
    """Scan by CuPy with ``accelerators``, which CUPY_ACCELERATORS sets for a whole process.

    CuPy's default is "cub". Without accelerators, CuPy's own kernels scan. cuTENSOR has no scan.
    """
    from cupy import _core  # noqa: PLC0415 - a CPU run need not have CuPy

    def call(plain: Call) -> None:
        before = _core.get_routine_accelerators()
        _core.set_routine_accelerators(accelerators)
        try:
            plain()
        finally:
            _core.set_routine_accelerators(before)

    return [partial(call, plain) for plain in _array_library(task)]


def _torch(task: Task) -> list[Call]:
    import torch  # noqa: PLC0415 - a peer need not be installed

    if task.machine.backend == "cpu":
        torch.set_num_threads(_threads(task.case))
    tensors = [(torch.from_dlpack(x), torch.from_dlpack(out)) for x, out in task.pairs]
    name, axis = task.case.op.name, task.case.options.get("axis", 0)
    if name in ("max", "min"):  # these return the places of the maxima, too
        call = torch.cummax if name == "max" else torch.cummin
        places = torch.empty_like(tensors[0][0], dtype=torch.int64)
        return [partial(call, x, axis, out=(out, places)) for x, out in tensors]
    call = torch.cumsum if name == "sum" else torch.cumprod
    return [partial(call, x, axis, dtype=out.dtype, out=out) for x, out in tensors]


def _heat(task: Task) -> list[Call]:
    import heat  # noqa: PLC0415 - as above
    import torch  # noqa: PLC0415 - as above

    tensors = [(torch.from_dlpack(x), torch.from_dlpack(out)) for x, out in task.pairs]
    call = heat.cumsum if task.case.op.name == "sum" else heat.cumprod
    calls: list[Call] = []
    for pair in tensors:
        x, out = (heat.array(tensor, is_split=0) for tensor in pair)
        if (x.larray.data_ptr(), out.larray.data_ptr()) != tuple(t.data_ptr() for t in pair):
            raise RuntimeError("heat.array copied a shard")
        calls.append(partial(call, x, 0, out=out))
    return calls


def _jax(task: Task) -> list[Call]:
    """Scan by a compiled function of JAX, whose results are new arrays; wait for each of them."""
    jax = import_jax()
    name, dtype, xp = task.case.op.name, task.case.out, task.machine.xp
    if name in _ACCUMULATE:
        scan = jax.jit(partial(getattr(jax.numpy, _ACCUMULATE[name]), dtype=dtype))
    else:
        scan = jax.jit(jax.lax.cummax if name == "max" else jax.lax.cummin)

    def call(x: Any) -> Any:
        return xp.from_dlpack(scan(x).block_until_ready())

    return [partial(call, jax.dlpack.from_dlpack(x)) for x, _ in task.pairs]


def import_jax() -> Any:
    """Return JAX, with types of 64 bits, and without 3/4 of a GPU's memory as its own."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax  # noqa: PLC0415 - a peer need not be installed

    jax.config.update("jax_enable_x64", True)
    return jax


def _dask(task: Task) -> list[Call]:
    """Scan by dask, in chunks of its own choice, by as many threads as the case has."""
    from dask import array  # noqa: PLC0415 - as above

    call = getattr(array, _ACCUMULATE[task.case.op.name])
    graphs = [
        array.store(
            call(array.from_array(x), axis=0, dtype=out.dtype), out, lock=False, compute=False
        )
        for x, out in task.pairs
    ]
    how = {"scheduler": "threads", "num_workers": _threads(task.case)}
    return [partial(graph.compute, **how) for graph in graphs]


def version(module: str) -> Callable[[], str]:
    """Return a function that imports a library and returns its version.

    The function raises ImportError for any fault.
    """

    def of_module() -> str:
        try:
            return str(import_module(module).__version__)
        except Exception as error:
            if isinstance(error, ModuleNotFoundError) and module.startswith(error.name or "?"):
                raise ImportError("not installed") from error
            raise ImportError(f"cannot be imported: {error}") from error

    return of_module


# ---- oneTBB's parallel_scan of float64 ------------------------------------------------------
# A C++ compiler compiles tbb.cpp, and ctypes loads it. The headers and the library are those of the
# package tbb-devel, or the system's.

_TBB_SOURCE = Path(__file__).with_name("tbb.cpp")
_SECONDS = 120  # the time limit of the compiler


def tbb_version() -> str:
    """Return the version of oneTBB; raise ImportError if tbb.cpp cannot be compiled."""
    function = _compile_tbb().version
    function.restype = ctypes.c_char_p
    return str(function().decode())


def _tbb_takes(case: Case) -> bool:
    """Return whether the case is a sum of float64."""
    return case.plain and case.op.name == "sum" and {case.x.name, case.out.name} == {"float64"}


def _tbb(task: Task) -> list[Call]:
    """Scan by ``parallel_scan``, by as many threads as the case has."""
    count = ctypes.c_int(task.case.threads or binding.threads(None))
    function, n = _compile_tbb().scan, ctypes.c_longlong(task.case.n)
    function.restype = None
    return [
        partial(function, *(ctypes.c_void_p(array.ctypes.data) for array in pair), n, count)
        for pair in task.pairs
    ]


@cache
def _compile_tbb() -> ctypes.CDLL:
    prefix = Path(sys.prefix)  # where pip puts headers and libraries
    with TemporaryDirectory(prefix="distscan-tbb-") as folder:
        target = Path(folder) / "tbb.so"
        command = [os.environ.get("CXX", "g++"), "-std=c++17", "-O3", "-march=native", "-shared",
                   "-fPIC", f"-I{prefix / 'include'}", str(_TBB_SOURCE), "-o", str(target),
                   f"-L{prefix / 'lib'}", f"-Wl,-rpath,{prefix / 'lib'}", "-ltbb"]  # fmt: skip
        try:
            process = subprocess.run(
                command, capture_output=True, text=True, timeout=_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ImportError(f"{command[0]} does not compile oneTBB: {error}") from error
        if process.returncode:
            missing = "oneapi/tbb" in process.stderr and "No such file" in process.stderr
            line = next((line for line in process.stderr.splitlines() if "error" in line), "")
            raise ImportError("not installed" if missing else f"{command[0]}: {line}")
        return ctypes.CDLL(str(target))


# ---- the scan over ranks by hand: a first form, and an expert's form for GPUs ---------------


def _by_hand(task: Task) -> list[Call]:
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


def _expert_version() -> str:
    """Return the versions of CUB and NCCL; raise ImportError if one of them is missing."""
    return f"{cub.version()}, NCCL {nccl_module().get_version()}"


def _by_hand_expert(task: Task) -> list[Call]:
    """Reduce by CUB, gather all totals by NCCL, and scan by CUB from a start value on the device.

    The host waits for nothing. This takes 3 passes over memory.
    """
    steps, between = _Steps(task), nccl_communicator(task.comm)
    total, totals, size = steps.total.data.ptr, steps.totals.data.ptr, steps.total.nbytes
    stream, in_bytes = task.machine.xp.cuda.get_current_stream().ptr, nccl_module().NCCL_INT8

    def call(x: c_void_p, out: c_void_p) -> None:
        steps.reduce(x)
        between.allGather(total, totals, size, in_bytes, stream)
        steps.scan_after(x, out, task.comm.rank)

    return [partial(call, *pair) for pair in steps.pairs]


def _rehearse_expert(task: Task) -> None:
    """Do the local steps. So a rank that fails alone does so before other ranks wait for it."""
    steps = _Steps(task)
    steps.reduce(steps.pairs[0][0])
    steps.scan_after(*steps.pairs[0], 0)


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
            lambda temp, size: self._scan_after(temp, size, x, out, 0),
        )

    def reduce(self, x: c_void_p) -> None:
        """Find this rank's total."""
        self._reduce(self._memory.pointer, self._memory.size, x)

    def scan_after(self, x: c_void_p, out: c_void_p, rank: int) -> None:
        """Combine the totals of the ranks before ``rank`` to the offset, and scan from it on."""
        self._scan_after(self._memory.pointer, self._memory.size, x, out, rank)

    def _reduce(self, temp: Any, size: Any, x: c_void_p) -> None:
        self._entries.reduce(temp, size, x, self._to_total, self._n, self._stream)

    def _scan_after(self, temp: Any, size: Any, x: c_void_p, out: c_void_p, rank: int) -> None:
        self._entries.scan_after(
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


nccl_communicators: dict[int, Any] = {}  # NCCL's communicators, by the handles of MPI's


def nccl_communicator(comm: Comm) -> Any:
    """Return NCCL's communicator of the ranks of ``comm``. It is made once; collective."""
    nccl, handle = nccl_module(), comm.py2f()
    if handle not in nccl_communicators:
        with agreed(comm):
            identity = nccl.get_unique_id() if comm.rank == 0 else None
        identity = comm.bcast(identity)
        nccl_communicators[handle] = nccl.NcclCommunicator(comm.size, identity, comm.rank)
    return nccl_communicators[handle]


# ---- the list ------------------------------------------------------------------------------


def _call_first(prepare: Callable[[Task], list[Call]]) -> Callable[[Task], object]:
    """Return a rehearsal: the first call of the contender that ``prepare`` makes for one rank."""
    return lambda task: prepare(task)[0]()


def _passes(reads: int, writes: int, rereads: int = 0) -> Callable[[Case], int]:
    """Return the bytes per element: the input is read, the result is written, and read again.

    Head flags and keys are read as often as the input.
    """

    def moved(case: Case) -> int:
        read = case.bytes // case.n - case.out.itemsize
        return reads * read + (writes + rereads) * case.out.itemsize

    return moved


def _distscan(
    strategy: Strategy, ranks: Literal["one", "any"], moved: Callable[[Case], int]
) -> Contender:
    prepare = partial(_plan, strategy)
    return Contender(
        strategy, prepare, lambda: __version__, moved, ranks, ops=ALL_OPS,
        takes=lambda case: strategy != "scan-add" or (case.segments is None and not case.row),
        capturable=strategy == "single-pass",
    )  # fmt: skip


def _of_gpus(strategy: PlanStrategy) -> Contender:
    """Return a contender whose GPUs exchange totals themselves."""
    return Contender(
        strategy, partial(_plan, strategy), lambda: __version__, _passes(2, 1), "several",
        ("cuda",), ALL_OPS, capturable=True,
    )  # fmt: skip


def _cupy(name: str, accelerators: list[str]) -> Contender:
    prepare = partial(_cupy_cumsum, accelerators)
    return Contender(name, prepare, version("cupy"), None, "one", ("cuda",), ("sum", "prod"))


CONTENDERS = (
    Contender(
        "copy", _copy, lambda: __version__, lambda case: case.bytes // case.n, ops=ALL_OPS,
        scans=False, takes=lambda case: True, capturable=True,
    ),
    _distscan("single-pass", "one", _passes(1, 1)),
    _distscan("reduce-scan", "any", _passes(2, 1)),
    _distscan("scan-add", "any", _scan_add_moved),
    _of_gpus("fused"),
    _of_gpus("nccl"),
    _of_gpus("auto"),  # as "fused", behind a handshake of the hosts
    Contender("distscan.scan", _scan, lambda: __version__, ops=ALL_OPS),
    Contender(
        "numpy", _array_library, version("numpy"), _passes(1, 1), "one", ("cpu",), ALL_OPS,
        takes=lambda case: case.plain or case.idiom != "",
    ),
    _cupy("cupy-none", []),
    _cupy("cupy-cub", ["cub"]),
    Contender(
        "cub", cub.default, cub.version, _passes(1, 1), "one", ("cuda",), ALL_OPS,
        takes=cub.takes, capturable=True,
    ),
    Contender(
        "cub-run-to-run", cub.run_to_run, cub.run_to_run_version, _passes(1, 1), "one", ("cuda",),
        takes=lambda case: cub.takes(case) and case.segments is None, capturable=True,
    ),
    Contender(
        "torch", _torch, version("torch"), _passes(1, 1), "one", ops=ALL_OPS,
        takes=lambda case: case.plain or [*case.options] == ["axis"],
    ),
    Contender("jax", _jax, version("jax"), _passes(1, 1), "one", ops=ALL_OPS, returns=True),
    Contender("dask", _dask, version("dask"), None, "one", ("cpu",), ("sum", "prod")),
    Contender("tbb", _tbb, tbb_version, None, "one", ("cpu",), takes=_tbb_takes),
    Contender(
        "by-hand", _by_hand, lambda: __version__, None, "several",
        rehearse=_call_first(_array_library),
    ),
    Contender(
        "by-hand-expert", _by_hand_expert, _expert_version, _passes(2, 1), "several",
        ("cuda",), rehearse=_rehearse_expert,
    ),
    Contender(
        "heat", _heat, version("heat"), _passes(1, 2, 1), ops=("sum", "prod"),
        rehearse=_call_first(_torch),
    ),
)  # fmt: skip


def lesser_levels() -> list[Contender]:
    """Return distscan on one rank at each level of instructions below the one that is used."""
    kernels, levels = library.load(), library.machine_levels()
    below = list(levels)[list(levels).index(kernels.level) + 1 :] if kernels else []

    def version(level: str) -> str:
        try:
            with mock.patch.dict(os.environ, {"DISTSCAN_CPU": level}):
                library.load()
        except ValueError as error:
            raise ImportError(str(error)) from error
        return __version__

    return [
        Contender(
            levels[level].name, partial(_plan, "single-pass", level=level),
            partial(version, level), _passes(1, 1), "one", ("cpu",), ALL_OPS,
            takes=lambda case: True,
        )
        for level in below
    ]  # fmt: skip


# ---- the trial of a case --------------------------------------------------------------------


class CaseTrial(Trial):
    """Those contenders that can scan a case. ``data`` is a ``Data``."""

    def __init__(self, case: Case, contenders: Sequence[Contender]) -> None:
        self.case, self.title, self.n = case, case.type, case.n
        suited = (c for c in contenders if case.op.name in c.ops and c.takes(case))
        self._contenders = {contender.name: contender for contender in suited}
        self.names = list(self._contenders)

    def need(self, machine: Host) -> int:
        """Return the bytes of memory of the trial on one rank."""
        return need(machine, self.case)

    def draw(self, comm: Comm, machine: Host) -> None:
        """Allocate the buffers, draw the elements, and exchange the totals of ranks."""
        self._comm, self._machine = comm, machine
        with agreed(comm):
            self.data = Data(machine, self.case, comm.rank)
        self.data.exchange(comm)

    def entries(self, rows: Sequence[Row]) -> list[Entry]:
        """Return the entries of right results; their calls may scan in place for ever."""
        entries = super().entries(rows)
        self.data.calm()
        return entries

    def calls(self, row: Row) -> list[Call]:
        """Return the calls of a contender. Raises CheckError if its result is wrong."""
        contender, data = self._contenders[row.contender], self.data
        row.batch = self._machine.batch(len(data.pairs))
        try:
            calls = self._checked_calls(contender, data)
        except Exception:
            with agreed(self._comm):
                data.draw()  # the contender may have changed its input
            raise
        row.moved = contender.moved and contender.moved(self.case) * self.n
        return calls

    def _checked_calls(self, contender: Contender, data: Data) -> list[Call]:
        comm = self._comm
        if contender.rehearse is not None:
            with agreed(comm):
                contender.rehearse(data.task(comm))
        with agreed(comm):
            calls = contender.prepare(data.task(comm))
            data.poison()
        with agreed(comm):
            for call, (_, out) in zip(calls, data.pairs, strict=False):
                result = call()  # of all of them, because a first call may do more
                if (self.case.new or contender.returns) and result is not None:
                    out[...] = result
            self._machine.synchronize()
        with agreed(comm):
            fault = data.fault(scans=contender.scans)
            if fault:
                raise CheckError(fault)
        return calls

    def finish(self, entries: Sequence[Entry]) -> None:
        """Set the times, and the shares of the copy's speed if it was timed."""
        set_times(self._comm, entries)
        if any(entry.row.contender == "copy" for entry in entries):
            set_shares(self._comm, entries, self.case.ranks)


def set_shares(comm: Comm, entries: Sequence[Entry], ranks: int) -> None:
    """Set the shares of the copy's speed, by the time that ``clock`` chooses, and NumPy's times.

    A share is the median over the samples. The copy moves as many bytes as a perfect scan.
    """
    device = clock([entry.row for entry in entries], ranks) == "device_us"
    shares = {
        entry.row.contender: set_share(comm, entry, device=device, device_copy=device)
        for entry in entries
    }
    numpy = shares.get("numpy" if ranks == 1 else "by-hand")
    for entry in entries:
        share = shares[entry.row.contender]
        entry.row.times = None if numpy is None else stats(share / numpy).median


def find_present(
    comm: Comm, contenders: Sequence[Any]
) -> tuple[list[Any], dict[str, str], dict[str, str]]:
    """Return the contenders that every rank can use, their versions, and the others' faults.

    They are of ``Contender``, or of ``Peer`` in uses.py.
    """
    able, versions, missing = [], {}, {}
    for contender in contenders:
        version, fault = "", None
        try:
            version = contender.version()
        except ImportError as error:
            fault = " ".join(str(error).split()) or "not installed"
        faults = list(filter(None, comm.allgather(fault)))
        if faults:
            missing[contender.name] = faults[0]
        else:
            able.append(contender)
            versions[contender.name] = version
    return able, versions, missing
