"""Ranks that torchrun has started: ``comm=`` takes process groups, with an MPI library or without.

``test_torch.py`` runs on them, too: launch/test_frameworks.sh.
"""

import pytest

from support.processes import NO_MPI, torchrun

pytest.importorskip("torch", reason="no PyTorch")

pytestmark = [pytest.mark.one_rank, pytest.mark.timeout(120)]

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

backwards = [*range(size)][::-1]
for part in (
    distributed.new_group([0, 1]),
    distributed.new_group(backwards),
    distributed.new_group(backwards, sort_ranks=False),
):
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


DTENSORS = """
import torch
from torch import distributed
from torch.distributed.tensor import DeviceMesh, Partial, Replicate, Shard, distribute_tensor
import distscan.torch as scans

distributed.init_process_group("gloo")
size = distributed.get_world_size()
torch.manual_seed(7)

def compare(mesh, placements, dim):
    whole = torch.rand(5, 7, 3, dtype=torch.float64, requires_grad=True)
    weights = torch.rand(5, 7, 3, dtype=torch.float64)
    x, w = (distribute_tensor(t.detach(), mesh, placements) for t in (whole, weights))
    x.requires_grad_()
    for ours, theirs in [
        (scans.cumsum, torch.cumsum),
        (scans.cumprod, torch.cumprod),
        (scans.logcumsumexp, torch.logcumsumexp),
        (lambda x, dim: scans.cummax(x, dim, return_indices=True)[0],
         lambda x, dim: x.cummax(dim)[0]),
    ]:
        y, want = ours(x, dim), theirs(whole, dim)
        assert y.placements == x.placements and y.shape == x.shape
        torch.testing.assert_close(y.full_tensor(), want)
        (got,) = torch.autograd.grad((y * w).sum(), x)
        (gradient,) = torch.autograd.grad((want * weights).sum(), whole)
        torch.testing.assert_close(got.full_tensor(), gradient)
    h = scans.linear_recurrence(x, w, dim)
    steps = []
    for a, b in zip(whole.unbind(dim), weights.unbind(dim)):
        steps.append(b if not steps else a * steps[-1] + b)
    torch.testing.assert_close(h.full_tensor(), torch.stack(steps, dim))

line = DeviceMesh("cpu", range(size))
for dim in range(3):
    for placement in (Shard(0), Shard(1), Shard(2), Replicate()):
        compare(line, [placement], dim)
if size == 4:
    plane = DeviceMesh("cpu", [[0, 1], [2, 3]])
    for placements in ([Shard(0), Shard(1)], [Shard(1), Replicate()], [Replicate(), Shard(1)]):
        compare(plane, placements, 1)

x = distribute_tensor(torch.ones(6, 2), line, [Shard(0)])
backwards = DeviceMesh("cpu", [*range(size)][::-1])
for fault, call in [
    (TypeError, lambda: scans.cumsum(x, 0, comm=distributed.group.WORLD)),
    (TypeError, lambda: scans.cumsum(x, 0, return_total=True)),
    (TypeError, lambda: scans.linear_recurrence(x, torch.ones(6, 2))),
    (IndexError, lambda: scans.cumsum(x, 2)),
    (ValueError, lambda: scans.cumsum(distribute_tensor(torch.ones(6), backwards, [Shard(0)]), 0)),
    (ValueError, lambda: scans.cumsum(type(x).from_local(torch.ones(2, 2), line, [Partial()]), 0)),
]:
    try:
        call()
        raise AssertionError(f"no {fault}")
    except fault:
        pass
distributed.barrier()
print("all right", flush=True)
"""


@pytest.mark.parametrize("mpi", [True, False], ids=["mpi", "no-mpi"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_scans(ranks, mpi, tmp_path):
    torchrun(ranks, ("from mpi4py import MPI\n" if mpi else NO_MPI) + PROGRAM, tmp_path)


def test_groups_and_absent_ranks(tmp_path):
    """Ranks of a part make groups that others do not make; a rank leaves out a backward pass."""
    program = """
import os
import torch
from torch import distributed
import distscan
import distscan.torch as scans

distributed.init_process_group("gloo")
rank = distributed.get_rank()
x = torch.ones(3, requires_grad=True)
part = distributed.new_group([0, 1])
for group, size in ((part, 2), (None, 3)):
    if rank < size:
        (gradient,) = torch.autograd.grad(scans.cumsum(x, 0, comm=group).sum(), x)
        assert gradient[0] == 3 * (size - rank)
os.environ["DISTSCAN_WAIT"] = "1"
y = scans.cumsum(x, 0)
for _ in range(2):  # gloo's connections end with the first absence
    if rank != 2:
        try:
            torch.autograd.grad(y.sum(), x, retain_graph=True)
            raise AssertionError("no fault")
        except distscan.RankError as error:
            assert "did not come to a backward pass" in str(error)
distributed.barrier()
print("all right", flush=True)
"""
    torchrun(3, program, tmp_path)


def test_mpi_is_not_started(tmp_path):
    """An MPI library may end a process that its own launcher has not started."""
    program = """
import sys
import numpy as np
import torch
import distscan

torch.distributed.init_process_group("gloo")
assert distscan.scan(np.ones(3))[-1] in (3, 6)
assert "mpi4py.MPI" not in sys.modules
from mpi4py import MPI
try:
    distscan.scan(np.ones(3), comm=MPI.COMM_SELF)
except TypeError as error:
    assert "import mpi4py.MPI first" in str(error)
    print("all right")
"""
    torchrun(2, program, tmp_path)


@pytest.mark.parametrize("ranks", [2, 4])
def test_dtensors(ranks, tmp_path):
    """As PyTorch's functions of the whole tensor, on meshes of one and two dimensions."""
    torchrun(ranks, DTENSORS, tmp_path)
