"""The files by which a job goes on after another one: ``--state`` and ``--resume``.

Both are a digest and JSON, with arrays to their last bit. A state is written at the end of a job, a
journal on its way.
"""

import math
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..binding import Binding
from ..core import dtypes
from ..core.errors import InputError
from ..core.fingerprint import digest
from ..core.steps import Edges
from ..mpi.agree import agreed
from ..mpi.communicators import Comm
from ..options import ScanOptions
from ..version import __version__
from . import output
from .chunks import Block
from .formats.files import opened
from .formats.interface import Source, naming_output, option
from .plan import Budget, JobPlan
from .shard import Carry, Digests

FORMAT = 2
PERIOD = 1.0  # seconds between two records of a journal, at least
_SHARE = 20  # records take at most one part of so many of the time


# ---- --state --------------------------------------------------------------------------------
# The running value at the end of a job, for the job that scans the next elements: the total of all
# elements so far, without ``--initial``, which is combined with it again in each job. It is used as
# the total of a rank before the first one.


class State(NamedTuple):
    """A running value, and the last key: nothing before the first job."""

    value: NDArray[Any] | None = None  # 0-d or [inner]
    key: Any = None  # with segments: the last key, or a flag in its place

    def digest(self) -> str:
        """Return a short text that tells states apart."""
        value = None if self.value is None else self.value.tolist()
        return f"{digest(repr((value, self.key)).encode()):016x}"

    @classmethod
    def after(cls, carry: Carry) -> "State":
        """Return the state of a running value."""
        return cls(carry.value, None if carry.edges is None else carry.edges.leaves)

    def start(self, carry: Carry) -> None:
        """Let a running value begin with this state."""
        carry.start(self.value, None if self.key is None else Edges(self.key, self.key))

    def of_columns(self, block: Block) -> "State":
        """Return the state of the columns of a block."""
        value = self.value
        if value is not None and value.ndim > 0:
            value = block.of_row(value).ravel()
            if block.width == 1:  # a column is scanned as an array of one axis
                value = value.reshape(())
        return self._replace(value=value)


def load_state(job: Any, scan: ScanOptions, plan: JobPlan) -> State:
    """Return the state that seeds a job; an empty one without ``--state``."""
    if job.state is None:
        return State()
    if not plan.goes_on:
        raise ValueError(
            f"{option('state', argument='')} is for scans that go on from row to row: "
            "along axis 0, or flat"
        )
    inner = math.prod(plan.row)
    shape = (inner,) if inner > 1 else ()
    return _read_state(job.state, _state_terms(scan, plan), plan.totals, shape)


def _read_state(
    path: Path, terms: dict[str, Any], dtype: np.dtype[Any], shape: tuple[int, ...]
) -> State:
    """Return the state in a file, whose value has a type and a shape; an empty one without a file.

    Raises ValueError if it is the state of another scan, or damaged.
    """
    remedy = "name another file, or remove it to begin anew"
    contents = read_sealed(path, remedy)
    if contents is None:
        return State()
    check_terms(path, contents, terms, remedy)
    with decoding(path, remedy):
        state = state_of_json(contents)
        if state.value is None:
            return state
        if (state.value.dtype.kind, state.value.shape) != (dtype.kind, shape):
            raise ValueError(f"its value is {state.value.dtype} of shape {state.value.shape}")
        # CPUs and GPUs accumulate float32 differently.
        return state._replace(value=dtypes.cast(state.value, dtype))


def state_text(scan: ScanOptions, plan: JobPlan, end: State) -> str:
    """Return the contents of the file of ``--state`` at the end of a job."""
    return seal({"terms": _state_terms(scan, plan)} | state_to_json(end))


def _state_terms(scan: ScanOptions, plan: JobPlan) -> dict[str, Any]:
    """Return the terms that are the same in all jobs of one state."""
    return {
        "the type of the result": dtypes.to_json(plan.types.out),
        "the shape of a row": list(plan.row),
        **scan.terms(any_input=True),
    }


