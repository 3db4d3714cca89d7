"""What one job leaves for the next: ``--state`` at its end, ``--resume`` on its way."""

import math
from collections.abc import Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..binding import Binding
from ..core import dtypes
from ..core.errors import InputError
from ..mpi.agree import agreed
from ..mpi.communicators import Comm
from ..options import ScanOptions
from ..version import __version__
from . import journal, state
from .budget import Budget
from .chunks import Chunk
from .decided import Decided
from .interface import Source
from .journal import Digests, Journal, extend
from .naming import option
from .part import Part
from .state import State
from .sweeps import Note, Show, watched

# ---- state -----------------------------------------------------------------------------------


def state_of(job: Any, scan: ScanOptions, decided: Decided) -> State:
    """Return the state behind which a job begins; an empty one without ``--state``."""
    if job.state is None:
        return State()
    if not decided.goes_on:
        raise ValueError(
            f"{option('state', argument='')} is for scans that go on from row to row: "
            "along axis 0, or flat"
        )
    inner = math.prod(decided.row)
    shape = (inner,) if inner > 1 else ()
    return state.load(job.state, _of_state(scan, decided), decided.totals, shape)


def text_of(scan: ScanOptions, decided: Decided, end: State) -> str:
    """Return the contents of the file of ``--state`` at the end of a job."""
    return state.text(_of_state(scan, decided), end)


def _of_state(scan: ScanOptions, decided: Decided) -> dict[str, Any]:
    """Return what must be the same in all jobs that one state goes through."""
    return {
        "the type of the result": dtypes.to_json(decided.types.out),
        "the shape of a row": list(decided.row),
        **scan.terms(any_input=True),
    }


def check(job: Any, blocks: int) -> None:
    """Refuse what has not been built: a state of blocks of columns some of which are resumed."""
    if job.state is not None and job.run.resume and blocks > 1:
        raise ValueError(
            f"{option('state', argument='')} and {option('resume')} together need "
            f"{option('memory', argument='')} for a whole row"
        )


# ---- journals --------------------------------------------------------------------------------


class Terms(NamedTuple):
    """What must be the same when a job is resumed."""

    scan: ScanOptions
    decided: Decided
    source: Source
    marks: Source | None
    before: State
    bound: Binding
    ranks: int

    def to_json(self, kernels: list[str]) -> dict[str, Any]:
        """Return it by name, in a form that JSON has; ``kernels`` are those of all ranks."""
        marks = {} if self.marks is None else self.marks.terms()
        inputs = {name: str(value) for name, value in (self.source.terms() | marks).items()}
        decided = self.decided
        return {
            **inputs,
            **self.scan.terms(),
            "the type of the input": dtypes.to_json(self.source.dtype),
            "the type of the result": dtypes.to_json(decided.types.out),
            "the accumulating type": dtypes.to_json(decided.types.acc),
            "the type of totals": dtypes.to_json(decided.totals),
            "the shape": list(decided.shape),
            "the strategy": decided.strategy,
            "the state": self.before.digest(),
            "the backend": self.bound.name,
            "the kernels": kernels if len(set(kernels)) > 1 else kernels[0],
            "the number of ranks": self.ranks,
            "the version of distscan": __version__,
            "the version of NumPy": np.__version__,
        }


def journal_of(
    comm: Comm, job: Any, part: Path, same: Terms, sizes: Budget
) -> tuple[Journal | None, Budget]:
    """Return this rank's journal, with what a killed job has left in it, for ``--resume``.

    Also return the memory of the job, with chunks of one size on all ranks; collective.
    """
    if not job.run.resume:
        return None, sizes._replace(chunk=min(comm.allgather(sizes.chunk)))
    kernels = comm.allgather(same.bound.kernels)
    with agreed(comm):
        terms = same.to_json(kernels)
        found = journal.load(part, comm.rank, terms)
        if comm.rank == 0:
            journal.check_all(part, terms)
    chunks = [chunk for chunk in comm.allgather(found and found.chunk) if chunk is not None]
    with agreed(comm):
        if len(set(chunks)) > 1:
            raise ValueError(f"the journals of {part} are of different jobs; remove {part}*")
    sizes = sizes._replace(chunk=chunks[0] if chunks else min(comm.allgather(sizes.chunk)))
    mine = Journal(part, comm.rank, terms, sizes.chunk)
    if found is not None:
        mine.go_on(found)
        sizes = sizes._replace(resident=False)  # the first sweep does not read all chunks again
    return mine, sizes


def compare(
    comm: Comm, part: Part, journal: Journal | None, sources: Sequence[Source | None], show: Show
) -> None:
    """Refuse journals of which a part is missing, and an input that was changed; collective.

    ``sources`` are the elements, and flags or keys.
    """
    if journal is None:
        return
    _check_progress(comm, part, journal)
    if part.digests:
        names = [each.name for each in sources if each is not None]
        with agreed(comm), watched(comm, part, "resume", part.blocks[0], show) as watch:
            _check_input(part, journal, names, watch)


def _check_progress(comm: Comm, part: Part, journal: Journal) -> None:
    """Refuse journals of different times: what one rank has scanned needs the totals of all.

    While ranks reduce a block, each of them has its own progress, or no journal yet.
    """
    if not part.decided.across:
        return
    mine = journal.progress
    everyone = comm.allgather((mine.block, mine.scanned > 0))
    top = max(block for block, _ in everyone)
    scans = (top, True) in everyone
    with agreed(comm):
        chunks = [len(block) for block in part.blocks]
        ended = mine.block == top - 1 and mine.scanned == chunks[mine.block]
        reduced = mine.block == top and mine.reduced == chunks[top]
        if not (reduced if scans else mine.block == top or ended):
            raise ValueError(f"{journal.path} is missing, or older than those of other ranks; "
                             f"{journal.remedy}")  # fmt: skip


def _check_input(part: Part, journal: Journal, names: Sequence[str], watch: Note) -> None:
    """Read again what a killed job has read, and compare its digests."""
    progress = journal.progress
    before = sum(len(block) for block in part.blocks[: progress.block])
    ends = {(before + progress.scanned, progress.scanned_input)}
    if part.decided.across:
        ends.add((before + progress.reduced, progress.reduced_input))
    digests, count = Digests(), 0

    def done(chunk: Chunk) -> None:
        nonlocal digests, count
        watch(chunk.size * part.types.x.itemsize)
        digests, count = extend(digests, part.digests_of(chunk)), count + 1
        for end, wanted in ends:
            if end == count and wanted != digests:
                raise InputError(_changed(wanted, digests, names, journal))

    read = chain.from_iterable(part.blocks)
    part.look(islice(read, max(end for end, _ in ends)), lambda x: None, done)


def _changed(wanted: Digests, digests: Digests, names: Sequence[str], journal: Journal) -> str:
    if not wanted:
        return (
            f"{journal.path} has no digest of the input, because of {option('trust_input')}: "
            "name it again"
        )
    changed = [names[i] for i in range(len(names)) if wanted[i] != digests[i]]
    return f"{' and '.join(changed)} was changed since the killed job has read it; {journal.remedy}"
