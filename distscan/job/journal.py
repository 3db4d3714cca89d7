"""``--resume``: how far a rank has come, in a file beside the part file, for a job that is killed.

A record is written every second. It counts the chunks that are complete, and has the running value
behind them. The chunks are on the disk before the record is.
"""

from itertools import zip_longest
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import output, saved
from .carry import Carry
from .naming import option

PERIOD = 1.0  # seconds between two records, at least
_SHARE = 20  # records take at most one part of so many of the time


#: Digests of chunks in order, of the elements and of the flags or keys; () if none are computed.
Digests = tuple[str, ...]


def digest_of(elements: NDArray[Any]) -> str:
    """Return the digest of all bytes of a chunk; other threads run meanwhile.

    XXH3 of 128 bits: 30 GB/s for a chunk in the caches (one core of an EPYC), SHA-256 has 1.4.
    """
    from xxhash import xxh3_128_hexdigest  # noqa: PLC0415 - jobs with --resume alone need it

    return xxh3_128_hexdigest(elements.view(np.uint8))  # type: ignore[arg-type]


def extend(digests: Digests, chunk: Digests) -> Digests:
    """Return the digests of some chunks and the next one; () if that has none."""
    if not chunk:
        return ()
    from xxhash import xxh3_128_hexdigest  # noqa: PLC0415

    pairs = zip_longest(digests, chunk, fillvalue="")
    return tuple(xxh3_128_hexdigest("".join(pair).encode()) for pair in pairs)


class Progress(NamedTuple):
    """How far a rank has come in a block of columns."""

    block: int = 0
    reduced: int = 0  # chunks
    total: dict[str, Any] | None = None  # the carry behind these
    reduced_input: Digests = ()  # of all chunks that were reduced, in all blocks
    scanned: int = 0  # chunks that are written, too
    carry: dict[str, Any] | None = None  # the carry behind these
    scanned_input: Digests = ()  # of all chunks that were scanned, in all blocks

    def next_block(self) -> "Progress":
        """Return the progress at the beginning of the next block."""
        inputs: Any = {"reduced_input": self.reduced_input, "scanned_input": self.scanned_input}
        return Progress(self.block + 1, **inputs)


class Journal:
    """The journal of one rank."""

    def __init__(self, part: Path, rank: int, terms: dict[str, Any], chunk: int) -> None:
        """``terms`` are what must be the same when the job is resumed; ``chunk`` is kept."""
        self.path, self.remedy = path_of(part, rank), _remedy(part)
        self._contents = {"terms": terms, "journal": self.path.name, "chunk": chunk}
        self._next = monotonic() + PERIOD
        self.progress = Progress()
        self._operator = ""

    def go_on(self, found: "Found") -> None:
        """Begin where a killed job has stopped."""
        self.progress, self._operator = found.progress, found.operator

    @property
    def due(self) -> bool:
        """Whether it is time for a record."""
        return monotonic() >= self._next

    def note_operator(self, text: str) -> None:
        """Record what decides the running value, and is known when the input has been read.

        Raises ValueError if it was another one.
        """
        if self._operator not in {"", text}:
            raise ValueError(
                f"{self.path}: the journal is of a job with other kernels, or of another input: "
                f"sums were {self._operator}, and are {text}; {self.remedy}"
            )
        self._operator = text

    def restore(self, value: dict[str, Any], carry: Carry) -> None:
        """Give ``carry`` a running value of the journal."""
        with saved.decoding(self.path, self.remedy):
            saved.to_carry(value, carry)

    def record(self, progress: Progress) -> None:
        """Write a record; what it counts must be on the disk."""
        begun = monotonic()
        self.progress = progress
        more = {"operator": self._operator, "progress": progress._asdict()}
        saved.write(self.path, self._contents | more)
        now = monotonic()
        self._next = now + max(PERIOD, _SHARE * (now - begun))


class Found(NamedTuple):
    """What a journal says."""

    chunk: int
    operator: str
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
        progress = Progress(**found["progress"])
        progress = progress._replace(
            reduced_input=tuple(progress.reduced_input), scanned_input=tuple(progress.scanned_input)
        )
        return Found(int(found["chunk"]), str(found["operator"]), progress)


def check_all(part: Path, terms: dict[str, Any]) -> None:
    """Check the journals of all ranks, also of those that this job does not have."""
    for path in output.journals(part):
        if path.suffix != ".new" and (found := saved.read(path, _remedy(part))) is not None:
            saved.check(path, found, terms, _remedy(part))


def _remedy(part: Path) -> str:
    return f"without {option('resume')}, or after 'rm {part}*', it begins anew"


def path_of(part: Path, rank: int) -> Path:
    """Return the path of the journal of a rank."""
    return part.with_name(f"{part.name}.{rank}")
