"""The handshake of a node's hosts: who waits for whom, and who learns of a fault."""

import time
from pathlib import Path

import pytest

from distscan import RankError
from distscan.mpi import handshake as module
from distscan.mpi.handshake import Handshake

pytestmark = pytest.mark.timeout(60)

CALLS = 60


@pytest.mark.parametrize("reverse", [False, True])
def test_who_waits_for_whom(reverse, comm, rng):
    """In each call, for earlier ranks to come, and for later ones to come to the call before."""
    hands = Handshake(comm, reverse=reverse)
    came, went = [0.0], [0.0]
    for _ in range(CALLS):
        if rng.random() < 0.2 * (comm.rank + 1) / comm.size:
            time.sleep(rng.random() / 100)
        came.append(time.monotonic())
        hands(comm, "a call without a fault")
        went.append(time.monotonic())
    ranks = comm.allgather(came)
    for other, times in enumerate(ranks):
        earlier = other > comm.rank if reverse else other < comm.rank
        for call in range(1, CALLS + 1):
            if other != comm.rank:
                assert times[call if earlier else call - 1] <= went[call]


def test_no_rank_waits_for_later_ones_in_the_same_call(comm):
    hands = Handshake(comm, reverse=False)
    last = comm.size - 1
    comm.Barrier()
    if comm.rank == last > 0:
        time.sleep(0.5)
    begin = time.monotonic()
    hands(comm, "a call without a fault")
    if comm.rank < last:
        assert time.monotonic() - begin < 0.4
    hands(comm, "a call without a fault")


@pytest.mark.parametrize("reverse", [False, True])
def test_faults_reach_the_later_ranks(reverse, comm, rng):
    """In the same call, and no other one."""
    hands = Handshake(comm, reverse=reverse)
    for _ in range(CALLS):
        faulty = comm.bcast([bool(flag) for flag in rng.random(comm.size) < 0.2])
        ranks = range(comm.size)
        earlier = ranks[comm.rank + 1 :] if reverse else ranks[: comm.rank]
        if any(faulty[rank] for rank in earlier):
            with pytest.raises(RankError, match="an earlier rank failed"):
                hands(comm, None if faulty[comm.rank] else "a call without a fault")
        else:
            hands(comm, None if faulty[comm.rank] else "a call without a fault")


def test_the_two_halves(comm):
    hands = Handshake(comm, reverse=False)
    for _ in range(CALLS):
        hands.start(comm, "a call without a fault")
        hands.wait(comm)


def test_nothing_is_left_behind(comm, tmp_path, monkeypatch):
    folder = Path(comm.bcast(str(tmp_path)))
    monkeypatch.setattr(module, "_FOLDER", folder)
    hands = Handshake(comm, reverse=False)
    comm.Barrier()
    assert not list(folder.iterdir())
    hands(comm, "a call without a fault")
    comm.Barrier()  # then the folder may go


def test_a_folder_that_is_not_shared(comm, monkeypatch):
    """Every rank raises: so a plan takes another strategy."""
    if comm.rank == comm.size - 1:
        monkeypatch.setattr(module, "_map", lambda path, _: Path(path + "-elsewhere").stat())
    with pytest.raises(OSError, match="elsewhere"):
        Handshake(comm, reverse=False)
