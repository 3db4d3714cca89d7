"""The file job: each rank reads, scans and writes its own part of a file."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from .. import binding, options
from ..binding import Binding
from ..core import dtypes
from ..core.errors import CheckError, OutputError
from ..core.form import chunks
from ..core.operators import Operator
from ..cpu import threads
from ..cpu.memory import free_memory
from ..fsum.request import FsumRequest
from ..fsum.window import Window
from ..fsum.words import DigitSum, FixedSum
from ..mpi import launcher
from ..mpi.agree import Agreement, Terms, agreed, collective
from ..mpi.communicators import Comm
from ..options import RunOptions, ScanOptions
from . import formats, output, restart
from .formats import storage
from .formats.files import Staging
from .formats.interface import (
    WRITERS,
    Layout,
    Location,
    Put,
    Show,
    Source,
    Target,
    Url,
    option,
    renaming,
)
from .plan import GPU_CHUNK, Budget, JobPlan, by_window, decide_budget, fsum_request
from .progress import Course, Progress
from .report import Report, Timeline, report, trace
from .restart import State
from .rounds import compare, find_window, sweep
from .shard import Carry, Shard


class FileJob(NamedTuple):
    """A file job: its files, the scan, and how it runs."""

    inputs: tuple[Location, ...]  # several are one array, joined along axis 0
    output: Location
    scan: ScanOptions
    run: RunOptions
    segments: Location | None = None  # flags or keys
    state: Path | None = None  # the running value: read before the job, written after it
    trace: Path | None = None  # a file for the work of all ranks on every chunk

    @classmethod
    def parse(
        cls,
        inputs: tuple[Location, ...],
        output: Location,
        *,
        segments: Location | None = None,
        state: Path | None = None,
        trace: Path | None = None,
        **arguments: Any,
    ) -> "FileJob":
        """Return the job of a caller's arguments, which are those of ``options.parse``."""
        return cls(inputs, output, *options.parse(**arguments), segments, state, trace)

    @property
    def is_remote(self) -> bool:
        """Whether it reads from a store."""
        sources = self.inputs if self.segments is None else (*self.inputs, self.segments)
        return any(isinstance(location.path, Url) for location in sources)

    @property
    def is_in_place(self) -> bool:
        """Whether ranks write into a store."""
        return formats.is_in_place(self.output.path)

    @property
    def uploads(self) -> bool:
        """Whether rank 0 sends the part file to a store."""
        return isinstance(self.output.path, Url) and not self.is_in_place

    def inspect(self, ranks: int) -> tuple[Source, Source | None, ScanOptions, FsumRequest | None]:
        """Check the inputs; return the elements, the flags or keys, the options of the scan, fsum.

        The operator of fsum is known when the window of all elements is.
        """
        scan, run = self.scan, self.run
        source = formats.inspect(self.inputs, scan.op, raw=scan.raw, shape=scan.shape)
        formats.replace_nulls(source, scan)
        if run.like:
            formats.check_like(source, self.output.path)
        marks = formats.inspect_segments(self.segments, source)
        scan = scan._replace(segments=None if marks is None else marks.dtype)
        if run.check and source.dtype.kind in "mM":
            raise ValueError(f"{option('check')} has no reference for {source.dtype}: leave it out")
        has_state = self.state is not None
        fsum = fsum_request(scan, run, source, ranks, has_state=has_state)
        return source, marks, scan, fsum

    def terms(self, scan: ScanOptions) -> Terms:
        """Return what must be the same on every rank, whatever the files; ``scan`` as inspected.

        Operators are compared by their names, as by ``scan``.
        """
        op = scan.op.name if isinstance(scan.op, Operator) else scan.op
        terms = {"the function": "scan_file", **scan._replace(op=op).terms(), **self.run.terms()}
        files = {"output": self.output, "state": self.state, "trace": self.trace}
        return Terms(terms | {name: path and str(path) for name, path in files.items()})

    def backend_for(self, source: Source) -> binding.Name:
        """Return the caller's backend; CPUs for structures, which CuPy does not have."""
        if not source.dtype.names:
            return self.run.backend
        if self.run.backend == "cuda":
            raise TypeError(f"{source.name} holds structures, which CuPy has not; use CPUs")
        return "cpu"


