"""distscan.torch on GPUs: the results and the gradients of the same calls on CPUs."""

from itertools import product

import pytest
from mpi4py import MPI

from distscan import DisagreementError
from distscan.mpi import communicators

torch = pytest.importorskip("torch", reason="no PyTorch")
pytest.importorskip("distscan.cuda.steps", reason="no CuPy", exc_type=ImportError)
import distscan.torch as scans  # noqa: E402
from distscan.engine import peers  # noqa: E402
from support.processes import torchrun  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]

CALLS = {
    "cumsum": lambda a, b, dim, **o: scans.cumsum(a, dim, **o),
    "exclusive": lambda a, b, dim, **o: scans.cumsum(a, dim, exclusive=True, **o),
    "total": lambda a, b, dim, **o: scans.cumsum(a, dim, return_total=True, **o)[1],
    "cumprod": lambda a, b, dim, **o: scans.cumprod(a, dim, **o),
    "logcumsumexp": lambda a, b, dim, **o: scans.logcumsumexp(a, dim, **o),
    "cummax": lambda a, b, dim, **o: scans.cummax(a, dim, **o),
    "recurrence": scans.linear_recurrence,
    "matrices": lambda a, b, dim, **o: scans.linear_recurrence(
        torch.stack([a / 2, b / 3, b / 4, a / 5], -1).unflatten(-1, (2, 2)),
        torch.stack([a, b], -1),
        dim,
        **o,
    ),
    "last": lambda a, b, dim, **o: scans.linear_recurrence(a, b, dim, return_last=True, **o)[1],
}


@pytest.fixture
def device(cp):
    """This rank's GPU, which CuPy and PyTorch then share."""
    with torch.cuda.device(cp.cuda.Device().id):
        yield torch.device("cuda", cp.cuda.Device().id)


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_results_and_gradients(name, reverse, dim, device, comm):
    generator = torch.Generator().manual_seed(comm.rank)
    shape = [6, 6, 6]
    shape[dim] = 0 if comm.rank == 1 and comm.size > 2 else 301 + comm.rank
    inputs = [torch.rand(shape, generator=generator, dtype=torch.float64) for _ in range(3)]
    passes = []
    for where in ("cpu", device):
        a, b, weights = (x.to(where) for x in inputs)
        a.requires_grad_(), b.requires_grad_()
        y = CALLS[name](a, b, dim, reverse=reverse)
        weights = weights if y.shape == weights.shape else torch.ones_like(y)
        gradients = torch.autograd.grad((y * weights).sum(), (a, b), allow_unused=True)
        assert y.device.type == a.device.type
        passes.append([y, *filter(lambda x: x is not None, gradients)])
    torch.cuda.synchronize()
    for want, got in zip(*passes, strict=True):
        torch.testing.assert_close(got.cpu(), want)


LARGE = {  # shape, type, rounding
    "boxes": ((1100, 256), "float32", 1e-5),
    "boxes, narrow strip": ((2100, 80), "float64", 1e-12),
    "vectors": ((1500, 63), "float32", 1e-5),
    "half": ((1100, 256), "bfloat16", 1e-2),
    "complex": ((900, 64), "complex64", 1e-5),
    "a thread per column": ((70, 400_000), "float32", 1e-5),
}


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("first", [False, True], ids=["", "initial"])
@pytest.mark.parametrize(("shape", "dtype", "rounding"), LARGE.values(), ids=LARGE)
def test_gradients_of_recurrences(shape, dtype, rounding, first, reverse, device, comm):
    """Every kernel, against the same on CPUs in a wide type; factors decay."""
    generator, dtype = torch.Generator().manual_seed(comm.rank), getattr(torch, dtype)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    shape = (shape[0] + comm.rank, shape[1])
    a, b, weights = (torch.randn(shape, generator=generator, dtype=wide) for _ in range(3))
    state = torch.linspace(-1, 1, shape[1], dtype=wide) if first else None
    a, passes = a / (1 + a.abs()), []
    for where, kind in ((device, dtype), ("cpu", wide)):
        inputs = [x.to(dtype).to(where, kind) for x in (a, b, weights)]
        inputs += [state.to(dtype).to(where, kind)] if first else []
        needs = [x.requires_grad_() for i, x in enumerate(inputs) if i != 2]
        initial = inputs[3] if first else None
        h = scans.linear_recurrence(*inputs[:2], 0, reverse=reverse, initial=initial)
        h.backward(inputs[2])
        passes.append([x.grad for x in needs])
    torch.cuda.synchronize()
    for got, want in zip(*passes, strict=True):
        assert got.dtype == dtype
        torch.testing.assert_close(got.cpu().to(wide), want, rtol=rounding, atol=10 * rounding)


