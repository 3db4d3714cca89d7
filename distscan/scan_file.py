"""``scan_file``: the file job, called from Python."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from numpy.typing import DTypeLike

from . import binding
from .core.steps import Strategy
from .mpi.agree import Agreement, body, collective
from .mpi.communicators import Comm
from .mpi.torch_group import TorchComm
from .options import Nulls, Op

if TYPE_CHECKING:
    from .job.report import Report

_Path = str | os.PathLike[str]


@collective
def scan_file(
    call: Agreement,
    input: _Path | Sequence[_Path],
    output: _Path,
    op: Op = "sum",
    *,
    comm: Comm | None = None,
    axis: int | None = None,
    exclusive: bool = False,
    initial: Any = None,
    reverse: bool = False,
    dtype: DTypeLike | None = None,
    segments: _Path | None = None,
    strategy: Strategy = "auto",
    threads: int | None = None,
    backend: binding.Name = "auto",
    raw: DTypeLike | None = None,
    shape: tuple[int, ...] | None = None,
    nulls: Nulls = "refuse",
    memory: int | None = None,
    force: bool = False,
    check: bool = False,
    like: bool = False,
    state: _Path | None = None,
    resume: bool = False,
    trust_input: bool = False,
    trace: _Path | None = None,
    window: tuple[int, int] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> "Report":
    """Scan a file into a file, as ``python -m distscan`` does; collective over ``comm``.

    Each rank reads, scans and writes its own part, in chunks. So the array may be larger than all
    memory together. The output appears under its name when it is whole.

    Parameters
    ----------
    input
        A file that every rank can read, or several, which are one array, joined along axis 0. They
        are ``.npy`` files, ``raw``, or ``FILE::NAME`` of HDF5, NetCDF-4, Zarr, ``.npz``, Parquet
        and Arrow. A folder stands for its Parquet files, in the order of their names. ``.npy`` and
        raw may be URLs, such as "s3://bucket/x.npy".
    output
        The result: a ``.npy`` file, its URL, or ``FILE::NAME`` of HDF5, NetCDF-4, Zarr, Parquet and
        Arrow. A table has the columns of the input, if that is one, and the result as "NAME.scan".
        Rank 0 uploads to a URL.
    op, axis, exclusive, initial, reverse, dtype, strategy, threads
        As in ``scan``. An ``Operator`` may take structures, on CPUs.
    comm
        An mpi4py intracommunicator; None is ``MPI.COMM_WORLD``. File jobs take no process groups.
    segments
        A file with a flag or a key for each element, as ``segments`` of ``scan``; or the name of
        another column of the input.
    backend
        "cpu", "cuda", or "auto": GPUs if every rank has one. A rank of a node uses the GPU of its
        number on the node.
    raw
        The type of the elements of files that have no header. None: the files are ``.npy`` files.
    shape
        The shape of each raw file; None is one axis.
    nulls
        What elements of Parquet and Arrow files without a value count for. "refuse": the first one
        is an error. "skip": nothing, and in a table their results have no value, either. "zero": 0.
    memory
        The most bytes of each rank for chunks, on the host and on its GPU each. None: as much as
        is useful, at most half of what is free on the host, and four fifths on the GPU.
    force
        Whether to replace an existing output, and an existing trace.
    check
        Whether to recompute the scan with NumPy, and compare.
    like
        Whether an output of HDF5 or NetCDF-4 is chunked and compressed as the input is. One rank
        then writes it, at the end of the job.
    state
        A file with the running value. The scan begins after that value, if the file exists, and
        the value at its end replaces it. One job at a time uses it.
    resume
        Whether to keep a journal, and to go on where a job that was killed has stopped. The journal
        has a digest of what was read; a job that goes on reads it again, and compares.
    trust_input
        Whether ``resume`` does without this digest: nobody has changed the input.
    trace
        A file for the work of all ranks on every chunk, in the Chrome trace format.
    window
        Of "fsum": every element is a multiple of 2^low, below 2^high in magnitude, as in ``scan``.
    progress
        A function that is called on rank 0, some ten times a second, with the phase ("resume",
        "window", "scan", "write", "check", "encode" or "upload"), and with the bytes of the input,
        or of the output, that are done, and all its bytes; 0 are not known.

    Returns
    -------
    Report
        The elements, the types, the ranks, the backend, the total; and of each phase the seconds,
        the bytes, and what bounds it.

    Raises
    ------
    InputError, OutputError, TypeError, ValueError, OverflowError, MemoryError, OSError
        On every rank, even if one rank alone is at fault. The message names the ranks at fault.
        There is no output then.
    CheckError
        If ``check`` finds a wrong element.

    Examples
    --------
    >>> import distscan, numpy, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> numpy.save(f"{folder}/x.npy", [3, 1, 4])
    >>> report = distscan.scan_file(f"{folder}/x.npy", f"{folder}/y.npy", backend="cpu")
    >>> report.total, numpy.load(f"{folder}/y.npy")
    (8, array([3, 4, 8]))
    """
    # These imports take as long as all others of distscan.
    from pathlib import Path  # noqa: PLC0415

    from .job import formats  # noqa: PLC0415
    from .job.formats.interface import Location, path_of_file  # noqa: PLC0415
    from .job.job import FileJob, perform  # noqa: PLC0415
    from .job.progress import Progress  # noqa: PLC0415

    def text(value: Any, name: str) -> str | os.PathLike[str]:
        if not isinstance(value, str | os.PathLike):
            raise TypeError(f"{name} must be a path, not {type(value).__name__}")
        return value

    def path(value: Any, name: str) -> Path:
        return path_of_file(text(value, name), name)

    def location(value: Any, name: str) -> Location:
        return Location.parse(text(value, name))

    if isinstance(call.comm, TorchComm):
        raise TypeError("file jobs take an mpi4py intracommunicator: run them under mpirun")
    several = [input] if isinstance(input, str | os.PathLike) else input
    if not isinstance(several, Iterable):
        raise TypeError(f"input must be a path, or several, not {type(input).__name__}")
    paths = [location(each, "input") for each in several]
    job = FileJob.parse(
        tuple(
            part for each in paths for part in ([each] if raw is not None else formats.parts(each))
        ),
        location(output, "output"),
        op=op,
        dtype=dtype,
        axis=axis,
        exclusive=exclusive,
        initial=initial,
        reverse=reverse,
        backend=backend,
        strategy=strategy,
        threads=threads,
        force=force,
        check=check,
        like=like,
        raw=raw,
        shape=shape,
        nulls=nulls,
        segments=None if segments is None else location(segments, "segments"),
        memory=memory,
        state=None if state is None else path(state, "state"),
        resume=resume,
        trust_input=trust_input,
        trace=None if trace is None else path(trace, "trace"),
        window=window,
    )
    if not (progress is None or callable(progress)):
        raise TypeError(f"progress must be a function, not {type(progress).__name__}")

    def notify(current: Progress) -> None:
        if progress is not None:
            progress(current.phase, current.done, current.size)

    with _current_gpu():
        return body(perform)(call, call.comm, job, notify, lambda message: None)


@contextmanager
def _current_gpu() -> Iterator[None]:
    """Make the GPU that is current now current again at the end."""
    if "cupy" not in sys.modules:
        yield
        return
    runtime = sys.modules["cupy"].cuda.runtime
    try:
        before = runtime.getDevice()
    except runtime.CUDARuntimeError:  # there is no GPU
        before = None
    try:
        yield
    finally:
        if before is not None and runtime.getDevice() != before:
            runtime.setDevice(before)