@collective
def perform(
    call: Agreement,
    comm: Comm,
    job: FileJob,
    notify: Callable[[Progress], None],
    warn: Callable[[str], None],
    *,
    of_process: bool = False,
    clock: Timeline | None = None,
) -> Report:
    """Scan a file into a file, and return the report; collective. Every rank raises, or none.

    ``notify`` is called on rank 0 with the progress. ``of_process`` says that the job began when
    this process did. ``clock`` gets the times of this rank: a caller may read them also after a
    fault.
    """
    clock = clock or Timeline(trace=job.trace is not None, of_process=of_process)
    # ---- check everything before any work -------------------------------------------------
    source, marks, scan, fsum = job.inspect(comm.size)
    call.same = job.terms(scan)
    for each in (source, marks, fsum):
        call.same.update(each.terms() if each is not None else {})
    backend = job.backend_for(source)
    # The window of fsum is known later: that of no elements stands for it.
    window = Window(0, 0, source.n)
    options = scan if fsum is None else by_window(scan, fsum, window, source.dtype)
    plan = JobPlan.of(options, job.run, source, comm)
    restart.load_state(job, scan, plan)  # it is read again when no other job can change it
    paths = _check_files(job) if comm.rank == 0 else _Paths(job.output.path, job.state, job.trace)
    call.settle()

    # ---- file -> chunks -> scan -> file -> its name ---------------------------------------
    with ExitStack() as files:
        target = files.enter_context(
            part_file(
                comm,
                paths.output,
                Layout(
                    plan.types.out,
                    plan.shape,
                    plan.fortran,
                    job.output.member,
                    source,
                    packed=job.run.like,
                ),
                resume=job.run.resume,
            )
        )
        with agreed(comm):
            drafts = files.enter_context(_drafts(paths)) if comm.rank == 0 else (None, None)
            plan = plan.divide(source, target, comm, has_state=job.state is not None)
            put = files.enter_context(target.writing())
        with _startup(job, plan, source, put, backend):
            bound = binding.bind(comm, backend, warn, job.run.threads)
        with agreed(comm) as same:
            if bound.memory.current_gpu() is not None:
                plan = plan.by(options, bound.memory.current_gpu(), comm.size)
            state = restart.load_state(job, scan, plan)
            same["the state"] = state.digest()
            budget = _budget(job, plan, bound, (source, marks), parallel=put.parallel)
        terms = restart.JournalTerms(scan, plan, source, marks, state, bound, comm.size)
        journal, budget = restart.open_journal(comm, job, target.path, terms, budget)
        with agreed(comm):
            shard = Shard(
                plan,
                budget,
                bound.memory,
                source=source,
                marks=marks,
                put=put,
                timeline=clock,
                digests=job.run.digests,
            )
            restart.check_blocks(job, len(shard.blocks))
            shard.open()
            show = Course(_phases(job, plan, (source, marks, fsum), target), notify, comm.rank).show
        clock.from_the_beginning("start")
        with agreed(comm), renaming(target.path, job.output.path), shard:
            compare(comm, shard, journal, (source, marks), show)
            if fsum is not None:
                find_window(comm, shard, fsum, source, show, journal=journal)
            end = sweep(comm, shard, show, state, journal)
        with agreed(comm), renaming(target.path, job.output.path), clock("write"):
            show("write", 0, 0)
            if bound.first_on_node:
                put.sync()
        if job.run.check:
            _check(comm, source, target, shard, show, state=state, remote=job.is_remote)
        ends = [each for each in comm.allgather(end) if each.value is not None]
        last = ends[0 if scan.reverse else -1] if ends else state
        _publish(
            comm,
            job,
            clock,
            target,
            show,
            paths=paths,
            drafts=drafts,
            state_text=partial(restart.state_text, scan, plan, last),
        )
    clock.from_the_beginning("all")
    clock.bytes["all"] = source.n * (plan.types.x.itemsize + plan.types.out.itemsize)
    return report(
        comm.allgather((clock.seconds, clock.bytes)),
        elements=source.n,
        dtype_in=str(plan.types.x),
        dtype_out=str(plan.types.out),
        op=plan.op.name,
        ranks=comm.size,
        nodes=bound.nodes,
        backend=bound.name,
        device=bound.device,
        strategy=plan.strategy,
        total=_total(shard.plan, last.value),
        output=str(job.output),
        places=(
            _place(job.inputs[0].path),
            _place_of_output(job, target),
            f"{_place(job.output.path)}, by rank 0" if job.uploads else "",
        ),
    )