def check_blocks(job: Any, blocks: int) -> None:
    """Refuse a state whose columns are in several blocks, some of which are resumed."""
    if job.state is not None and job.run.resume and blocks > 1:
        raise ValueError(
            f"{option('state', argument='')} and {option('resume')} go together where a chunk has "
            f"whole rows: give {option('memory', argument='')} for one, or leave "
            f"{option('resume')} out, if the array lies in tiles"
        )


# ---- --resume -------------------------------------------------------------------------------
# A journal says how far a rank has come, in a file beside the part file, for a job that is killed.
# A record is written every second. It counts the chunks that are complete, and has the running
# value after them. The chunks are on the disk before the record is.


class BlockProgress(NamedTuple):
    """How far a rank has come in a block of columns."""

    block: int = 0
    scanned: int = 0  # chunks that are scanned and written
    state: dict[str, Any] | None = None  # the state after these; of all ranks, after their round
    input: Digests = ()  # of this rank's chunks so far, in all blocks

    def of_block(self, block: int) -> "BlockProgress":
        """Return the progress in a block, perhaps none yet."""
        return self if self.block >= block else BlockProgress(block, input=self.input)


class Journal:
    """The journal of one rank."""

    def __init__(self, part: Path, rank: int, terms: dict[str, Any], budget: Budget) -> None:
        """``terms`` must be the same when the job is resumed; the chunks of ``budget``, too."""
        self.path, self.remedy = journal_path(part, rank), _remedy(part)
        self._contents = {
            "terms": terms,
            "journal": self.path.name,
            "chunk": budget.chunk,
            "turn": budget.turn,
        }
        self._next = monotonic() + PERIOD
        self.progress = BlockProgress()
        self._operator = ""

    def resume(self, record: "JournalRecord") -> None:
        """Begin where a killed job has stopped."""
        self.progress, self._operator = record.progress, record.operator

    @property
    def due(self) -> bool:
        """Whether it is time for a record."""
        return monotonic() >= self._next

    def note_operator(self, text: str) -> None:
        """Record the unit of the running value, which is known when the input has been read.

        Raises ValueError if it was another one.
        """
        if self._operator not in {"", text}:
            raise ValueError(
                f"{self.path}: the journal is of a job with other kernels, or of another input: "
                f"sums were {self._operator}, and are {text}; {self.remedy}"
            )
        self._operator = text

    def state_after(self, progress: BlockProgress, dtype: np.dtype[Any]) -> State:
        """Return the state of a journal, whose value has a type."""
        with decoding(self.path, self.remedy):
            state = state_of_json(progress.state)
            if state.value is not None and state.value.dtype != dtype:
                raise ValueError(f"its running value is {state.value.dtype}, and not {dtype}")
            return state

    def record(self, progress: BlockProgress) -> None:
        """Write a record of chunks, which must be on the disk."""
        begun = monotonic()
        self.progress = progress
        more = {"operator": self._operator, "progress": progress._asdict()}
        write_sealed(self.path, self._contents | more)
        now = monotonic()
        self._next = now + max(PERIOD, _SHARE * (now - begun))


class JournalRecord(NamedTuple):
    """The contents of a journal."""

    chunk: int
    turn: int
    operator: str
    progress: BlockProgress


def load_journal(part: Path, rank: int, terms: dict[str, Any]) -> JournalRecord | None:
    """Return the contents of the journal of a rank; None if there is none.

    Raises ValueError if it was written for another job.
    """
    path = journal_path(part, rank)
    contents = read_sealed(path, _remedy(part))
    if contents is None:
        return None
    check_terms(path, contents, terms, _remedy(part))
    with decoding(path, _remedy(part)):
        if contents["journal"] != path.name:
            raise ValueError(f"it is {contents['journal']}")
        progress = BlockProgress(**contents["progress"])
        progress = progress._replace(input=tuple(progress.input))
        if progress.state is not None:
            state_of_json(progress.state)  # another rank's is used, if that has come less far
        chunk, turn = int(contents["chunk"]), int(contents["turn"])
        return JournalRecord(chunk, turn, str(contents["operator"]), progress)


