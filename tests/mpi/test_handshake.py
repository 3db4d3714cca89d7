"""The handshake of a node's hosts: who waits for whom, and who learns of a fault."""

import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from distscan import RankError
from distscan.core.form import Extents
from distscan.engine.plan_calls import Calls, Expected
from distscan.engine.shard_scan import make
from distscan.mpi import handshake as module
from distscan.mpi.handshake import Handshake
from distscan.options import RunOptions, ScanOptions

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


class Steps:
    """Those of a GPU that exchanges totals itself: each call needs one exchange, in order."""

    def __init__(self):
        self.exchanges = []

    def begin(self, x, out, segments=None, *, overlap=False):
        return SimpleNamespace(is_queued=False)

    def queue(self, call):
        call.is_queued = True
        self.exchanges.append("a total")

    def finish(self, call, offset):
        if not call.is_queued:
            self.queue(call)

    def begin_again(self):
        return len(self.exchanges) if len(self.exchanges) % 2 else None

    def finish_again(self, number):
        assert number == len(self.exchanges)
        self.exchanges.append("a total")

    def call_off(self):
        self.exchanges.append("none")


def test_plans_behind_it(comm, rng):
    """Each call has one exchange on each rank: without a total after a fault of an earlier rank."""
    options, run = ScanOptions.parse(op="sum"), RunOptions.parse()
    part = make(Extents.of((5,), None), np.dtype("l"), None, options, run, ranks=comm.size)
    part.steps, part.exscan, part.across = Steps(), Handshake(comm, reverse=False), True
    expected = Expected(part, (5,), (5,), 5, np.ndarray, None, None)
    calls = Calls(part, comm, expected, has_elements=True, agree=False, number=1)
    x, out, want = np.ones(5, "l"), np.ones(5, "l"), []
    for _ in range(CALLS):
        faulty = comm.bcast([bool(flag) for flag in rng.random(comm.size) < 0.2])
        halves = comm.bcast(rng.random() < 0.4)
        if rng.random() < 0.1:
            time.sleep(rng.random() / 100)
        array = x.astype("f") if faulty[comm.rank] else x
        first = faulty.index(True) if any(faulty) else comm.size
        try:
            if halves:
                calls.wait(calls.start(array, out, None))
            else:
                calls.run(array, out, None)
        except TypeError:
            assert faulty[comm.rank]
        except RankError as error:
            late = "earlier calls of this plan failed" in str(error)
            assert late or first < comm.rank
        else:
            assert first >= comm.rank
            assert not faulty[comm.rank]
        want.append("none" if first < comm.rank or faulty[comm.rank] else "a total")
    assert part.steps.exchanges == want


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
