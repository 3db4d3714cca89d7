"""The file job: each rank reads, scans and writes its own part of a file."""

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.lib.array_utils import normalize_axis_index
from numpy.typing import NDArray

from .. import binding, build
from ..binding import Binding
from ..core import arrays, dtypes, operators
from ..core.errors import CheckError
from ..core.extents import Extents, axis_number
from ..core.shards import bounds, chunks
from ..mpi.agree import Agreement, agreed
from ..mpi.communicators import Comm
from ..scan import Call, settle
from . import files, output
from .files import File

PHASES = ("read", "reduce", "exscan", "scan", "write", "all")
Show = Callable[[str, int, int], None]  # phase, elements done, all elements


class Job(NamedTuple):
    """The options of a job, as on the command line."""

    input: Path
    output: Path
    op: str = "sum"
    dtype: str | None = None
    axis: int | None = None
    exclusive: bool = False
    initial: str | None = None
    reverse: bool = False
    backend: binding.Name = "auto"
    strategy: build.Strategy = "auto"
    threads: int | None = None
    force: bool = False
    check: bool = False
    raw: bool = False  # whether the input has no header; ``dtype`` is then its type
    shape: tuple[int, ...] | None = None  # of a raw input


class Report(NamedTuple):
    """The result of a job. Seconds are the slowest rank's, 0 for a phase that did not run."""

    elements: int
    dtype_in: str
    dtype_out: str
    op: str
    ranks: int
    nodes: int
    backend: str
    device: str
    strategy: str
    total: Any
    output: str
    seconds: dict[str, float]


def perform(comm: Comm, job: Job, show: Show, warn: Callable[[str], None]) -> Report:
    """Scan a file into a file, and return the report; collective. Every rank raises, or none."""
    clock = _Clock()
    with clock("all"):
        # ---- check everything before any work ---------------------------------------------
        with agreed(comm) as same:
            source = _inspect(job)
            # Nodes may have different files under the same path, on their own disks.
            shared = f"{job.input}, which must be on a file system that all ranks share"
            for what, value in source.stamp._asdict().items() if source.stamp else ():
                same[f"the {what} of {shared}"] = value
            final = output.check(job.output, force=job.force) if comm.rank == 0 else job.output
        bound = binding.bind(comm, job.backend, warn, job.threads)
        with agreed(comm):
            part = _Part(comm, job, source, bound)
        types = part.scan.types

        # ---- file -> shard -> scan -> file -> its name ------------------------------------
        with part_file(comm, final, types.out, part.shape, fortran=part.fortran) as target:
            with clock("read"), agreed(comm):
                part.read(source, show)
            show("scan", 0, 0)
            with clock("scan"):
                # The agreement waits for slower ranks, so this is not part of the exchange's time.
                ready = Agreement(comm)
                ready.has_elements = part.scan.has_elements
                call = Call(part.scan, comm)
                with clock("reduce"):
                    call.begin(part.shard, part.result, overlap=False)
                    settle(call, ready)
                with agreed(comm):
                    with clock("exscan"):
                        if ready.has_elements and part.scan.across:
                            call.exchange()
                    call.finish()
                    bound.memory.synchronize()
            if part.scan.strategy != "reduce-scan":
                clock.seconds["reduce"] = 0.0
            clock.seconds["scan"] -= clock.seconds["exscan"] + clock.seconds["reduce"]
            with clock("write"), agreed(comm):
                part.write(target, show)
            if job.check:
                from . import check  # noqa: PLC0415 - few jobs check their result

                show("check", 0, 0)
                check.check(comm, part.scan, part.start, source, target)
            with agreed(comm):
                if comm.rank == 0:
                    output.publish(target.path, final, force=job.force)
    ends = [total for total in comm.allgather(part.total()) if total is not None]
    everyone = comm.allgather(clock.seconds)
    return Report(
        elements=source.n,
        dtype_in=str(types.x),
        dtype_out=str(types.out),
        op=part.scan.op.name,
        ranks=comm.size,
        nodes=bound.nodes,
        backend=bound.name,
        device=bound.device,
        strategy=part.scan.strategy,
        total=ends[0 if job.reverse else -1] if ends else part.nothing(),
        output=str(job.output),
        seconds={phase: max(seconds[phase] for seconds in everyone) for phase in PHASES},
    )


def _inspect(job: Job) -> File:
    """Check the input, and return what it holds."""
    if not job.raw:
        return files.inspect(job.input)
    if job.dtype is None:
        raise ValueError("--raw needs --dtype, the type of INPUT's elements")
    return files.inspect_raw(job.input, dtypes.parse(job.dtype), job.shape)