def check_journals(part: Path, terms: dict[str, Any]) -> None:
    """Check the journals of all ranks, also of those that this job does not have."""
    for path in output.journals(part):
        if path.suffix == ".new":
            continue
        contents = read_sealed(path, _remedy(part))
        if contents is not None:
            check_terms(path, contents, terms, _remedy(part))


def _remedy(part: Path) -> str:
    return f"without {option('resume')}, or after 'rm {part}*', it begins anew"


def journal_path(part: Path, rank: int) -> Path:
    """Return the path of the journal of a rank."""
    return part.with_name(f"{part.name}.{rank}")


class JournalTerms(NamedTuple):
    """The terms that must be the same when a job is resumed."""

    scan: ScanOptions
    plan: JobPlan
    source: Source
    marks: Source | None
    before: State
    bound: Binding
    ranks: int

    def to_json(self, kernels: list[str]) -> dict[str, Any]:
        """Return them by name, in a form that JSON has; ``kernels`` are those of all ranks."""
        marks = {} if self.marks is None else self.marks.terms()
        inputs = {name: str(value) for name, value in (self.source.terms() | marks).items()}
        plan = self.plan
        return {
            **inputs,
            **self.scan.terms(),
            "the type of the input": dtypes.to_json(self.source.dtype),
            "the type of the result": dtypes.to_json(plan.types.out),
            "the accumulating type": dtypes.to_json(plan.types.acc),
            "the type of totals": dtypes.to_json(plan.totals),
            "the shape": list(plan.shape),
            "the number of ranks": self.ranks,  # it decides the strategy, so it is named first
            "the strategy": plan.strategy,
            "the state": self.before.digest(),
            "the backend": self.bound.name,
            "the kernels": kernels if len(set(kernels)) > 1 else kernels[0],
            "the version of distscan": __version__,
            "the version of NumPy": np.__version__,
        }


def open_journal(
    comm: Comm, job: Any, part: Path, same: JournalTerms, budget: Budget
) -> tuple[Journal | None, Budget]:
    """Return this rank's journal, with the progress of a killed job, for ``--resume``.

    Also return the memory of the job, with chunks of one size on all ranks; collective.
    """
    if not job.run.resume:
        return None, _same_chunks(comm.allgather((budget.chunk, budget.turn)), budget)
    kernels = comm.allgather(same.bound.kernels)
    with agreed(comm):
        terms = same.to_json(kernels)
        record = load_journal(part, comm.rank, terms)
        if comm.rank == 0:
            check_journals(part, terms)
    records = comm.allgather(record and (record.chunk, record.turn))
    recorded = [each for each in records if each is not None]
    with agreed(comm):
        if len(set(recorded)) > 1:
            raise ValueError(f"the journals of {part} are of different jobs; remove {part}*")
    budget = _same_chunks(recorded or comm.allgather((budget.chunk, budget.turn)), budget)
    journal = Journal(part, comm.rank, terms, budget)
    if record is not None:
        journal.resume(record)
    return journal, budget


def _same_chunks(ranks: Sequence[tuple[int, int]], budget: Budget) -> Budget:
    """Return the memory of a rank with chunks and turns of one size on all ranks."""
    chunk, turn = (min(each) for each in zip(*ranks, strict=True))
    return budget._replace(chunk=chunk, turn=turn, slots=max(budget.slots, turn))


# ---- files with a digest --------------------------------------------------------------------

_HEAD = '{{"format": {}, "digest": "{}", "contents": '
_DIGEST = 32  # bytes
_HEAD_SIZE = len(_HEAD.format(FORMAT, "0" * 2 * _DIGEST))


def seal(contents: dict[str, Any]) -> str:
    """Return the text of a file: a digest, and ``contents`` as JSON."""
    import json  # noqa: PLC0415 - few jobs save anything

    text = json.dumps(contents)
    return f"{_HEAD.format(FORMAT, _digest(text.encode()))}{text}}}"


