"""``--resume``: how far a rank has come, in a file beside the part file, for a job that is killed.

A record is written every second. It counts the chunks that are complete, and has the running value
behind them. The chunks are on the disk before the record is.
"""

from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

from . import output, saved
from .carry import Carry

PERIOD = 1.0  # seconds between two records, at least
_SHARE = 20  # records take at most one part of so many of the time


class Progress(NamedTuple):
    """How far a rank has come in a block of columns."""

    block: int = 0
    reduced: int = 0  # chunks
    total: dict[str, Any] | None = None  # the carry behind these
    scanned: int = 0  # chunks that are written, too
    carry: dict[str, Any] | None = None  # the carry behind these


class Journal:
    """The journal of one rank."""

    def __init__(self, part: Path, rank: int, terms: dict[str, Any], chunk: int) -> None:
        """``terms`` are what must be the same when the job is resumed; ``chunk`` is kept."""
        self._path, self._remedy = path_of(part, rank), _remedy(part)
        self._contents = {"terms": terms, "journal": self._path.name, "chunk": chunk}
        self._next = monotonic() + PERIOD
        self.progress = Progress()

    @property
    def due(self) -> bool:
        """Whether it is time for a record."""
        return monotonic() >= self._next

    def restore(self, value: dict[str, Any], carry: Carry) -> None:
        """Give ``carry`` a running value of the journal."""
        with saved.decoding(self._path, self._remedy):
            saved.to_carry(value, carry)

    def record(self, progress: Progress) -> None:
        """Write a record; what it counts must be on the disk."""
        begun = monotonic()
        self.progress = progress
        saved.write(self._path, self._contents | {"progress": progress._asdict()})
        now = monotonic()
        self._next = now + max(PERIOD, _SHARE * (now - begun))


class Found(NamedTuple):
    """What a journal says."""

    chunk: int
    progress: Progress


def load(part: Path, rank: int, terms: dict[str, Any]) -> Found | None:
    """Return what the journal of a rank says; None if there is none.

    Raises ValueError if it was written for another job.
    """
    path = path_of(part, rank)
    found = saved.read(path, _remedy(part))
    if found is None:
        return None
    saved.check(path, found, terms, _remedy(part))
    with saved.decoding(path, _remedy(part)):
        if found["journal"] != path.name:
            raise ValueError(f"it is {found['journal']}")
        return Found(int(found["chunk"]), Progress(**found["progress"]))


def check_all(part: Path, terms: dict[str, Any]) -> None:
    """Check the journals of all ranks, also of those that this job does not have."""
    for path in output.journals(part):
        if path.suffix != ".new" and (found := saved.read(path, _remedy(part))) is not None:
            saved.check(path, found, terms, _remedy(part))


def _remedy(part: Path) -> str:
    return f"without --resume, or after 'rm {part}*', it begins anew"


def path_of(part: Path, rank: int) -> Path:
    """Return the path of the journal of a rank."""
    return part.with_name(f"{part.name}.{rank}")
