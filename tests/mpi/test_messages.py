"""The collective calls of MPI that a repeated call makes."""

from collections import Counter
from typing import ClassVar

import pytest
from mpi4py import MPI

import distscan

pytestmark = pytest.mark.fast

COLLECTIVES = {
    name + kind
    for name in (
        *("Allgather", "Allreduce", "Alltoall", "Bcast", "Exscan", "Gather", "Reduce", "Scan"),
        *("Scatter", "Allgatherv", "Alltoallv", "Gatherv", "Scatterv", "Reduce_scatter"),
        *("Barrier", "Dup", "Split", "Split_type"),
    )
    for kind in ("", "_init")
}
COLLECTIVES |= {name.lower() for name in COLLECTIVES} | {"I" + name.lower() for name in COLLECTIVES}


class CountedComm(MPI.Intracomm):
    """A communicator that counts the collective methods that are called."""

    counts: ClassVar[Counter[str]] = Counter()  # of duplicates, too, unless they have their own

    def __getattribute__(self, name):
        if name in COLLECTIVES:
            self.counts[name] += 1
        return super().__getattribute__(name)


@pytest.fixture
def counted(comm):
    duplicate = CountedComm(comm.Dup())
    duplicate.counts = Counter()
    yield duplicate
    duplicate.Free()


@pytest.mark.parametrize(
    ("op", "dtype", "allreduces"),
    [
        ("sum", "d", 2),  # two votes
        ("max", "i", 2),
        ("fsum", "d", 4),  # one vote more, and the window
        ("fsum", "D", 5),  # two votes more, and the windows of both parts
    ],
)
def test_messages_of_a_repeated_scan(op, dtype, allreduces, counted, rng):
    """One total of a rank travels for each part of the elements."""
    x = (1000 * rng.random(60)).astype(dtype)
    distscan.scan(x, op, comm=counted)
    counted.counts.clear()
    distscan.scan(x, op, comm=counted)
    exscans = 2 if dtype == "D" else 1
    expected = {"Allreduce": allreduces, "Exscan": exscans}
    assert counted.counts == (expected if counted.size > 1 else {})


def test_messages_of_a_plan(counted, rng):
    """Faults do not travel with the calls of a plan."""
    x = rng.random(60)
    plan = distscan.Plan(counted, x.shape, x.dtype, backend="cpu")
    plan(x)
    counted.counts.clear()
    plan(x)
    assert counted.counts == ({"Exscan": 1} if counted.size > 1 else {})
    plan.close()
