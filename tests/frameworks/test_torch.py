"""distscan.torch: results and gradients, beside those of PyTorch on the whole tensor.

The ranks are MPI's, or those of a process group where torchrun has started them.
"""

import doctest
import functools
import os
import time
from itertools import pairwise

import numpy as np
import pytest
from mpi4py import MPI

torch = pytest.importorskip("torch", reason="no PyTorch")
import distscan.torch as scans  # noqa: E402
from distscan import DisagreementError, RankError  # noqa: E402
from distscan.engine import array_scan  # noqa: E402
from distscan.mpi.torch_group import torch_comm  # noqa: E402
from distscan.torch import functions  # noqa: E402
from support.processes import everywhere  # noqa: E402

pytestmark = pytest.mark.timeout(120)

if TORCHRUN := "TORCHELASTIC_RUN_ID" in os.environ:
    torch.distributed.init_process_group("gloo")


@pytest.fixture(scope="session")
def comm():
    return torch_comm(torch.distributed.group.WORLD) if TORCHRUN else MPI.COMM_WORLD


# ---- the whole tensor on every rank --------------------------------------------------------------


class Replicated(torch.autograd.Function):
    """The same tensor on every rank, whose gradient is the sum of all ranks'."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, dy):
        return Summed.apply(dy)


class Summed(torch.autograd.Function):
    """The sum of all ranks' tensors, on every rank."""

    @staticmethod
    def forward(ctx, x):
        total = x.contiguous().clone()
        if TORCHRUN:
            torch.distributed.all_reduce(total)
        else:
            MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, total.numpy())
        return total

    @staticmethod
    def backward(ctx, dy):
        return Replicated.apply(dy)


@functools.cache
def bounds(n, size):
    """Uneven parts of n elements, one of them empty where there are three ranks or more."""
    ends = np.sort(np.random.default_rng(n).integers(0, n + 1, size - 1))
    if size > 2:
        ends[1] = ends[0]
    return [0, *sorted(ends.tolist()), n]


def mine(x, dim, comm):
    """This rank's shard."""
    ends = bounds(x.shape[dim], comm.size)
    return x.narrow(dim, ends[comm.rank], ends[comm.rank + 1] - ends[comm.rank])


def whole(function, dim, comm):
    """Return the function of whole tensors that runs ``function`` on the shards."""

    def call(*tensors):
        shards = [mine(Replicated.apply(tensor), dim, comm) for tensor in tensors]
        y = function(*shards)
        n = tensors[-1].shape[dim]
        begin, end = bounds(n, comm.size)[comm.rank :][:2]
        zeros = torch.zeros(tensors[-1].shape, dtype=y.dtype)
        return Summed.apply(zeros.index_add(dim, torch.arange(begin, end), y))

    return call


def exclusively(y, dim, first):
    """Shift results by one along ``dim``."""
    start = torch.full_like(y.narrow(dim, 0, 1), first)
    return torch.cat([start, y.narrow(dim, 0, y.shape[dim] - 1)], dim)


def solved(a, b, dim):
    """Solve a recurrence in a loop."""
    h, states = torch.zeros_like(b.select(dim, 0)), []
    for t in range(b.shape[dim]):
        h = a.select(dim, t) * h + b.select(dim, t)
        states.append(h)
    return torch.stack(states, dim)


FIRST = {"cumsum": 0.0, "cumprod": 1.0, "logcumsumexp": -torch.inf}
PLAIN = {
    "cumsum": torch.cumsum,
    "cumprod": torch.cumprod,
    "logcumsumexp": torch.logcumsumexp,
    "cummax": lambda x, dim: torch.cummax(x, dim).values,
    "cummin": lambda x, dim: torch.cummin(x, dim).values,
}
FORMS = [
    (name, form)
    for name in PLAIN
    for form in ({}, {"reverse": True}, {"exclusive": True}, {"exclusive": True, "reverse": True})
    if not form.get("exclusive") or name in FIRST
]


def reference(name, x, dim, *, reverse=False, exclusive=False):
    x = x.flip(dim) if reverse else x
    y = PLAIN[name](x, dim)
    y = exclusively(y, dim, FIRST[name]) if exclusive else y
    return y.flip(dim) if reverse else y


def drawn(rng, *shape):
    return torch.from_numpy(rng.normal(size=shape))


def gradient(y, weights, *tensors):
    """The gradients of a weighted sum of the finite results."""
    y = torch.where(y.isfinite(), y, 0)
    return torch.autograd.grad((y * weights).sum(), tensors)