def _phases(
    job: FileJob,
    plan: JobPlan,
    inspected: tuple[Source, Source | None, FsumRequest | None],
    target: Target,
) -> dict[str, int]:
    """Return the phases that a job may have, in their order, and the bytes that each moves."""
    source, marks, fsum = inspected
    read, write = (source.n * each.itemsize for each in (plan.types.x, plan.types.out))
    of_marks = 0 if marks is None else source.n * marks.dtype.itemsize
    return {
        "resume": (read + of_marks) * job.run.digests,
        "window": read * (fsum is not None),
        "scan": read + of_marks + write,
        "write": 0,  # the system has written most of it by then
        "check": (read + write) * job.run.check,
        "encode": 2 * write * isinstance(target, Staging),
        "upload": write * job.uploads,
    }


def _place_of_output(job: FileJob, target: Target) -> str:
    """Return where an output is written, and whether one rank writes it in its format."""
    place = _place(job.output.path if job.is_in_place else target.path.parent)
    return f"{place}, encoded by rank 0" if isinstance(target, Staging) else place


def _place(path: Path | Url) -> str:
    """Return where an input or an output is, for a report."""
    return path.scheme if isinstance(path, Url) else storage.place(path)


class _Paths(NamedTuple):
    """The files that a job writes, without symbolic links."""

    output: Path | Url
    state: Path | None
    trace: Path | None


def _check_files(job: FileJob) -> _Paths:
    """Check, before any work, that the files can be written; return their paths."""
    check_roles([job])
    state, trace = job.state, job.trace
    return _Paths(
        output.check_output(job.output.path, force=job.run.force, resume=job.run.resume),
        None if state is None else output.check(state, force=True),  # none but a state is read
        None if trace is None else output.check(trace, force=job.run.force),
    )


def check_roles(jobs: Sequence[FileJob]) -> None:
    """Refuse a file in two roles of jobs that run one after the other, if one of them writes it.

    Files are compared, not names. An output may replace an input of its job, if it may replace
    files: it does so when the input was read. Several jobs may have one state.
    """
    roles: dict[tuple[int, int, str], list[_Role]] = {}
    written, hidden = [], []
    for job in jobs:
        for role in _roles(job):
            for other in roles.setdefault(output.identity(role.path), []):
                if role.excludes(other):
                    raise OutputError(f"{role.path} is {other.name} and {role.name}: name another")
            roles[output.identity(role.path)].append(role)
            written += [role] if role.writes else []
            hidden += [role] if role.path.name.startswith(".") else []
    for role in hidden:
        for other in written:
            if output.is_part(role.path, other.path):
                raise OutputError(f"{role.path}, {role.name}, may be a part file of {other.name}, "
                                  f"{other.path}: name another")  # fmt: skip


class _Role(NamedTuple):
    """What a job does with a file."""

    name: str
    path: Path | Url
    job: FileJob
    writes: bool = False

    def excludes(self, other: "_Role") -> bool:
        """Return whether no file can have both roles."""
        if self.job is not other.job and self.name == other.name == "the state":
            return False
        if self.job is other.job and self.name == "the output" and not other.writes:
            return False
        return self.writes or other.writes


def _roles(job: FileJob) -> Iterator[_Role]:
    """Yield the files that a user names: those that are read first."""
    for location in job.inputs:
        yield _Role("an input", location.path, job)
    if job.segments is not None:
        yield _Role("the segments", job.segments.path, job)
    yield _Role("the output", job.output.path, job, writes=True)
    if job.state is not None:
        yield _Role("the state", job.state, job, writes=True)
    if job.trace is not None:
        yield _Role("the trace", job.trace, job, writes=True)


_Drafts = tuple[output.Draft | None, output.Draft | None]