@contextmanager
def part_file(
    comm: Comm, path: Path, dtype: np.dtype[Any], shape: tuple[int, ...], *, fortran: bool = False
) -> Iterator[File]:
    """Create the part file that will become ``path``; collective.

    The part file is removed if anything fails, except the check.
    """
    target: File | None = None
    with ExitStack() as held:
        try:
            with agreed(comm):
                if comm.rank == 0:
                    target = held.enter_context(output.create(path, dtype, shape, fortran=fortran))
            target = cast(File, comm.bcast(target))
            with agreed(comm):
                output.check_shared(target)
            yield target
        except CheckError:
            raise
        except BaseException:
            # Any rank removes it: if another rank is interrupted, rank 0 may be waiting inside MPI.
            if target is not None:
                output.remove(target.path)
            raise


class _Part:
    """One rank's part of the job: its shard and its result, on its device."""

    def __init__(self, comm: Comm, job: Job, source: File, bound: Binding) -> None:
        self.memory = bound.memory
        # With an axis, a rank has whole rows. In Fortran order, these are the rows of the array
        # whose axes are reversed. A flattened input is divided by elements.
        rows, axis = len(source.shape) > 1 and job.axis is not None, axis_number(job.axis)
        shape = source.shape if rows else (source.n,)
        self.fortran, self.shape = rows and source.fortran, shape  # of the whole output file
        if self.fortran:
            shape = shape[::-1]
            axis = len(shape) - 1 - normalize_axis_index(axis or 0, len(shape))
        width = math.prod(shape[1:])
        low, high = bounds(shape[0], comm.size, comm.rank)
        self.start, self.stop = low * width, high * width
        self.shard = self.memory.empty(self.stop - self.start, source.dtype.newbyteorder("="))
        op = operators.resolve(job.op)
        dtype = None if job.dtype is None or job.raw else dtypes.parse(job.dtype)
        initial = None if job.initial is None else _number(job.initial)
        mine = (high - low, *shape[1:])
        if source.n == 0:  # there is nothing to scan, whatever the number of rows or columns
            mine = tuple(min(length, 1) for length in mine)
        self.scan = build.make(
            Extents.of(mine, axis),
            self.shard.dtype,
            arrays.gpu(self.shard),
            op,
            exclusive=job.exclusive,
            initial=initial,
            reverse=job.reverse,
            dtype=dtype,
            strategy=job.strategy,
            threads=job.threads,
            ranks=comm.size,
        )
        in_place = self.scan.types.x == self.scan.types.out
        self.result = self.shard if in_place else self.scan.steps.empty()
        self.buffer: NDArray[np.uint8] = self.memory.staging(files.PIECE)
        self._last: dict[str, Any] = {}  # the last elements in scan order: "x" and "out"

    def read(self, source: File, show: Show) -> None:
        flattened = self.scan.form.extents.axis is None
        for at, piece in files.read(
            source, self.start, self.stop, self.buffer, flattened=flattened
        ):
            stop = at + len(piece)
            self.memory.upload(piece, self.shard[at:stop])
            self._note_last("x", piece)
            show("read", stop, self.shard.size)

    def write(self, target: File, show: Show) -> None:
        output.write(target, self.start, self._pieces(show))

    def _pieces(self, show: Show) -> Iterator[NDArray[Any]]:
        size = self.result.size
        for low, high in chunks(0, size, files.PIECE // self.result.itemsize):
            piece = self.memory.download(self.result[low:high], self.buffer)
            self._note_last("out", piece)
            yield piece
            show("write", high, size)

    def _note_last(self, role: str, piece: NDArray[Any]) -> None:
        """Store the last element so far in scan order."""
        if not self.scan.form.reverse:
            self._last[role] = piece[-1]
        elif role not in self._last:
            self._last[role] = piece[0]

    def total(self) -> Any:
        """Return the total of all elements up to this rank's last one; None without elements."""
        if not self._last or len(self.shape) > 1:
            return None
        total, acc = self._last["out"], self.scan.types.acc
        if self.scan.form.exclusive:
            total = self.scan.op.combine(total.astype(acc), self._last["x"].astype(acc))
        return dtypes.cast(total, self.scan.types.out).item()

    def nothing(self) -> Any:
        """Return the total of an empty file: as in NumPy, 0 for sum, 1 for prod, None for max."""
        if len(self.shape) > 1:
            return None
        first = self.scan.form.first
        return first.item() if first is not None else getattr(self.scan.op.numpy, "identity", None)


def _number(text: str) -> Any:
    """Return a text as an integer, float or complex number."""
    for kind in (int, float, complex):
        with suppress(ValueError):
            return kind(text)
    raise ValueError(f"initial {text!r} is no number")


class _Clock:
    """A clock that measures the seconds of each phase."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        start = perf_counter()
        yield
        self.seconds[phase] = perf_counter() - start