def _digest(text: bytes) -> str:
    from hashlib import blake2b  # noqa: PLC0415 - it takes 3 ms

    return blake2b(text, digest_size=_DIGEST).hexdigest()


def write_sealed(path: Path, contents: dict[str, Any]) -> None:
    """Replace a file: it has the old contents or the new ones, also after a crash."""
    # A name that nobody can predict: no link is there. ``output.journals`` finds it.
    new = path.with_name(f"{path.name}.{os.urandom(4).hex()}.new")
    with naming_output(path):
        try:
            with new.open("x") as file:
                file.write(seal(contents))
                file.flush()
                os.fsync(file.fileno())
            new.replace(path)
        except BaseException:
            new.unlink(missing_ok=True)
            raise


def read_sealed(path: Path, remedy: str) -> dict[str, Any] | None:
    """Return the contents of a file; None if there is none.

    Raises ValueError, with ``remedy``, if the file is not as ``seal`` has made it. Its contents are
    parsed after its digest is compared.
    """
    import json  # noqa: PLC0415

    if not os.path.lexists(path):
        return None
    with decoding(path, remedy), opened(path) as stream:
        head = stream.read(_HEAD_SIZE)  # the file may be a large one of another kind
        version = re.match(rb'{"format": (\d+)', head)
        if version is None or int(version[1]) != FORMAT:
            raise ValueError("it was not written by this version of distscan")
        text = stream.read()
        if head.decode() != _HEAD.format(FORMAT, _digest(text[:-1])) or text[-1:] != b"}":
            raise ValueError("its digest is of other contents")
        contents = json.loads(text[:-1])
        if not isinstance(contents["terms"], dict):
            raise ValueError("it has no terms")
        return dict(contents)


@contextmanager
def decoding(path: Path, remedy: str) -> Iterator[None]:
    """Turn every fault of the contents of a file into a ValueError that names it."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # of JSON, of types, of memory: a file may hold anything
        reason = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
        raise ValueError(f"{path} cannot be used: {reason}; {remedy}") from error


def check_terms(path: Path, contents: dict[str, Any], terms: dict[str, Any], remedy: str) -> None:
    """Raise ValueError, with ``remedy``, if a file was written under other ``terms``."""
    import json  # noqa: PLC0415

    before, now = contents["terms"], json.loads(json.dumps(terms))
    for name in [*now, *before]:
        if before.get(name) != now.get(name):
            raise ValueError(f"{path} was written for another job: {name} was {before.get(name)}, "
                             f"and is {now.get(name)}; {remedy}")  # fmt: skip


def array_to_json(array: Any) -> list[Any] | None:
    """Return an array in a form that JSON has.

    >>> array_to_json(np.array([1, 2], "<i2"))
    ['int16', [2], 'AQACAA==']
    """
    if array is None:
        return None
    from base64 import b64encode  # noqa: PLC0415

    array = np.asarray(array)
    return [
        dtypes.to_json(array.dtype),
        list(array.shape),
        b64encode(array.tobytes()).decode(),
    ]


def array_of_json(text: list[Any] | None) -> NDArray[Any] | None:
    """Return the array that ``array_to_json`` has described.

    >>> array_of_json(["int16", [2], "AQACAA=="])
    array([1, 2], dtype=int16)
    """
    if text is None:
        return None
    from base64 import b64decode  # noqa: PLC0415

    descr, shape, data = text
    dtype = dtypes.of_json(descr)
    return np.frombuffer(b64decode(data, validate=True), dtype).reshape(shape).copy()


def state_to_json(state: State) -> dict[str, Any]:
    """Return a state in a form that JSON has."""
    return {"value": array_to_json(state.value), "key": array_to_json(state.key)}


def state_of_json(saved: Any) -> State:
    """Return the state that ``state_to_json`` has described; raise if it is none."""
    value, key = array_of_json(saved["value"]), array_of_json(saved["key"])
    return State(value, None if key is None else key[()])
