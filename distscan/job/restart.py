"""What one job leaves for the next: ``--state`` at its end, ``--resume`` on its way."""

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..binding import Binding
from ..core import dtypes
from ..mpi.agree import agreed
from ..mpi.communicators import Comm
from ..options import ScanOptions
from ..version import __version__
from . import journal, state
from .budget import Budget
from .decided import Decided
from .interface import Source
from .journal import Journal
from .state import State

# ---- state -----------------------------------------------------------------------------------


def state_of(job: Any, scan: ScanOptions, decided: Decided) -> State:
    """Return the state behind which a job begins; an empty one without ``--state``."""
    if job.state is None:
        return State()
    if not decided.goes_on:
        raise ValueError("--state is for scans that go on from row to row: along axis 0, or flat")
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
        raise ValueError("--state and --resume together need a --memory that holds a whole row")


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
        mine.progress = found.progress
        sizes = sizes._replace(resident=False)  # the first sweep does not read all chunks again
    return mine, sizes