# ---- tests ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize(("name", "form"), FORMS)
def test_beside_pytorch(name, form, dim, comm, rng):
    """Results and gradients of many elements."""
    x = drawn(rng, 4, 300, 3).movedim(1, dim).contiguous().requires_grad_()
    weights = drawn(rng, *x.shape)
    y = whole(functools.partial(getattr(scans, name), dim=dim, **form), dim, comm)(x)
    want = reference(name, x, dim, **form)
    torch.testing.assert_close(y, want, rtol=1e-10, atol=1e-10)
    for got, wanted in zip(gradient(y, weights, x), gradient(want, weights, x), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize(("name", "form"), FORMS)
def test_gradcheck(name, form, dim, comm, rng):
    if name == "logcumsumexp" and form.get("exclusive"):
        pytest.skip("its first result is -inf: test_beside_pytorch has its gradients")
    shape = (6, 2) if dim == 0 else (2, 6)
    x = drawn(rng, *shape).requires_grad_()
    function = whole(functools.partial(getattr(scans, name), dim=dim, **form), dim, comm)
    assert torch.autograd.gradcheck(function, (x,))
    if name in {"cumsum", "cumprod"}:
        assert torch.autograd.gradgradcheck(function, (x,))


@pytest.mark.parametrize("name", ["cumsum", "cumprod", "linear_recurrence"])
def test_complex_numbers(name, comm, rng):
    x = torch.complex(drawn(rng, 5), drawn(rng, 5)).requires_grad_()
    a = torch.complex(drawn(rng, 5), drawn(rng, 5)).requires_grad_()
    tensors = (a, x) if name == "linear_recurrence" else (x,)
    function = whole(functools.partial(getattr(scans, name), dim=0), 0, comm)
    assert torch.autograd.gradcheck(function, tensors)
    assert torch.autograd.gradgradcheck(function, tensors)


@pytest.mark.parametrize("form", [{}, {"exclusive": True}, {"reverse": True}])
@pytest.mark.parametrize("zeros", [[2], [0, 5], [1, 2, 4], range(6)])
def test_products_with_zeros(zeros, form, comm, rng):
    x = drawn(rng, 6)
    x[list(zeros)] = 0
    x.requires_grad_()
    function = whole(functools.partial(scans.cumprod, dim=0, **form), 0, comm)
    assert torch.autograd.gradcheck(function, (x,))
    assert torch.autograd.gradgradcheck(function, (x,))


@pytest.mark.parametrize("name", ["cummax", "cummin"])
def test_ties(name, comm):
    """The last of equal elements wins."""
    x = torch.tensor([1.0, 3, 3, 2, 3, 0, 0, 5, 5, 1], dtype=torch.float64).requires_grad_()
    weights = torch.arange(1.0, 11)
    y = whole(functools.partial(getattr(scans, name), dim=0), 0, comm)(x)
    want = reference(name, x, 0)
    assert torch.equal(y, want)
    assert torch.equal(*gradient(y, weights, x), *gradient(want, weights, x))


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize(
    ("name", "form"), [(name, form) for name, form in FORMS if name in FIRST]
)  # fmt: skip
def test_totals(name, form, dim, comm, rng):
    """The same on every rank, and part of the loss."""
    x = drawn(rng, 4, 9).requires_grad_()
    total = None

    def both(x):
        def scanned(shard):
            nonlocal total
            y, total = getattr(scans, name)(shard, dim, return_total=True, **form)
            return y

        y = whole(scanned, dim, comm)(x)
        return torch.where(y.isfinite(), y, 0), Summed.apply(total) / comm.size

    y, total = both(x)
    want = reference(name, x, dim, **form)
    torch.testing.assert_close(y, torch.where(want.isfinite(), want, 0))
    torch.testing.assert_close(total, PLAIN[name](x, dim).select(dim, -1))
    weights = [drawn(rng, *part.shape) for part in (y, total)]
    got = sum((part * weight).sum() for part, weight in zip(both(x), weights, strict=True))
    wanted = torch.where(want.isfinite(), want, 0), PLAIN[name](x, dim).select(dim, -1)
    want = sum((part * weight).sum() for part, weight in zip(wanted, weights, strict=True))
    torch.testing.assert_close(*(torch.autograd.grad(loss, x)[0] for loss in (got, want)))


def test_totals_of_no_elements(comm):
    for name, want in FIRST.items():
        y, total = getattr(scans, name)(torch.ones(0, 3), 0, return_total=True)
        assert y.shape == (0, 3)
        assert torch.equal(total, torch.full((3,), want))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("name", ["cummax", "cummin"])
def test_indices(name, dim, reverse, comm, rng):
    """Of the last of equal elements, or of the last NaN, as in PyTorch, in either direction."""
    x = torch.from_numpy(rng.integers(0, 4, (3, 40)).astype("f")).movedim(1, dim).contiguous()
    if dim == 0:
        x[20, 1] = torch.nan
    shard = mine(x, dim, comm).clone().requires_grad_()
    values, indices = getattr(scans, name)(shard, dim, reverse=reverse, return_indices=True)
    want = getattr(torch, name)(x.flip(dim) if reverse else x, dim)
    n, wanted = x.shape[dim], [part.flip(dim) if reverse else part for part in want]
    wanted[1] = n - 1 - wanted[1] if reverse else wanted[1]
    for got, part in zip((values, indices), wanted, strict=True):
        torch.testing.assert_close(got, mine(part, dim, comm), equal_nan=True)
    assert not indices.requires_grad
    weights = torch.arange(1.0, x.numel() + 1).reshape(x.shape)
    (values * mine(weights, dim, comm)).sum().backward()
    gradient = torch.zeros_like(x).scatter_add(dim, wanted[1], weights)
    torch.testing.assert_close(shard.grad, mine(gradient, dim, comm))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dim", [0, 1])
def test_recurrence(dim, reverse, comm, rng):
    shape = (6, 2) if dim == 0 else (2, 6)
    a, b = drawn(rng, *shape).requires_grad_(), drawn(rng, *shape).requires_grad_()
    solve = functools.partial(scans.linear_recurrence, dim=dim, reverse=reverse)
    function = whole(solve, dim, comm)
    want = solved(a.flip(dim), b.flip(dim), dim).flip(dim) if reverse else solved(a, b, dim)
    torch.testing.assert_close(function(a, b), want)
    assert torch.autograd.gradcheck(function, (a, b))
    assert torch.autograd.gradgradcheck(function, (a, b))


def from_state(multiply, dim, along, reverse, comm):
    """Return the recurrence from a first state, and its loop: each returns the last state, too.

    ``along`` is ``dim``, counted from the front.
    """

    def both(a, b, first):
        last = None

        def solve(a, b):
            nonlocal last
            form = {"dim": dim, "reverse": reverse, "return_last": True}
            h, last = scans.linear_recurrence(a, b, initial=Replicated.apply(first), **form)
            return h

        h = whole(solve, along, comm)(a, b)
        return h, Summed.apply(last) / comm.size

    def loop(a, b, first):
        h, states = first, []
        for t in range(b.shape[along])[:: -1 if reverse else 1]:
            h = multiply(a.select(along, t), h) + b.select(along, t)
            states.append(h)
        return torch.stack(states[:: -1 if reverse else 1], along), h

    return both, loop


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dim", [0, 1])
def test_initial_and_last_state(dim, reverse, comm, rng):
    shape = (5, 2) if dim == 0 else (2, 5)
    a, b = drawn(rng, *shape).requires_grad_(), drawn(rng, *shape).requires_grad_()
    first = drawn(rng, 2).requires_grad_()

    both, loop = from_state(torch.mul, dim, dim, reverse, comm)
    for got, want in zip(both(a, b, first), loop(a, b, first), strict=True):
        torch.testing.assert_close(got, want)
    assert torch.autograd.gradcheck(both, (a, b, first))
    assert torch.autograd.gradgradcheck(both, (a, b, first))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dim", [0, 1, -2])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_matrices(size, dim, reverse, comm, rng):
    """Results and gradients, of an initial and of the last state, too."""
    shape = (6, 2) if dim == 0 else (2, 6)
    a = (drawn(rng, *shape, size, size) / size).requires_grad_()
    b, first = drawn(rng, *shape, size).requires_grad_(), drawn(rng, 2, size).requires_grad_()
    along = dim % 3

    multiply = lambda a, h: (a @ h.unsqueeze(-1)).squeeze(-1)  # noqa: E731
    both, loop = from_state(multiply, dim, along, reverse, comm)
    for got, want in zip(both(a, b, first), loop(a, b, first), strict=True):
        torch.testing.assert_close(got, want)
    weights = drawn(rng, *b.shape), drawn(rng, *first.shape)
    parts = [
        torch.autograd.grad(
            [(y * w).sum() for y, w in zip(function(a, b, first), weights, strict=True)],
            (a, b, first),
        )
        for function in (both, loop)
    ]
    for got, want in zip(*parts, strict=True):
        torch.testing.assert_close(got, want)
    if size == 2 and dim == 0:
        assert torch.autograd.gradcheck(both, (a, b, first))
        assert torch.autograd.gradgradcheck(both, (a, b, first))


@pytest.mark.parametrize("reverse", [False, True])
def test_matrices_of_packed_sequences(reverse, comm, rng):
    """Rotations as matrices are complex factors."""
    turn, b = drawn(rng, 7, 3), drawn(rng, 7, 3, 2)
    states, ends = drawn(rng, 4, 3, 2), torch.tensor([0, 3, 3, 4, 7])
    form = {"cu_seqlens": ends, "reverse": reverse, "return_last": True, "comm": comm}
    rows = torch.tensor_split(torch.arange(7), comm.size)[comm.rank]
    cos, sin = turn.cos(), turn.sin()
    a = torch.stack([torch.stack([cos, -sin], -1), torch.stack([sin, cos], -1)], -2)
    h, last = scans.linear_recurrence(a[rows], b[rows], initial=states, **form)
    want, want_last = scans.linear_recurrence(
        torch.polar(torch.ones_like(turn), turn)[rows], torch.view_as_complex(b)[rows],
        initial=torch.view_as_complex(states), **form,
    )  # fmt: skip
    torch.testing.assert_close(h, torch.view_as_real(want))
    torch.testing.assert_close(last, torch.view_as_real(want_last))


@pytest.mark.parametrize("reverse", [False, True])
def test_infinities_of_packed_matrices(reverse, comm, rng):
    """They stay in their sequence, forward and backward; gradients are those of parts."""
    a, b = (drawn(rng, 6, 2, 2, 2) / 2).requires_grad_(), drawn(rng, 6, 2, 2).requires_grad_()
    ends, weights = [0, 2, 2, 6], drawn(rng, 6, 2, 2)
    form = {"cu_seqlens": torch.tensor(ends), "reverse": reverse}
    ours = whole(functools.partial(scans.linear_recurrence, **form), 0, comm)

    def loop(a, b):
        results = []
        for begin, end in pairwise(ends):
            h, states = torch.zeros(2, 2, dtype=b.dtype), []
            for t in range(begin, end)[:: -1 if reverse else 1]:
                h = (a[t] @ h.unsqueeze(-1)).squeeze(-1) + b[t]
                states.append(h)
            results += states[:: -1 if reverse else 1]
        return torch.stack(results)

    found, want = ours(a, b), loop(a, b)
    torch.testing.assert_close(found, want)
    assert torch.autograd.gradcheck(ours, (a, b))
    endless = b.detach().clone()
    endless[0 if not reverse else 5] = torch.inf
    torch.testing.assert_close(ours(a, endless), loop(a, endless), equal_nan=True)
    weights[5 if not reverse else 0] = torch.inf
    for got, wanted in zip(
        torch.autograd.grad(found, (a, b), weights),
        torch.autograd.grad(want, (a, b), weights),
        strict=True,
    ):
        others = slice(0, 2) if not reverse else slice(2, 6)
        torch.testing.assert_close(got[others], wanted[others])


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("heads", [[], [0], [3], [1, 2, 5], range(6)])
def test_segments(heads, reverse, comm, rng):
    """Packed sequences, which begin at any rank; numbers that are not finite stay in theirs."""
    a, b = drawn(rng, 6, 2).requires_grad_(), drawn(rng, 6, 2).requires_grad_()
    flags = torch.zeros(6, dtype=torch.bool)
    flags[list(heads)] = True
    own = mine(flags, 0, comm)
    solve = functools.partial(scans.linear_recurrence, segments=own, reverse=reverse)
    function = whole(solve, 0, comm)

    def loop(a, b):
        parts = []
        for begin, end in pairwise([0, *(head for head in heads if head), 6]):
            pair = a[begin:end], b[begin:end]
            if reverse:
                parts.append(solved(*(each.flip(0) for each in pair), 0).flip(0))
            else:
                parts.append(solved(*pair, 0))
        return torch.cat(parts)

    torch.testing.assert_close(function(a, b), loop(a, b))
    assert torch.autograd.gradcheck(function, (a, b))
    assert torch.autograd.gradgradcheck(function, (a, b))
    endless = b.detach().clone()
    endless[2] = torch.inf
    torch.testing.assert_close(function(a, endless), loop(a, endless))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("ends", [[0, 7], [0, 0, 3, 3, 4, 7, 7], [*range(8)]])
def test_packed_sequences(ends, reverse, comm, rng):
    """By cumulative lengths, each with a first state of its own."""
    a, b = drawn(rng, 7, 2).requires_grad_(), drawn(rng, 7, 2).requires_grad_()
    states = drawn(rng, len(ends) - 1, 2).requires_grad_()
    cu_seqlens = torch.tensor(ends, dtype=torch.int32)

    def packed(a, b, states):
        form = {"initial": Replicated.apply(states), "cu_seqlens": cu_seqlens, "reverse": reverse}
        return whole(functools.partial(scans.linear_recurrence, **form), 0, comm)(a, b)

    def loop(a, b, states):
        parts = []
        for (begin, end), state in zip(pairwise(ends), states, strict=True):
            steps, h = [], state
            for t in range(begin, end)[:: -1 if reverse else 1]:
                h = a[t] * h + b[t]
                steps.append(h)
            parts += steps[:: -1 if reverse else 1]
        return torch.stack(parts)

    torch.testing.assert_close(packed(a, b, states), loop(a, b, states))
    assert torch.autograd.gradcheck(packed, (a, b, states))
    assert torch.autograd.gradgradcheck(packed, (a, b, states))


@pytest.mark.parametrize("seeded", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("ends", [[0, 7], [0, 0, 3, 3, 4, 7, 7]])
def test_the_last_states_of_packed_sequences(ends, reverse, seeded, comm, rng):
    """The same on every rank; of an empty sequence, the first state or 0."""
    a, b = drawn(rng, 7, 2).requires_grad_(), drawn(rng, 7, 2).requires_grad_()
    states = drawn(rng, len(ends) - 1, 2).requires_grad_()
    form = {"cu_seqlens": torch.tensor(ends), "reverse": reverse, "return_last": True}
    mine = torch.tensor_split(torch.arange(7), comm.size)[comm.rank]

    def last(a, b, states):
        first = {"initial": Replicated.apply(states)} if seeded else {}
        a, b = (Replicated.apply(each)[mine] for each in (a, b))
        h, last = scans.linear_recurrence(a, b, comm=comm, **first, **form)
        # Each rank uses an equal part of it in its loss, and the parts are added up.
        return last / comm.size + 0 * h.sum()

    def loop(a, b, states):
        parts = []
        for (begin, end), state in zip(pairwise(ends), states, strict=True):
            h = state if seeded else 0 * state
            for t in range(begin, end)[:: -1 if reverse else 1]:
                h = a[t] * h + b[t]
            parts.append(h)
        return torch.stack(parts)

    got, want = last(a, b, states), loop(a, b, states)
    torch.testing.assert_close(got * comm.size, want)
    weights = drawn(rng, *want.shape)
    found = torch.autograd.grad((got * weights).sum(), (a, b, states), allow_unused=not seeded)
    wanted = torch.autograd.grad((want * weights).sum(), (a, b, states))
    for gradient, expected in list(zip(found, wanted, strict=True))[: 3 if seeded else 2]:
        torch.testing.assert_close(gradient, expected)


def by_hand(x, initial, op, *, exclusive, reverse, heads):
    """A scan along dim 0, element by element."""
    combine = {"sum": torch.add, "prod": torch.mul, "max": torch.maximum, "min": torch.minimum,
               "logaddexp": torch.logaddexp}[op]  # fmt: skip
    identity = {"sum": 0, "prod": 1, "max": -torch.inf, "min": torch.inf, "logaddexp": -torch.inf}
    nothing = torch.full_like(x[0], identity[op]) if exclusive else None
    results, before = [], initial
    for t in range(len(x))[:: -1 if reverse else 1]:
        if heads is not None and (heads[t + 1 : t + 2].any() if reverse else heads[t]):
            before = initial
        now = x[t] if before is None else combine(before, x[t])
        results.append((nothing if before is None else before) if exclusive else now)
        before = now
    return torch.stack(results[:: -1 if reverse else 1])


def check_initial(op, own, heads, form, x, comm, rng):
    """From a value before the first element, and before each segment; its gradients add up."""
    first = drawn(rng, x.shape[1])
    if op == "logaddexp":
        first[0] = -torch.inf
    part = mine(x, 0, comm).clone().requires_grad_()
    ours, theirs, z = first.clone().requires_grad_(), first.clone().requires_grad_(), x.clone()
    z.requires_grad_()
    y = scans.scan(part, 0, op, initial=ours, segments=own, **form)
    want = by_hand(z, theirs, op, heads=heads, **form)
    torch.testing.assert_close(y, mine(want, 0, comm))
    weights = drawn(rng, *x.shape)
    got = torch.autograd.grad((y * mine(weights, 0, comm)).nan_to_num(neginf=0).sum(), (part, ours))
    finite = torch.where(want == -torch.inf, 0, want * weights)
    dx, dfirst = torch.autograd.grad(finite.sum(), (z, theirs))
    torch.testing.assert_close(got[0], mine(dx, 0, comm).nan_to_num())
    total = comm.allreduce(got[1].numpy())
    torch.testing.assert_close(torch.from_numpy(total), dfirst.nan_to_num())


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("op", ["sum", "prod", "max", "min", "logaddexp"])
def test_scan(op, exclusive, reverse, comm, rng):
    """By operator, from a value, and in segments, which keep infinities."""
    x = drawn(rng, 7, 2)
    form = {"exclusive": exclusive, "reverse": reverse}
    flags = torch.zeros(7, dtype=torch.bool)
    flags[[2, 3, 6]] = True
    for heads in (None, flags):
        own = None if heads is None else mine(heads, 0, comm)
        ours = whole(functools.partial(scans.scan, dim=0, op=op, segments=own, **form), 0, comm)
        theirs = functools.partial(by_hand, initial=None, op=op, heads=heads, **form)
        z = x.clone().requires_grad_()
        check_initial(op, own, heads, form, x, comm, rng)
        torch.testing.assert_close(ours(z), theirs(z))
        weights = drawn(rng, 7, 2)
        gradients = [torch.autograd.grad((f(z) * weights).sum(), z)[0] for f in (ours, theirs)]
        torch.testing.assert_close(*gradients)
        if heads is not None:
            z = x.clone()
            z[2] = torch.inf
            torch.testing.assert_close(ours(z), theirs(z))
            z = (10 * x).long()
            if op != "logaddexp" and not exclusive:
                torch.testing.assert_close(ours(z), theirs(z), check_dtype=False)


@pytest.mark.skipif(TORCHRUN, reason="of communicators of MPI")
def test_zigzag(comm, rng):
    """Each rank has a part of the first half, and its mirror image of the second: the docs' way."""
    n, backwards = 2 * 3 * comm.size, comm.Split(0, -comm.rank)
    a, b, weights = (drawn(rng, n, 2).requires_grad_() for _ in range(3))
    parts = torch.arange(n).reshape(2 * comm.size, 3)
    early, late = parts[comm.rank], parts[2 * comm.size - 1 - comm.rank]

    def zigzag(a, b, weights):
        h, last = scans.linear_recurrence(a[early], b[early], comm=comm, return_last=True)
        rest = scans.linear_recurrence(a[late], b[late], comm=backwards, initial=last)
        return (h * weights[early]).sum() + (rest * weights[late]).sum()

    want = (solved(a, b, 0) * weights).sum()
    expected = torch.autograd.grad(want, (a, b))
    shared = [Replicated.apply(x) for x in (a, b)]
    got = zigzag(*shared, weights.detach())
    found = torch.autograd.grad(got, (a, b))
    assert comm.allreduce(got.item()) == pytest.approx(want.item())
    for gradient, right in zip(found, expected, strict=True):
        torch.testing.assert_close(gradient, right)
    backwards.Free()


def test_mixed_types_and_autocast(comm, rng):
    """Narrow types accumulate in float32 in autocast, as PyTorch's do, and beside float32."""
    n = 40
    x = torch.from_numpy(rng.random(comm.size * n)).bfloat16()
    own = x[comm.rank * n :][:n].clone().requires_grad_()
    decay = torch.full((n,), 0.9, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        y = scans.cumsum(own, 0)
    assert y.dtype == torch.float32
    want = torch.cumsum(x.float(), 0)[comm.rank * n :][:n]
    torch.testing.assert_close(y, want)
    y.sum().backward()
    assert own.grad.dtype == torch.bfloat16
    h = scans.linear_recurrence(decay, own)
    assert h.dtype == torch.float32
    h.sum().backward()
    assert decay.grad.dtype == torch.float32
    assert scans.cumsum(own, 0).dtype == torch.bfloat16


def test_the_last_state_of_no_elements(comm):
    empty, first = torch.ones(0, 3), torch.arange(3.0)
    for initial, want in ((None, torch.zeros(3)), (first, first)):
        h, last = scans.linear_recurrence(empty, empty, initial=initial, return_last=True)
        assert h.shape == (0, 3)
        assert torch.equal(last, want)


def test_one_rank_alone_needs_a_gradient(comm):
    """The others take part in the backward pass, though their shards have no gradient."""
    x = torch.ones(3, dtype=torch.float64, requires_grad=comm.rank == 0)
    y = scans.cumsum(x, 0)
    assert y.requires_grad
    y.sum().backward()
    if comm.rank == 0:
        np.testing.assert_array_equal(x.grad, 3.0 * comm.size - np.arange(3))
    else:
        assert x.grad is None


def test_nobody_needs_a_gradient(comm):
    with torch.no_grad():
        assert not scans.cumsum(torch.ones(2, requires_grad=True), 0).requires_grad
    assert not scans.cumsum(torch.ones(2), 0).requires_grad


@pytest.mark.parametrize("missing", [0, -1])
def test_a_result_that_is_not_part_of_the_loss(missing, comm, monkeypatch):
    """The rank's absence is an exception on the others, not a hang; so is its next pass."""
    if comm.size == 1:
        pytest.skip("needs several ranks")
    monkeypatch.setenv("DISTSCAN_WAIT", "0.3")
    alone, missing = comm.Dup(), missing % comm.size
    x = torch.ones(3, requires_grad=True)
    y = scans.cumsum(x, 0, comm=alone)
    if comm.rank == missing:
        (x * 2).sum().backward()
    else:
        with pytest.raises(RankError, match=f"rank {missing} did not come to a backward pass"):
            y.sum().backward(retain_graph=True)
    comm.Barrier()
    if isinstance(comm, MPI.Comm):  # gloo's connections end with the first absence
        with pytest.raises(RankError, match=r"rank \d+ (is out of step|did not come)"):
            y.sum().backward()
    comm.Barrier()


def needs_several_ranks_of_mpi(comm):
    if comm.size == 1 or not isinstance(comm, MPI.Comm):
        pytest.skip("needs several ranks of MPI")


def test_late_ranks(comm, monkeypatch):
    """Each comes within the limit after rank 0, or rank 0 after it: nobody is missing."""
    needs_several_ranks_of_mpi(comm)
    monkeypatch.setenv("DISTSCAN_WAIT", "1")
    x = torch.ones(3, requires_grad=True)
    y = scans.cumsum(x, 0)
    comm.Barrier()
    time.sleep({0: 0.6, 1: 0.0}.get(comm.rank, 1.2))
    y.sum().backward()
    assert x.grad[0] == 3.0 * (comm.size - comm.rank)


def test_a_slow_rank(comm, monkeypatch):
    """It has come to the backward pass in time, and then takes longer than the limit."""
    needs_several_ranks_of_mpi(comm)
    monkeypatch.setenv("DISTSCAN_WAIT", "0.3")
    x = torch.ones(3, requires_grad=True)
    y = scans.cumsum(x, 0)
    real = array_scan.run

    def slow(*arguments):
        result = real(*arguments)
        time.sleep(0.8 if comm.rank == 0 else 0)
        return result

    monkeypatch.setattr(array_scan, "run", slow)
    y.sum().backward()
    assert x.grad[0] == 3.0 * (comm.size - comm.rank)


def test_new_communicators(comm, monkeypatch):
    """What is left of a pass that a rank has left out is not taken for that of another."""
    needs_several_ranks_of_mpi(comm)
    monkeypatch.setenv("DISTSCAN_WAIT", "0.3")
    x = torch.ones(3, requires_grad=True)
    for missing in (0, None, comm.size - 1, None, None):
        new = comm.Dup()
        y = scans.cumsum(x, 0, comm=new)
        if missing is None:
            (gradient,) = torch.autograd.grad(y.sum(), x)
            assert gradient[0] == 3.0 * (comm.size - comm.rank)
        elif comm.rank != missing:
            with pytest.raises(RankError, match=f"rank {missing} did not come"):
                torch.autograd.grad(y.sum(), x)
        comm.Barrier()
        new.Free()


def test_a_checkpoint_that_is_left_out(comm, monkeypatch):
    """The forward pass that runs again in the backward pass has its limit, too."""
    from torch.utils.checkpoint import checkpoint

    needs_several_ranks_of_mpi(comm)
    monkeypatch.setenv("DISTSCAN_WAIT", "0.3")
    x, new = torch.ones(3, requires_grad=True), comm.Dup()
    y = checkpoint(lambda x: scans.cumprod(x, 0, comm=new), x, use_reentrant=False)
    if comm.rank > 0:
        with pytest.raises(RankError, match="rank 0 did not come"):
            torch.autograd.grad(y.sum(), x)
    comm.Barrier()


def test_two_backward_passes(comm, rng):
    x = drawn(rng, 5).requires_grad_()
    y = scans.linear_recurrence(x, x)
    (first,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
    (second,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(first, second)


@pytest.mark.parametrize(
    "function",
    [lambda x: scans.cumprod(x, 0), lambda x: scans.linear_recurrence(x.sigmoid(), x)],
    ids=["cumprod", "recurrence"],
)
def test_checkpoint(function, comm, rng):
    """The forward pass runs again in the backward pass."""
    from torch.utils.checkpoint import checkpoint

    x = drawn(rng, 5).requires_grad_()
    plain = torch.autograd.grad(function(x).sum(), x)
    again = checkpoint(function, x, use_reentrant=False)
    assert torch.equal(*plain, *torch.autograd.grad(again.sum(), x))


@pytest.mark.parametrize("op", ["sum", "prod", "max", "logaddexp"])
def test_segments_of_strided_tensors(op, comm, rng):
    """Results are right whatever the strides of x."""
    heads = torch.arange(4) % 2 == 0
    x = drawn(rng, 3, 4)
    want = scans.scan(x.clone().T.contiguous(), 0, op, segments=heads).T
    for each in (x, x.T.contiguous().T, torch.stack([x, x], -1)[..., 1]):
        assert torch.equal(scans.scan(each, 1, op, segments=heads), want)
        torch.testing.assert_close(scans.cumsum(each, 1), scans.cumsum(each.T.clone(), 0).T)


def test_no_columns_with_a_first_state(comm):
    a, first = torch.ones(3, 0), torch.ones(0)
    assert scans.linear_recurrence(a, a, initial=first).shape == (3, 0)


def test_another_default_device(comm):
    """A tensor's own device counts."""
    x = torch.ones(3)
    with torch.device("meta"):
        y, last = scans.linear_recurrence(x, x.to(torch.bfloat16), return_last=True)
    assert y.device == last.device == x.device
    torch.testing.assert_close(last.item(), 3.0 * comm.size)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # PyTorch's own
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compile(backend, comm, rng):
    """Where more is returned, a compiled function calls them between two graphs."""

    def function(x):
        h, last = scans.linear_recurrence(x.sigmoid(), scans.cumsum(2 * x, 0), return_last=True)
        return h.sin() + last

    x = drawn(rng, 5, 2).requires_grad_()
    torch._dynamo.reset()
    for _ in range(2):
        got, want = torch.compile(function, backend=backend)(x), function(x)
        torch.testing.assert_close(got, want)
        gradients = [torch.autograd.grad(y.square().sum(), x)[0] for y in (got, want)]
        torch.testing.assert_close(*gradients)


GRAPHS = {
    "cumsum": lambda a, b, **o: scans.cumsum(a, 0, **o) + b,
    "two sums": lambda a, b, **o: scans.cumsum(a, 0, exclusive=True, **o) * scans.cumsum(b, 0, **o),
    "cumprod": lambda a, b, **o: scans.cumprod(a, 0, **o) + b,
    "logcumsumexp": lambda a, b, **o: scans.logcumsumexp(a, 0, reverse=True, **o) + b,
    "extremes": lambda a, b, **o: scans.cummax(a, 0, **o) + scans.cummin(b, 0, **o),
    "indices": lambda a, b, **o: torch.add(*scans.cummax(a * b, 0, return_indices=True, **o)),
    "dtype": lambda a, b, **o: scans.cumsum(a.float(), 0, dtype=torch.float64, **o) + b,
    "recurrence": lambda a, b, **o: scans.linear_recurrence(a, b, 0, **o),
    "initial": lambda a, b, **o: scans.linear_recurrence(a, b, initial=INITIAL, **o),
    "segments": lambda a, b, **o: scans.linear_recurrence(a, b, segments=a[:, 0, 0] > 0.5, **o),
    "other dims": lambda a, b, **o: scans.linear_recurrence(a, scans.cumsum(b, 2, **o), 1, **o),
}
INITIAL = torch.ones(3, 2, dtype=torch.float64, requires_grad=True)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("name", GRAPHS)
def test_one_graph(name, named, comm, rng):
    """Each is one node: results, gradients, and shards of other lengths, also empty ones."""
    function = GRAPHS[name]
    if named:
        ranks = torch.distributed.group.WORLD if TORCHRUN else comm
        function = functools.partial(function, comm=ranks)
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    for n in (3, 3 if name == "other dims" else 0 if comm.rank == 1 else 5):
        inputs = [drawn(rng, n, 3, 2).sigmoid().requires_grad_() for _ in range(2)]
        got, want = compiled(*inputs), function(*inputs)
        torch.testing.assert_close(got, want)
        inputs += [INITIAL] if name == "initial" else []
        gradients = [torch.autograd.grad(y.sin().sum(), inputs) for y in (got, want)]
        torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("code", ["int32", "uint8", "bool", "float16", "bfloat16", "complex64"])
def test_types_in_a_graph(code, comm):
    """As outside of one; integers become int64, or floats of the default type."""
    x = torch.tensor([1, 0, 1]).to(getattr(torch, code))
    functions = [scans.cumsum, scans.cumprod, scans.linear_recurrence]
    functions += [] if code == "complex64" else [scans.cummax, scans.logcumsumexp]
    for function in functions:
        arguments = (x, x) if function is scans.linear_recurrence else (x, 0)
        torch._dynamo.reset()
        got = torch.compile(function, backend="aot_eager", fullgraph=True)(*arguments, comm=comm)
        want = function(*arguments, comm=comm)
        assert got.dtype == want.dtype
        assert torch.equal(got, want)
    floats = scans.linear_recurrence(x, x, comm=comm).dtype
    assert floats == (torch.get_default_dtype() if code in {"int32", "uint8", "bool"} else x.dtype)


@pytest.mark.parametrize("false", [0, np.False_, False])
def test_flags_of_a_graph(false, comm, rng):
    """What is false is so in a graph, too."""
    x = drawn(rng, 3)
    form = {"reverse": false, "exclusive": false}
    torch._dynamo.reset()
    got = torch.compile(lambda x: scans.cumsum(x, 0, **form), backend="aot_eager")(x)
    assert torch.equal(got, scans.cumsum(x, 0))
    got = torch.compile(lambda x: scans.scan(x, 0, reverse=1), backend="aot_eager")(x)
    assert torch.equal(got, scans.cumsum(x, 0, reverse=True))


def test_faults_in_a_graph(comm, rng):
    """One rank's wrong arguments are raised by all."""
    x, last = drawn(rng, 3, 2), comm.rank == comm.size - 1
    for kind, message, call in [
        (IndexError, "dim is 2", lambda x: scans.cumsum(x, 2 if last else 0)),
        (TypeError, "integer", lambda x: scans.cumsum(x, "0" if last else 0)),
        (
            TypeError,
            "initial is",
            lambda x: scans.linear_recurrence(x, x, initial=0.5 if last else x[0]),
        ),
    ]:
        torch._dynamo.reset()
        compiled = torch.compile(call, backend="aot_eager")
        everywhere(comm, kind, message, functools.partial(compiled, x))


def test_a_graph_and_its_communicators(comm, rng):
    """The ranks are those of the call, not those of the first one."""
    if TORCHRUN:
        pytest.skip("of communicators of MPI")
    alone = MPI.COMM_SELF
    torch._dynamo.reset()
    function = torch.compile(
        lambda x, comm: scans.cumsum(x, 0, comm=comm), backend="aot_eager", fullgraph=True
    )
    x = drawn(rng, 4)
    for each in (comm, alone, None, alone, comm):
        assert torch.equal(function(x, each), scans.cumsum(x, 0, comm=each))


def test_a_graph_of_which_one_rank_needs_gradients(comm):
    """Outside of a graph, that is no fault."""
    if comm.size == 1:
        pytest.skip("needs several ranks")
    torch._dynamo.reset()
    function = torch.compile(lambda x: scans.cumsum(x, 0), backend="aot_eager", fullgraph=True)
    x = torch.ones(3, requires_grad=comm.rank == 0)
    everywhere(comm, ValueError, "all ranks' tensors need gradients", lambda: function(x))
    assert torch.equal(function(x.detach()), scans.cumsum(x.detach(), 0))


@pytest.mark.timeout(300)
def test_inductor(comm, rng):
    """The compiler that is PyTorch's default, with what it fuses around the scans."""

    def layer(x):
        gate = x.sigmoid()
        h = scans.linear_recurrence(gate, (1 - gate) * x.tanh(), 1)
        return scans.cumsum(h * x, 1).relu() + scans.cummax(h, 1)

    torch._dynamo.reset()
    x = drawn(rng, 2, 6, 3).requires_grad_()
    got, want = torch.compile(layer, fullgraph=True)(x), layer(x)
    torch.testing.assert_close(got, want)
    gradients = [torch.autograd.grad(y.square().sum(), x)[0] for y in (got, want)]
    torch.testing.assert_close(*gradients)


@pytest.mark.timeout(300)
def test_inductor_of_a_first_state(comm, rng):
    """It knows the shapes and types of all that an operator returns, of an empty shard, too."""

    def layer(a, b, first):
        return scans.linear_recurrence(a, b, initial=first) * 2

    torch._dynamo.reset()
    a, b = drawn(rng, 2, 0 if comm.rank == 1 else 4, 3).to(torch.bfloat16).sigmoid()
    inputs = [each.detach().requires_grad_() for each in (a, b, torch.ones(3).to(a))]
    got, want = torch.compile(layer, fullgraph=True)(*inputs), layer(*inputs)
    torch.testing.assert_close(got, want)
    gradients = [torch.autograd.grad(y.sum(), inputs) for y in (got, want)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize(
    "name", ["float32", "float16", "bfloat16", "complex128", "int32", "uint8", "bool"]
)
def test_types(name, comm, rng):
    """Sums have the type that torch.cumsum has."""
    x = torch.from_numpy(rng.integers(0, 2, 4)).to(getattr(torch, name))
    y = scans.cumsum(x, 0)
    want = torch.cumsum(x.repeat(comm.size), 0)[4 * comm.rank :][:4]
    assert y.dtype == want.dtype
    assert torch.equal(y, want)


@pytest.mark.one_rank
@pytest.mark.skipif(TORCHRUN, reason="the examples are of one rank")
def test_docstrings():
    assert doctest.testmod(functions).failed == 0


def test_refusals(comm):
    x = torch.ones(2, 3)
    last = comm.rank == comm.size - 1
    everywhere(comm, TypeError, "tensors", lambda: scans.cumsum([1.0] if last else x, 0))
    everywhere(comm, IndexError, "dim is 2", lambda: scans.cumsum(x, 2))
    everywhere(
        comm,
        ValueError,
        "they must be equal",
        lambda: scans.linear_recurrence(x, x[:1] if last else x.double()),
    )
    matrices, vectors = torch.ones(2, 3, 3, 3), torch.ones(2, 3, 3)
    large = torch.ones(2, 5, 5 if last else 4)
    for a, b, dim, kind, message in (
        (matrices, vectors, 2 if last else 0, IndexError, "dim is 2: that of the vectors"),
        (torch.ones(*large.shape, large.shape[-1]), large, 0, ValueError, "k up to 4"),
        (matrices, vectors[..., :2] if last else vectors, 0, ValueError, "must be equal; or"),
    ):
        solve_matrices = functools.partial(scans.linear_recurrence, a, b, dim)
        everywhere(comm, kind, message, solve_matrices)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DISTSCAN_WAIT", "soon" if last else "60")
        everywhere(comm, ValueError, "DISTSCAN_WAIT=soon", lambda: scans.cumsum(x, 0))
    solve = functools.partial(scans.linear_recurrence, x, x)
    everywhere(comm, ValueError, "initial is", lambda: solve(initial=x if last else x[0]))
    everywhere(comm, TypeError, "initial is", lambda: solve(initial=0.0 if last else x[0]))
    everywhere(comm, TypeError, "bools", lambda: solve(segments=x[:, 0] if last else x[:, 0] > 0))
    everywhere(comm, ValueError, "segments has", lambda: solve(segments=x[0] > 0))
    everywhere(comm, ValueError, "op is 'median'", lambda: scans.scan(x, 0, "median"))
    odd = functools.partial(scans.scan, x, 0, [] if last else "max", exclusive=True)
    everywhere(comm, ValueError, "op is|disagree", odd)
    total = comm.size * len(x)
    for places, kind, message in (
        ([0.0, total], TypeError, "int32 or int64"),
        ([0, total + 1], ValueError, "cu_seqlens ends at"),
        ([1, total], ValueError, "begin with 0"),
        ([0, 2, 1, total], ValueError, "not fall"),
    ):
        ends = torch.tensor(places)
        everywhere(comm, kind, message, functools.partial(solve, cu_seqlens=ends))
    ends = torch.tensor([0, total])
    everywhere(comm, ValueError, "not for", lambda: solve(cu_seqlens=ends, segments=x[:, 0] > 0))
    everywhere(comm, ValueError, "initial has", lambda: solve(cu_seqlens=ends, initial=x[0]))
    if comm.size > 1:
        everywhere(
            comm, DisagreementError, "shape", lambda: scans.cumsum(x if last else x[:, :2], 0)
        )
        with torch.set_grad_enabled(last):
            everywhere(comm, DisagreementError, "gradients", lambda: scans.cumsum(x, 0))
