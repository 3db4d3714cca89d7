"""What one job leaves for the next: ``--state`` at its end, ``--resume`` on its way."""

import math
from pathlib import Path
from typing import Any

from ..mpi.agree import agreed
from ..mpi.communicators import Comm
from . import journal, state
from .budget import Budget
from .decided import Decided
from .interface import Source
from .journal import Journal
from .state import State

# ---- state -----------------------------------------------------------------------------------


def state_of(job: Any, decided: Decided) -> State:
    """Return the state behind which a job begins; an empty one without ``--state``."""
    if job.state is None:
        return State()
    if not decided.goes_on:
        raise ValueError("--state is for scans that go on from row to row: along axis 0, or flat")
    inner = math.prod(decided.row)
    shape = (inner,) if inner > 1 else ()
    return state.load(job.state, _of_scan(decided), decided.totals, shape)


def text_of(decided: Decided, end: State) -> str:
    """Return the contents of the file of ``--state`` at the end of a job."""
    return state.text(_of_scan(decided), end)


def _of_scan(decided: Decided) -> dict[str, Any]:
    """Return what must be the same in all jobs that one state goes through."""
    options = decided.options
    segments = str(options.segments)
    if options.segments is not None and options.segments.kind in "SU":
        segments = f"text, {options.segments.kind}"  # each file has its own width
    return {
        "the operator": decided.op.name,
        "the type of the result": str(decided.types.out),
        "the shape of a row": list(decided.row),
        "exclusive": options.exclusive,
        "reverse": options.reverse,
        "initial": str(options.initial),
        "the type of segments": segments,
    }


def check(job: Any, blocks: int) -> None:
    """Refuse what has not been built: a state of blocks of columns some of which are resumed."""
    if job.state is not None and job.resume and blocks > 1:
        raise ValueError("--state and --resume together need a --memory that holds a whole row")


# ---- journals --------------------------------------------------------------------------------


def terms_of(
    decided: Decided,
    source: Source,
    marks: Source | None,
    before: State,
    **same: Any,
) -> dict[str, Any]:
    """Return what must be the same when a job is resumed; ``same`` is more of it."""
    inputs = {name: str(value) for name, value in source.terms().items()}
    keys = {} if marks is None else {name: str(value) for name, value in marks.terms().items()}
    return {
        **inputs,
        **keys,
        **_of_scan(decided),
        "the type of the input": str(decided.types.x),
        "the accumulating type": str(decided.totals),
        "the shape": list(decided.shape),
        "axis": decided.options.axis,
        "the strategy": decided.strategy,
        "the state": before.digest(),
        **{f"the {name}": value for name, value in same.items()},
    }


def journal_of(
    comm: Comm, job: Any, part: Path, terms: dict[str, Any], sizes: Budget
) -> tuple[Journal | None, Budget]:
    """Return this rank's journal, with what a killed job has left in it, for ``--resume``.

    Also return the memory of the job, with chunks of one size on all ranks; collective.
    """
    if not job.resume:
        return None, sizes._replace(chunk=min(comm.allgather(sizes.chunk)))
    with agreed(comm):
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
