"""The seed of a run, the same on every rank, and the part of the cases that a run takes."""

import os
import random
import secrets
from collections.abc import Iterable
from typing import Any

from mpi4py import MPI

#: Whether all cases run, or a part of those that take long.
WHOLE = os.environ.get("DISTSCAN_WHOLE") == "1"

_random = WHOLE or "CI" not in os.environ  # in CI, each run has the same data
SEED = int(os.environ.get("DISTSCAN_SEED") or (secrets.randbelow(10**9) if _random else 0))
SEED = MPI.COMM_WORLD.bcast(SEED)
os.environ["DISTSCAN_SEED"] = str(SEED)  # of pytest-xdist's workers, too


def drawn(cases: Iterable[Any], share: int = 8) -> list[Any]:
    """One of ``share`` cases, the same in each run; with ``DISTSCAN_WHOLE=1`` all."""
    cases = list(cases)
    return cases if WHOLE else random.Random(0).sample(cases, -(-len(cases) // share))
