"""A sequence model is trained whose sequence lies over all ranks, so no rank holds all of it.

Two kinds of layers carry a state along the sequence: a selective state space, as in Mamba (Gu and
Dao 2023), and gated linear attention (Yang et al. 2023). Both are linear recurrences. So
``distscan.torch.linear_recurrence`` runs them over all ranks, forward and backward, and the ranks
exchange one state, whatever the length of the sequence. All other layers see one token at a time,
and need no exchange. The gradients of the parameters, which every rank has, are added up.

The model learns to remember: some tokens carry a mark, and the target is the value of the last
token with one. Then each rank trains the same model on the whole sequence by itself. The losses are
the same, up to rounding.

    mpirun -n 2 python examples/long_sequence.py --picture long_sequence.png
"""

import argparse

import torch
from mpi4py import MPI
from torch import nn
from torch.nn.functional import rms_norm, silu, softplus

import distscan.torch

parser = argparse.ArgumentParser(description="Train a model whose sequence lies over ranks.")
parser.add_argument("--picture", help="the file of the picture, such as long_sequence.png")
arguments = parser.parse_args()
comm = MPI.COMM_WORLD
torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)
LENGTH, WIDTH, STATES, STEPS = 500, 8, 4, 200


class SelectiveScan(nn.Module):
    """A selective state space: h[t] = exp(-dt[t] A) h[t-1] + dt[t] B[t] x[t], y[t] = C[t] h[t]."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(WIDTH, 3 * WIDTH + 2 * STATES)
        self.rates = nn.Parameter(torch.arange(1.0, STATES + 1).log().repeat(WIDTH, 1))
        self.leave = nn.Linear(WIDTH, WIDTH)

    def forward(self, tokens: torch.Tensor, comm: MPI.Comm) -> torch.Tensor:
        """Map tokens [n, WIDTH] of this rank to as many."""
        x, gate, dt, b, c = self.enter(tokens).split(3 * [WIDTH] + 2 * [STATES], dim=1)
        dt = softplus(dt).unsqueeze(2)  # [n, WIDTH, 1]
        decay = torch.exp(-dt * self.rates.exp())  # [n, WIDTH, STATES]
        states = distscan.torch.linear_recurrence(
            decay, dt * b.unsqueeze(1) * x.unsqueeze(2), comm=comm
        )
        y = (states * c.unsqueeze(1)).sum(2)
        return self.leave(y * silu(gate))


class GatedLinearAttention(nn.Module):
    """Attention without softmax: S[t] = g[t] S[t-1] + k[t] v[t]^T, y[t] = q[t] S[t]."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(WIDTH, 3 * STATES + WIDTH)
        self.leave = nn.Linear(WIDTH, WIDTH)

    def forward(self, tokens: torch.Tensor, comm: MPI.Comm) -> torch.Tensor:
        """Map tokens [n, WIDTH] of this rank to as many."""
        q, k, g, v = self.enter(tokens).split(3 * [STATES] + [WIDTH], dim=1)
        update = k.unsqueeze(2) * v.unsqueeze(1)  # [n, STATES, WIDTH]
        decay = torch.sigmoid(g + 2).unsqueeze(2).expand_as(update)
        states = distscan.torch.linear_recurrence(decay, update, comm=comm)
        return self.leave((q.unsqueeze(2) * states).sum(1))


class Model(nn.Module):
    """Two layers with a state, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(2, WIDTH), nn.Linear(WIDTH, 1)
        self.layers = nn.ModuleList([SelectiveScan(), GatedLinearAttention()])

    def forward(self, x: torch.Tensor, comm: MPI.Comm) -> torch.Tensor:
        """Map x [n, 2] of this rank to predictions [n]."""
        tokens = self.enter(x)
        for layer in self.layers:
            tokens = tokens + layer(rms_norm(tokens, (WIDTH,)), comm)
        return self.leave(tokens).squeeze(1)


def train(comm: MPI.Comm) -> tuple[list[float], torch.Tensor, torch.Tensor]:
    """Train on the ranks of ``comm``; return the losses, and this rank's results and targets."""
    torch.manual_seed(1)  # every rank has the same parameters, and draws the same sequence
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    marks = torch.rand(LENGTH) < 0.05
    marks[0] = True
    x = torch.stack([torch.randn(LENGTH), marks.to(torch.float64)], 1)
    latest = torch.where(marks, torch.arange(LENGTH), 0).cummax(0).values
    target = x[latest, 0]
    mine = torch.tensor_split(torch.arange(LENGTH), comm.size)[comm.rank]
    x, target = x[mine], target[mine]

    losses = []
    for _ in range(STEPS):
        y = model(x, comm)
        loss = (y - target).square().sum() / LENGTH  # the loss of all ranks is the sum
        optimizer.zero_grad()
        loss.backward()  # on every rank
        for parameter in model.parameters():
            comm.Allreduce(MPI.IN_PLACE, parameter.grad.numpy())
        optimizer.step()
        losses.append(comm.allreduce(loss.item()))
    return losses, y.detach(), target


losses, y, target = train(comm)
alone, *_ = train(MPI.COMM_SELF)
torch.testing.assert_close(losses, alone, rtol=1e-6, atol=0)
assert losses[-1] < losses[0] / 3

predictions = [part for parts in comm.allgather(y.tolist()) for part in parts]
targets = [part for parts in comm.allgather(target.tolist()) for part in parts]
if comm.rank == 0:
    parts = " + ".join(
        str(len(part)) for part in torch.tensor_split(torch.arange(LENGTH), comm.size)
    )
    print(f"long_sequence: {LENGTH} tokens, {parts} on the ranks; {STEPS} steps")
    print(f"long_sequence: the loss fell from {losses[0]:.3f} to {losses[-1]:.3f}, as on one rank")

if comm.rank == 0 and arguments.picture:
    from matplotlib.figure import Figure

    figure = Figure((8, 6), layout="constrained")
    curve, sequence = figure.subplots(2, 1)
    curve.semilogy(alone, color="0.7", linewidth=5, label="the whole sequence on one rank")
    curve.semilogy(losses, label=f"the sequence over {comm.size} ranks")
    curve.set(xlabel="step", ylabel="loss")
    curve.legend()
    sequence.step(range(LENGTH), targets, color="0.7", linewidth=3, label="target")
    sequence.plot(predictions, label="prediction after the last step")
    sequence.set(xlabel="token")
    sequence.legend()
    figure.savefig(arguments.picture)
