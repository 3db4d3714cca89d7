"""``fsum``: one digest, whatever the ranks, cuts, strategy, threads, device and direction."""

import hashlib

import numpy as np
import pytest
from mpi4py import MPI

import distscan
from support.arrays import host
from support.cases import WHOLE
from support.exact import finite_bits, grid, mixed, normal

N = 3000
# Among many ranks a part of them: 8 ranks on two cores take a second for ten.
CUTS = 100 if MPI.COMM_WORLD.size < 4 or WHOLE else 160 // MPI.COMM_WORLD.size


def digest(parts):
    return hashlib.sha256(np.concatenate(parts).tobytes()).hexdigest()


def cut(rng, ranks):
    """Where shards begin and end: anywhere, or in few places, so that many are empty."""
    places = rng.choice([0, N, *rng.integers(0, N + 1, 2)], ranks - 1)
    inner = places if rng.random() < 0.3 else rng.integers(0, N + 1, ranks - 1)
    return [0, *np.sort(inner).tolist(), N]


@pytest.fixture
def groups(comm):
    """For each number of ranks: a communicator of so many, or of the others."""
    made = {first: comm.Split(int(comm.rank >= first)) for first in range(1, comm.size + 1)}
    yield made
    for group in made.values():
        group.Free()


@pytest.mark.parametrize("name", ["float32", "float64"])
@pytest.mark.parametrize("data", [grid, normal, finite_bits, mixed])
def test_one_digest(data, name, xp, comm, groups, rng):
    """Cuts over 1 to all ranks; the ranks that are left over scan the same by another cut."""
    x = data(rng, name, N)
    want = digest([distscan.scan(x, "fsum", comm=MPI.COMM_SELF)])
    for i in range(CUTS):
        first = comm.size - i % comm.size
        cuts = [cut(rng, ranks) for ranks in (first, max(comm.size - first, 1))]
        reverse, threads, alone = map(int, rng.integers(2, size=3))
        group, ends = groups[first], cuts[comm.rank >= first]
        mine = slice(*ends[group.rank : group.rank + 2])
        shard = xp.asarray((x[::-1] if reverse else x)[mine])
        strategy = "single-pass" if alone and group.size == 1 else "reduce-scan"
        given = {"comm": group, "reverse": bool(reverse), "threads": 1 + threads}
        parts = group.allgather(host(distscan.scan(shard, "fsum", strategy=strategy, **given)))
        found = digest([part[::-1] for part in reversed(parts)] if reverse else parts)
        assert found == want, (cuts, strategy, given)
