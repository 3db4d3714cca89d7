"""Ranks that torchrun has started: ``comm=`` takes process groups, with an MPI library or without.

``test_torch.py`` runs on them, too: launch/test_torch.sh.
"""

import subprocess
import sys

import pytest

from support.processes import environment

pytest.importorskip("torch", reason="no PyTorch")

pytestmark = [pytest.mark.one_rank, pytest.mark.timeout(120)]

NO_MPI = """
import sys

class NoMpi:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "mpi4py":
            raise ImportError("there is none")

sys.meta_path.insert(0, NoMpi())
"""

PROGRAM = """
import os
import numpy as np
import torch
from torch import distributed
import distscan
from distscan import DisagreementError, LaunchError, Operator

try:
    distscan.scan([1.0])
    raise AssertionError("one shard in silence")
except LaunchError as error:
    assert "init_process_group" in str(error)

distributed.init_process_group("gloo")
world = distributed.group.WORLD
rank, size = distributed.get_rank(), distributed.get_world_size()

def check(got, whole):
    want = np.split(np.asarray(whole), size)[rank]
    np.testing.assert_array_equal(np.asarray(got), want)

rng = np.random.default_rng(7)
shards = rng.integers(0, 9, (size, 4, 3))
mine, whole = shards[rank], shards.reshape(-1, 3)
first = Operator("first", numpy=lambda a, b: np.where(a != 0, a, b), identity=0)
for comm in (None, world):
    check(distscan.scan(mine, comm=comm), np.cumsum(whole))
    check(distscan.scan(mine, axis=0, comm=comm), np.cumsum(whole, 0))
    check(distscan.scan(mine, "max", reverse=True, comm=comm),
          np.maximum.accumulate(whole.ravel()[::-1])[::-1])
    flat = whole.ravel()
    check(distscan.scan(mine, "bitwise_xor", comm=comm), np.bitwise_xor.accumulate(flat))
    check(distscan.scan(mine / 8, "fsum", comm=comm), np.cumsum(whole / 8))
    check(distscan.scan(torch.tensor(mine), comm=comm), np.cumsum(whole))
    seen = [next((v for v in flat[: i + 1] if v), 0) for i in range(len(flat))]
    check(distscan.scan(mine, first, comm=comm), seen)
    keys = np.arange(len(flat)) // 5
    want = np.concatenate([np.cumsum(flat[keys == k]) for k in range(keys[-1] + 1)])
    check(distscan.scan(mine, segments=np.split(keys, size)[rank], comm=comm), want)
    kept, _ = distscan.compact(mine.ravel(), mine.ravel() > 4, comm=comm)
    np.testing.assert_array_equal(kept, mine[mine > 4])
    with distscan.Plan(comm, 12, "l", backend="cpu") as plan:
        for _ in range(3):
            check(plan(mine.ravel()), np.cumsum(whole))
            plan.start(mine.ravel())
            check(plan.wait(), np.cumsum(whole))
        assert plan.comm.rank == rank
    try:
        distscan.scan(mine, "max" if rank else "sum", comm=comm)
        raise AssertionError("no disagreement")
    except DisagreementError as error:
        assert "rank 0: sum" in str(error)
    try:
        distscan.scan_file("x.npy", "y.npy", comm=comm)
        raise AssertionError("a file job")
    except TypeError as error:
        assert "under mpirun" in str(error)
    try:
        distscan.scan(mine, axis=0 if rank else 5, comm=comm)
        raise AssertionError("no fault")
    except np.exceptions.AxisError as error:
        assert "rank 0" in str(error)

for part in (distributed.new_group([0, 1]), distributed.new_group([*range(size)][::-1])):
    if part is not distributed.GroupMember.NON_GROUP_MEMBER:
        want = 2 * distributed.get_rank(part) + np.arange(1, 3)
        np.testing.assert_array_equal(distscan.scan(np.ones(2), comm=part), want)
distributed.barrier()
distributed.destroy_process_group()
try:
    distscan.scan([1.0])
    raise AssertionError("one shard in silence")
except LaunchError:
    print("all right", flush=True)
"""


@pytest.mark.parametrize("mpi", [True, False], ids=["mpi", "no-mpi"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_scans(ranks, mpi, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM if mpi else NO_MPI + PROGRAM)
    run = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), program],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env=environment(OMP_NUM_THREADS="1"),
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("all right") == ranks