@pytest.mark.parametrize("strategy", ["fused", "nccl"])
def test_gpus_exchange_totals(strategy, device, comm, monkeypatch):
    """Ranks in another order, other streams and shapes in turns, and faults, leave no trace."""
    if strategy == "nccl":  # each rank on a node of its own, as it seems
        monkeypatch.setattr(
            communicators, "node", lambda comm: communicators.Node(0, comm.size, 1, first=True)
        )
    comm, n = comm.Dup(), 50  # what the ranks' GPUs can do is found out for each communicator
    backwards = comm.Split(0, -comm.rank)
    generator, side = torch.Generator().manual_seed(1), torch.cuda.Stream()
    every = [torch.randn(comm.size * n, m, generator=generator).double() for m in (1, 7, 64)]
    for turn, ranks in product(range(3), (comm, backwards)):
        for x in every:
            whole = _results(x, MPI.COMM_SELF)
            with torch.cuda.stream(side if (turn + comm.rank) % 2 else None):
                got = _results(x[ranks.rank * n :][:n].to(device), ranks)
                for mine, want in zip(got, whole, strict=True):
                    torch.testing.assert_close(mine.cpu(), want[ranks.rank * n :][:n])
        if comm.size > 1:
            with pytest.raises(DisagreementError, match="the shape beyond dim"):
                scans.cumsum(torch.ones(n, 2 + comm.rank, device=device), 0, comm=ranks)
            if comm.size <= torch.cuda.device_count():
                assert peers.access(ranks, device.index, known=True).strategy == strategy


def _results(x, comm):
    """Sums and states along axis 0, and the gradients of the states' sum of squares."""
    a, b = (x / 8).requires_grad_(), x.clone().requires_grad_()
    h = scans.linear_recurrence(a, b, 0, comm=comm)
    return scans.cumsum(x, 0, comm=comm), h.detach(), *torch.autograd.grad(h.square().sum(), (a, b))


NCCL = """
import os
import torch
from torch import distributed
import distscan
import distscan.torch as scans

rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
distributed.init_process_group("nccl", device_id=torch.device("cuda", rank))
size, n = distributed.get_world_size(), 1000
x = torch.ones(n, 3, device="cuda", requires_grad=True)
want = torch.arange(1, n + 1, device="cuda") + n * rank
def results(x, comm):
    a, b = (x / 8).requires_grad_(), x.clone().requires_grad_()
    h = scans.linear_recurrence(a, b, 0, comm=comm)
    return h.detach(), *torch.autograd.grad(h.square().sum(), (a, b))

alone = distributed.new_group([rank], use_local_synchronization=True)
whole = torch.randn(size * n, 5, generator=torch.Generator().manual_seed(1)).double().to("cuda")
for got, every in zip(results(whole[rank * n:][:n], None), results(whole, alone), strict=True):
    torch.testing.assert_close(got, every[rank * n:][:n])
for comm in (None, distributed.group.WORLD):
    y = scans.cumsum(x, 0, comm=comm)
    assert torch.equal(y[:, 1], want.float())
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(gradient[:, 2], torch.arange(n * (size - rank), n * (size - rank - 1), -1,
                                                    device="cuda").float())
    assert torch.equal(distscan.scan(x.detach()[:, 0].contiguous(), comm=comm), want.float())
    for strategy in ("auto", "fused", "nccl"):  # calls of "auto" agree on faults: by the hosts
        import cupy
        with distscan.Plan(comm, n, "f", strategy=strategy, backend="cuda") as plan:
            assert plan.strategy == {"auto": "reduce-scan"}.get(strategy, strategy), plan.reason
            for _ in range(3):
                assert (plan(cupy.ones(n, "f")) == cupy.asarray(want)).all()
distributed.destroy_process_group()
print("all right", flush=True)
"""


@pytest.mark.alone
@pytest.mark.one_rank
def test_a_process_group_of_nccl(tmp_path):
    """torchrun starts the ranks, of which each has a GPU; there is no mpirun."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    torchrun(2, NCCL, tmp_path)
