"""The seed of a run, the same on every rank, and what is drawn by it."""

import os
import random
import secrets
from collections.abc import Iterable
from typing import Any

from mpi4py import MPI

SEED = MPI.COMM_WORLD.bcast(int(os.environ.get("DISTSCAN_SEED") or secrets.randbelow(10**9)))
os.environ["DISTSCAN_SEED"] = str(SEED)  # of pytest-xdist's workers, too

#: Whether all cases run, or a part of those that take long.
WHOLE = os.environ.get("DISTSCAN_WHOLE") == "1"


def drawn(cases: Iterable[Any], share: int = 8) -> list[Any]:
    """One of ``share`` cases, drawn by the run's seed; with ``DISTSCAN_WHOLE=1`` all."""
    cases = list(cases)
    return cases if WHOLE else random.Random(SEED).sample(cases, -(-len(cases) // share))


def drawn_among_many(cases: Iterable[Any]) -> list[Any]:
    """All of the cases among up to three ranks, an eighth among more, which share few cores."""
    return list(cases) if MPI.COMM_WORLD.size < 4 else drawn(cases)