@contextmanager
def _drafts(paths: _Paths) -> Iterator[_Drafts]:
    """Begin the state and the trace: no other job uses the state until this one has ended."""
    with ExitStack() as files:
        state = trace = None
        if paths.state is not None:
            state = files.enter_context(output.draft(paths.state, use="uses the state"))
        if paths.trace is not None:
            trace = files.enter_context(output.draft(paths.trace))
        yield state, trace


def _publish(
    comm: Comm,
    job: FileJob,
    clock: Timeline,
    target: Target,
    show: Show,
    *,
    paths: _Paths,
    drafts: _Drafts,
    state_text: Callable[[], str],
) -> None:
    """Let the output, the state and the trace appear, all of them or none; collective."""
    with agreed(comm), renaming(target.path, job.output.path), clock("write"):
        if comm.rank == 0:
            target.finish(show)
    clock.from_the_beginning("all")  # a trace is whole before the output appears
    spans = [] if job.trace is None else comm.gather(clock.spans)
    with agreed(comm):
        if comm.rank > 0:
            return
        files = [output.Publication(target.path, paths.output, job.run.force)]
        state_file, trace_file = drafts
        if trace_file is not None:
            trace_file.write(trace(spans or []))
            files.insert(0, output.Publication(trace_file.part, trace_file.path, job.run.force))
        if state_file is not None:
            state_file.write(state_text())
            files.append(output.Publication(state_file.part, state_file.path, force=True))
        with clock("upload", target.path.stat().st_size) if job.uploads else nullcontext():
            output.publish_all(files, show)


def _check(
    comm: Comm,
    source: Source,
    target: Target,
    shard: Shard,
    show: Show,
    *,
    state: State,
    remote: bool,
) -> None:
    """Compare the result with NumPy's; collective."""
    from . import check  # noqa: PLC0415 - few jobs check their result

    ahead = _AHEAD_OF_CHECK * shard.budget.chunk if remote else 0
    with shard.timeline("check"):
        check.check(comm, shard, source, target, state=state, show=show, ahead=ahead)


_AHEAD_OF_CHECK = 4  # chunks that are read from a store at a time


def _budget(
    job: FileJob,
    plan: JobPlan,
    bound: Binding,
    sources: tuple[Source, Source | None],
    *,
    parallel: bool,
) -> Budget:
    source, marks = sources
    flattened = plan.form.extents.axis is None
    gpu = bound.memory.current_gpu() is not None
    budget = decide_budget(
        size=plan.form.extents.size,
        element=plan.types.x.itemsize,
        result=plan.types.out.itemsize,
        mark=0 if plan.scan.segments is None else plan.scan.segments.itemsize,
        in_place=plan.types.x == plan.types.out,
        gpu=gpu,
        threads=_threads(job, bound.local_ranks, gpu=gpu),
        turn=partial(plan.turn, gpu=gpu),
        row=plan.bytes_of_row,
        parallel=parallel,
        limit=job.run.memory,
        free_host=free_memory() // bound.local_ranks,
        free_device=bound.memory.available() // bound.sharing,
        windows=source.needs_window(flattened=flattened)
        + (marks is not None and marks.needs_window(flattened=True)),
        fewest=plan.fewest,
        whole=plan.whole,
        remote=job.is_remote,
        remote_target=job.is_in_place,
    )
    if plan.across and len(source.shape) > len(plan.shape):
        # Other ranks have what is beside a turn; windows without tiles overlap turns.
        turns = plan.turns._replace(chunks=budget.turn)
        turn = turns.part(budget.chunk) * source.dtype.itemsize
        budget = budget._replace(window=min(budget.window, turn if source.tile else turn // 8))
    # Running values of many columns need memory, too.
    chunk = max(plan.fewest if plan.whole else 1, budget.chunk // _DIGITS)
    narrow = isinstance(plan.op, DigitSum) and plan.form.extents.inner > chunk
    return budget._replace(chunk=chunk) if narrow else budget


_DIGITS = 64  # about the most int64 of the running value of an exact sum


def _threads(job: FileJob, ranks: int, *, gpu: bool) -> int:
    """Return the most threads of this rank, one of so many on this node.

    Those that copy for a GPU are not bound to the cores that the launcher has given the rank.
    """
    if not gpu or job.run.threads is not None:
        return binding.threads(job.run.threads)
    return max(1, threads.of_node() // ranks)


def _total(plan: JobPlan, value: NDArray[Any] | None) -> Any:
    """Return the total for a report; None if there are several.

    That of an empty file is as in NumPy: 0 for sum, 1 for prod, None for max. That of times is
    their text, such as "9 seconds".
    """
    if len(plan.shape) > 1:
        return None
    carry = Carry(plan.op, plan.totals, plan.form.seed, segmented=False)
    carry.start(value)
    if isinstance(plan.op, FixedSum | DigitSum):
        if carry.result() is None:
            return np.zeros((), plan.types.out).item()
        return plan.op.decode(np.asarray(carry.result()), plan.types.out).item()
    if value is None and plan.form.seed is None:
        return getattr(plan.op.numpy, "identity", None)
    total = dtypes.cast(np.asarray(carry.result()), plan.types.out)
    return str(total) if total.dtype.kind in "mM" else total.item()


@contextmanager
def part_file(
    comm: Comm, path: Path | Url, layout: Layout, *, resume: bool = False
) -> Iterator[Target]:
    """Create the part file that will become ``path``; collective.

    The part file is removed if anything fails, except the check; not if journals say how far the
    job has come.
    """
    target: Target | None = None
    with ExitStack() as files:
        try:
            with agreed(comm):
                if comm.rank == 0:
                    target = files.enter_context(output.create(path, layout, resume=resume))
            target = cast(Target, comm.bcast(target))
            with agreed(comm), _explaining_place(path):
                target.check_shared()
            yield target
        except CheckError:
            raise
        except BaseException:
            # Any rank removes it: if another rank is interrupted, rank 0 may be waiting inside MPI.
            if target is not None and not (resume and output.journals(target.path)):
                output.remove(target.path)
            raise


@contextmanager
def _explaining_place(path: Path | Url) -> Iterator[None]:
    """Say where the part file of a URL is, in an error that other ranks do not see it."""
    try:
        yield
    except OutputError as error:
        if not isinstance(path, Url):
            raise
        raise OutputError(f"{error}: TMPDIR names the folder for {path}") from None


# ---- while its GPU starts, a rank reads ahead, and allocates the output ----------------------

_AHEAD = 1 << 20  # bytes that are read at a time
#: Files of NVIDIA's driver, on Linux and on Windows' subsystem for Linux.
_DRIVERS = ("/proc/driver/nvidia/version", "/dev/dxg")


@contextmanager
def _startup(
    job: FileJob, plan: JobPlan, source: Source, put: Put, backend: binding.Name
) -> Iterator[None]:
    """Let other threads work while the GPU starts, if there may be one.

    A file is read into the system's memory. The bytes of a store would not stay there.
    """
    # A look at the driver's files takes no time, unlike CUDA's answer.
    if (
        backend == "cpu"
        or source.tile
        or plan.whole
        or not any(Path(driver).exists() for driver in _DRIVERS)
    ):
        yield
        return
    threads = min(_threads(job, launcher.local_ranks(), gpu=True), WRITERS)
    chunk = GPU_CHUNK // max(plan.types.x.itemsize, plan.types.out.itemsize)
    put.allocate(plan.runs(chunk), threads)
    ended = threading.Event()
    if job.is_remote:
        yield
        return
    reader = threading.Thread(target=_read_ahead, args=(plan, source, chunk, ended), daemon=True)
    reader.start()
    try:
        yield
    finally:
        ended.set()
        reader.join()


def _read_ahead(plan: JobPlan, source: Source, chunk: int, ended: threading.Event) -> None:
    """Read elements in the order of the scan, so that the system has them in memory."""
    threads.unbind()
    scratch = np.empty(max(1, _AHEAD // plan.types.x.itemsize), plan.types.x)
    try:
        with source.reading() as fill:
            for run in plan.runs(chunk):
                for low, high in chunks(*run, scratch.size):
                    if ended.is_set():
                        return
                    fill(scratch[: high - low], low)
    except Exception:  # the scan will find the fault, and say it
        return
