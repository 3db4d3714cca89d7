"""Differentiable scans of PyTorch tensors whose shards lie on several ranks.

``dim`` is the dimension along which the shards are joined, in rank order, and scanned. Shards may
differ in length there, and may be empty. Every function is collective over ``comm``, and so is the
backward pass of its result: each backward pass is itself a scan.

    y = distscan.torch.cumsum(x, dim=1)  # x [batch, n of this rank, features]
    loss(y).backward()                   # on every rank

======================  ==========================================  ==============  ===============
function                backward                                    it keeps        derivatives
======================  ==========================================  ==============  ===============
``cumsum``              a sum from the other end                    nothing         of any order
``cumprod``             a product and a recurrence; right at zeros  x               of any order
``linear_recurrence``   a recurrence from the other end             a, the result   of any order
``logcumsumexp``        two ``logcumsumexp`` from the other end     x, the result   first
``cummax``, ``cummin``  a recurrence; to the element that won       a mask          first
======================  ==========================================  ==============  ===============

If one rank's tensor needs a gradient, all ranks take part in the backward pass, and the result must
be part of the loss on all of them. A rank that does not come makes the others raise ``RankError``
after ``DISTSCAN_WAIT`` seconds (default: 60).
"""

import functools
import time
from collections.abc import Callable
from operator import index
from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable

from .core.errors import RankError
from .core.steps import WAIT, wait_limit
from .mpi.agree import Agreement, Terms, collective
from .mpi.communicators import MPI, Comm, gradients
from .mpi.torch_group import TorchComm
from .scan import scan
from .uses.recurrence import linear_recurrence as _solve

Tensor = Any


class Direction(NamedTuple):
    """The ranks of a scan, its direction, and its form."""

    comm: Comm
    lengths: tuple[int, ...]  # the number of rows of each rank
    reverse: bool
    exclusive: bool = False  # whether a result leaves out its own element
    segments: Tensor | None = None  # bools [n], where independent recurrences begin
    indices: bool = False  # whether to find the indices of maxima and minima

    def ranks(self) -> list[int]:
        """Return the ranks that have rows, in the order of the scan."""
        ranks = [rank for rank, length in enumerate(self.lengths) if length]
        return ranks[::-1] if self.reverse else ranks

    def other(self) -> "Direction":
        """Return the opposite direction, that of the backward pass."""
        return self._replace(reverse=not self.reverse)


# ---- the functions -------------------------------------------------------------------------------
#
# torch.compile calls them as they are, between two graphs: what they exchange cannot be traced.


@torch.compiler.disable
def cumsum(
    x: Tensor,
    dim: int,
    *,
    comm: Comm | None = None,
    exclusive: bool = False,
    reverse: bool = False,
    dtype: Any = None,
    return_total: bool = False,
) -> Any:
    """Return the cumulative sum of ``x`` along ``dim`` over all ranks, as ``torch.cumsum``.

    Parameters
    ----------
    x
        This rank's shard: a tensor on a CPU or a GPU.
    dim
        The dimension along which the shards are joined, and scanned.
    comm
        An mpi4py intracommunicator, or a process group of ``torch.distributed``. None is
        ``MPI.COMM_WORLD``; where torchrun has started the ranks, it is the default group.
    exclusive
        Whether each result leaves out its own element.
    reverse
        Whether to scan from the last element.
    dtype
        The type to which ``x`` is converted first. Integers and bools sum in int64.
    return_total
        Whether to return the sum of all elements of all ranks along ``dim``, too.

    Returns
    -------
    tensor, of the shape of ``x``
        This rank's part.
    total
        With ``return_total``: of the shape of ``x`` without ``dim``, the same on every rank. Each
        rank may use it in its loss: the gradients are added up.

    Raises
    ------
    TypeError, ValueError, RankError
        On every rank.

    Examples
    --------
    On one rank; on two that hold [1., 2.] and [3.], the gradients are [3., 2.] and [1.]:

    >>> import distscan.torch, torch
    >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> distscan.torch.cumsum(x, 0).sum().backward()
    >>> x.grad
    tensor([2., 1.])
    """
    form: Any = {"comm": comm, "exclusive": exclusive, "reverse": reverse, "dtype": dtype}
    return _scanned(_SUM, x, dim, return_total=return_total, **form)


@torch.compiler.disable
def cumprod(
    x: Tensor,
    dim: int,
    *,
    comm: Comm | None = None,
    exclusive: bool = False,
    reverse: bool = False,
    dtype: Any = None,
    return_total: bool = False,
) -> Any:
    """Return the cumulative product along ``dim``; as ``torch.cumprod``. See ``cumsum``.

    Gradients divide by nothing, so zeros are no exception.
    """
    form: Any = {"comm": comm, "exclusive": exclusive, "reverse": reverse, "dtype": dtype}
    return _scanned(_PRODUCT, x, dim, return_total=return_total, **form)


@torch.compiler.disable
def logcumsumexp(
    x: Tensor,
    dim: int,
    *,
    comm: Comm | None = None,
    exclusive: bool = False,
    reverse: bool = False,
    return_total: bool = False,
) -> Any:
    """Return log(sum of exp(x)) cumulatively; as ``torch.logcumsumexp``. See ``cumsum``."""
    form: Any = {"comm": comm, "exclusive": exclusive, "reverse": reverse}
    return _scanned(_LOG_SUM, x, dim, return_total=return_total, **form)


@torch.compiler.disable
def cummax(
    x: Tensor,
    dim: int,
    *,
    comm: Comm | None = None,
    reverse: bool = False,
    return_indices: bool = False,
) -> Any:
    """Return the cumulative maximum along ``dim``. See ``cumsum``.

    The gradient of a result goes to the element that won: of equal ones the last, as in
    ``torch.cummax``; with ``reverse``, the last in this direction. With ``return_indices``, a pair
    is returned: the maxima, and the places of these elements among those of all ranks, as int64.
    """
    return _scanned(_MAXIMUM, x, dim, comm=comm, reverse=reverse, return_indices=return_indices)


@torch.compiler.disable
def cummin(
    x: Tensor,
    dim: int,
    *,
    comm: Comm | None = None,
    reverse: bool = False,
    return_indices: bool = False,
) -> Any:
    """Return the cumulative minimum along ``dim``. See ``cummax``."""
    return _scanned(_MINIMUM, x, dim, comm=comm, reverse=reverse, return_indices=return_indices)


@torch.compiler.disable
def linear_recurrence(
    a: Tensor,
    b: Tensor,
    dim: int = 0,
    *,
    comm: Comm | None = None,
    reverse: bool = False,
    initial: Tensor | None = None,
    segments: Tensor | None = None,
    return_last: bool = False,
) -> Any:
    """Solve ``h[t] = a[t] * h[t-1] + b[t]`` along ``dim``, over all ranks.

    Parameters
    ----------
    a, b
        This rank's shards, of one shape and type.
    dim, comm, reverse
        As in ``cumsum``; with ``reverse``, ``h[t] = a[t] * h[t+1] + b[t]``.
    initial
        The state before the first element, of the shape of ``b`` without ``dim`` and of its type,
        the same on every rank. None is 0. Its gradient is on the rank with the first element, and 0
        on the others: add them up, as for any parameter that ranks share.
    segments
        Where independent recurrences begin, such as packed sequences: bools [n], n the length of
        this rank's shard along ``dim``, True at the first element of each. Not with ``initial``.
    return_last
        Whether to return the last state of all ranks, too.

    Returns
    -------
    tensor, of the shape of ``b``
        This rank's part of h.
    last
        With ``return_last``: the state after the last element, of the shape of ``initial``, the
        same on every rank. If no rank has elements, it is ``initial``.

    Raises
    ------
    TypeError, ValueError, RankError
        On every rank.

    Examples
    --------
    A value that decays by half at each step, on one rank:

    >>> import distscan.torch, torch
    >>> half, b = torch.full((3,), 0.5), torch.tensor([8.0, 0.0, 1.0])
    >>> distscan.torch.linear_recurrence(half, b)
    tensor([8., 4., 3.])
    """
    form: Any = {"initial": initial, "segments": segments, "return_last": return_last}
    (a, b), way = _begin("linear_recurrence", (a, b), dim, comm=comm, reverse=reverse, **form)
    first = None if initial is None else initial.reshape(-1)
    h = _Recurrence.apply(_rows(a, dim), _rows(b, dim), first, way)
    if not return_last:
        return _back(h, b, dim)
    if way.ranks():
        first = _Last.apply(h, way)
    elif first is None:
        first = h.sum(0)  # of no rows
    return _back(h, b, dim), first.reshape(b.movedim(dim, 0).shape[1:])


class _Function(NamedTuple):
    """A function of this module, of one tensor."""

    name: str
    apply: Callable[..., Any]  # of the autograd function
    join: Callable[[Tensor, Tensor], Tensor]  # of a result and an element
    reduce: Callable[..., Tensor]


def _scanned(function: _Function, x: Tensor, dim: int, **form: Any) -> Any:
    """Scan the rows of ``x`` by an autograd function; return the results, and what is asked for."""
    (x,), way = _begin(function.name, (x,), dim, **form)
    rows = _rows(x, dim)
    if way.indices:
        return tuple(_back(part, x, dim) for part in function.apply(rows, way))
    y = function.apply(rows, way)
    if not form.get("return_total"):
        return _back(y, x, dim)
    if way.ranks():
        total = _Last.apply(function.join(y, rows) if way.exclusive else y, way)
    else:
        total = function.reduce(y, 0)  # of no rows
    return _back(y, x, dim), total.reshape(x.movedim(dim, 0).shape[1:])


@collective
def _begin(
    call: Agreement,
    name: str,
    tensors: tuple[Tensor, ...],
    dim: int,
    *,
    comm: Comm | None = None,
    exclusive: bool = False,
    reverse: bool = False,
    dtype: Any = None,
    initial: Tensor | None = None,
    segments: Tensor | None = None,
    return_last: bool = False,
    return_total: bool = False,
    return_indices: bool = False,
) -> tuple[tuple[Tensor, ...], Direction]:
    """Check the arguments; return tensors that need gradients on every rank or on none."""
    dim = index(dim)
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} takes tensors of PyTorch, not {type(tensor).__name__}")
        if not -tensor.ndim <= dim < tensor.ndim:
            raise IndexError(f"dim is {dim}; the tensor has {tensor.ndim} dimensions")
        if tensor.shape != tensors[0].shape or tensor.dtype != tensors[0].dtype:
            raise ValueError(
                f"a is {tensors[0].dtype} {list(tensors[0].shape)}, b {tensor.dtype} "
                f"{list(tensor.shape)}: they must have one type and one shape"
            )
    if dtype is not None:
        tensors = tuple(tensor.to(dtype) for tensor in tensors)
    shape = list(tensors[0].shape)
    length = shape.pop(dim)
    _check_states(initial, segments, tensors[0].dtype, shape, length)
    call.same = Terms(
        {
            "the function": f"distscan.torch.{name}",
            "dim": dim % tensors[0].ndim,
            "the dtype": tensors[0].dtype,
            "the shape beyond dim": shape,
            "exclusive": bool(exclusive),
            "reverse": bool(reverse),
            "whether there is an initial state": initial is not None,
            "whether there are segments": segments is not None,
            "return_last": bool(return_last),
            "return_total": bool(return_total),
            "return_indices": bool(return_indices),
            "whether gradients are enabled": torch.is_grad_enabled(),
        }
    )
    inputs = tensors if initial is None else (*tensors, initial)
    needs = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs)
    wait_limit()  # a wrong setting is a fault here, not in the backward pass
    call.contribution = 2 * length + needs
    call.settle()
    ranks = call.contributions()
    lengths = tuple(number // 2 for number in ranks)
    form = bool(reverse), bool(exclusive), segments, bool(return_indices)
    direction = Direction(call.comm, lengths, *form)
    if any(number % 2 for number in ranks):
        gradients(call.comm)  # made here, where all ranks are
        if not needs:
            there = torch.zeros((), requires_grad=True)
            tensors = (_Present.apply(tensors[0], there), *tensors[1:])
    call.begin()
    return tensors, direction


def _check_states(
    initial: Any, segments: Any, dtype: torch.dtype, shape: list[int], length: int
) -> None:
    """Check the first state, and where recurrences begin; raise TypeError or ValueError."""
    if initial is not None and not isinstance(initial, torch.Tensor):
        raise TypeError(f"initial is a tensor of PyTorch, not {type(initial).__name__}")
    if initial is not None and (initial.dtype, [*initial.shape]) != (dtype, shape):
        raise ValueError(
            f"initial is {initial.dtype} {list(initial.shape)}; the states are {dtype} {shape}"
        )
    if segments is None:
        return
    if not isinstance(segments, torch.Tensor) or segments.dtype != torch.bool:
        raise TypeError("segments is no tensor of bools")
    if segments.shape != (length,):
        raise ValueError(f"segments has shape {list(segments.shape)}, not [{length}]")
    if initial is not None:
        raise ValueError("initial is not for segments")


def _rows(x: Tensor, dim: int) -> Tensor:
    """View a tensor as rows [n, m], n along ``dim``."""
    moved = x.movedim(dim, 0)
    return moved.reshape(len(moved), moved.shape[1:].numel())


def _back(rows: Tensor, x: Tensor, dim: int) -> Tensor:
    """View rows in the shape of ``x``."""
    return rows.reshape(x.movedim(dim, 0).shape).movedim(0, dim)


# ---- the autograd functions, of rows [n, m] ------------------------------------------------------
#
# Gradients of complex numbers have PyTorch's convention: that of y = a x is conj(a) dy. A backward
# pass has the same operations on every rank, whatever rows it has: PyTorch chooses the order of
# passes by the graph, and they exchange rows in that order.


class _Present(torch.autograd.Function):
    """The tensor itself, as one that needs a gradient: other ranks' do."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, there: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, Any]:
        return None, None


class _Sum(torch.autograd.Function):
    """y = sums of x. dx = sums of dy, from the other end."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, way: Direction) -> Tensor:
        ctx.way = way
        return _scan(x, "sum", way)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, Any]:
        _meet(ctx.way.comm)
        return _Sum.apply(dy, ctx.way.other()), None


class _Shift(torch.autograd.Function):
    """y[t] = x[t-1]; 0 before the first row. dx[t] = dy[t+1]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, way: Direction) -> Tensor:
        ctx.way = way
        row = _row_before(x, comm=way.comm, way=way)
        if not len(x):
            return x.clone()
        return torch.cat([x[1:], row] if way.reverse else [row, x[:-1]])

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, Any]:
        _meet(ctx.way.comm)
        return _Shift.apply(dy, ctx.way.other()), None


class _Recurrence(torch.autograd.Function):
    """h[t] = a[t] h[t-1] + b[t], and ``first`` comes before the first h.

    db[t] = dh[t] + a[t+1] db[t+1]; da[t] = db[t] h[t-1].
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, first: Tensor | None, way: Direction) -> Tensor:
        start = None if first is None else _plain(first).cpu()
        form: Any = {"comm": way.comm, "reverse": way.reverse, "segments": way.segments}
        h = _solve(_plain(a), _plain(b), start, **form)
        ctx.way = way
        ctx.save_for_backward(a, h, first)
        return h

    @staticmethod
    def backward(ctx: Any, dh: Tensor) -> tuple[Any, ...]:
        a, h, first = ctx.saved_tensors
        way, other = ctx.way, ctx.way.other()
        _meet(way.comm)
        db = _Recurrence.apply(_Shift.apply(a.conj(), other), dh, None, other)
        before, dfirst = _Shift.apply(h.conj(), way), None
        if way.segments is not None:  # the first element of each, in the order of the scan
            begins = way.segments.unsqueeze(1)
            if way.reverse:
                begins = _Shift.apply(begins, way)
            before = torch.where(begins, 0, before)
        if first is not None:
            is_first = torch.zeros(len(h), 1, dtype=torch.bool, device=h.device)
            if way.ranks()[:1] == [way.comm.rank]:
                is_first[-1 if way.reverse else 0] = True
            before = torch.where(is_first, first.conj(), before)
            dfirst = torch.where(is_first, a.conj() * db, 0).sum(0)
        return db * before, db, dfirst, None


class _Last(torch.autograd.Function):
    """The last row [m] of all ranks, on every rank. Its owner gets the sum of the gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, way: Direction) -> Tensor:
        ctx.way = way
        return _row_of_owner(x, comm=way.comm, way=way)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, Any]:
        _meet(ctx.way.comm)
        return _ToLast.apply(dy, ctx.way), None


class _ToLast(torch.autograd.Function):
    """Rows of zeros, of which the last one of all ranks is the sum of the ranks' x [m]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, way: Direction) -> Tensor:
        ctx.way = way
        total = _sum_for_owner(x, comm=way.comm, way=way)
        rows = x.new_zeros(way.lengths[way.comm.rank], len(x))
        if way.ranks()[-1] == way.comm.rank:
            rows[0 if way.reverse else -1] = total
        return rows

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, Any]:
        _meet(ctx.way.comm)
        return _Last.apply(dy, ctx.way), None


class _Product(torch.autograd.Function):
    """y = products of x. dx[t] = (product before t) times r[t], a recurrence from the other end.

    Inclusive: r[t] = dy[t] + x[t+1] r[t+1]. Exclusive: r[t] = s[t+1], s[t] = dy[t] + x[t] s[t+1].
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, way: Direction) -> Tensor:
        ctx.way = way
        ctx.save_for_backward(x)
        return _scan(x, "prod", way)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, Any]:
        x, way = ctx.saved_tensors[0].conj(), ctx.way
        other = way.other()._replace(exclusive=False)
        _meet(way.comm)
        before = _Product.apply(x, way._replace(exclusive=True))
        if way.exclusive:
            return before * _Shift.apply(_Recurrence.apply(x, dy, None, other), other), None
        return before * _Recurrence.apply(_Shift.apply(x, other), dy, None, other), None


class _LogSum(torch.autograd.Function):
    """y = log sums of exp(x). dx[t] = sum of dy[j] exp(x[t] - y[j]) over j from t on.

    The sums of positive and of negative dy are found as logarithms, so nothing overflows.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, way: Direction) -> Tensor:
        y = _scan(x, "logaddexp", way)
        ctx.way = way
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, Any]:
        x, y = ctx.saved_tensors
        _meet(ctx.way.comm)
        logs = torch.where(y == -torch.inf, -torch.inf, dy.abs().log() - y)
        parts = []
        for sign in (dy > 0, dy < 0):
            part = torch.where(sign, logs, -torch.inf)
            parts.append((x + _scan(part, "logaddexp", ctx.way.other())).exp())
        return parts[0] - parts[1], None


class _Extreme(torch.autograd.Function):
    """y = maxima or minima of x. An element that wins gets dy up to the next one that wins."""

    op = ""

    @classmethod
    def _forward(cls, ctx: Any, x: Tensor, way: Direction) -> Any:
        y = _scan(x, cls.op, way)
        wins = (x == y) | x.isnan()
        ctx.way = way
        ctx.save_for_backward(wins)
        if not way.indices:
            return y
        first = sum(way.lengths[: way.comm.rank])
        places = torch.arange(first, first + len(x), device=x.device).unsqueeze(1)
        none, latest = (sum(way.lengths), "min") if way.reverse else (-1, "max")
        indices = _scan(torch.where(wins, places, none), latest, way)
        ctx.mark_non_differentiable(indices)
        return y, indices

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor, *_: Any) -> tuple[Any, Any]:
        (wins,) = ctx.saved_tensors
        other = ctx.way.other()
        _meet(other.comm)
        goes_on = _Shift.apply((~wins).to(dy.dtype), other)
        return torch.where(wins, _Recurrence.apply(goes_on, dy, None, other), 0), None


class _Maximum(_Extreme):
    op = "max"

    @staticmethod
    def forward(ctx: Any, x: Tensor, way: Direction) -> Any:
        return _Maximum._forward(ctx, x, way)


class _Minimum(_Extreme):
    op = "min"

    @staticmethod
    def forward(ctx: Any, x: Tensor, way: Direction) -> Any:
        return _Minimum._forward(ctx, x, way)


_SUM = _Function("cumsum", _Sum.apply, torch.add, torch.sum)
_PRODUCT = _Function("cumprod", _Product.apply, torch.mul, torch.prod)
_LOG_SUM = _Function("logcumsumexp", _LogSum.apply, torch.logaddexp, torch.logsumexp)
_MAXIMUM = _Function("cummax", _Maximum.apply, torch.maximum, torch.amax)
_MINIMUM = _Function("cummin", _Minimum.apply, torch.minimum, torch.amin)


# ---- the exchange --------------------------------------------------------------------------------


def _scan(x: Tensor, op: str, way: Direction) -> Tensor:
    """Scan rows along axis 0."""
    comm, reverse, exclusive = way.comm, way.reverse, way.exclusive
    return scan(_plain(x), op, axis=0, comm=comm, exclusive=exclusive, reverse=reverse)


def _plain(x: Tensor) -> Tensor:
    """Return the numbers of a tensor in memory, one after the other, without its history."""
    return x.detach().resolve_conj().resolve_neg().contiguous()


@collective
def _row_before(call: Agreement, x: Tensor, *, comm: Comm, way: Direction) -> Tensor:
    """Return the row [1, m] before the first one of this rank, in scan order; zeros if none is.

    Without rows, return [0, m].
    """
    call.same = Terms({"the function": "a shift by one row", "reverse": way.reverse})
    row = torch.zeros_like(x[:1])
    sent = _plain(x[:1] if way.reverse else x[-1:]).cpu()
    received = torch.empty_like(sent)
    call.settle()
    call.begin()
    if not len(x):
        return row
    ranks, request = way.ranks(), MPI.REQUEST_NULL
    place = ranks.index(comm.rank)
    if place + 1 < len(ranks):
        request = comm.Isend([_bytes(sent), MPI.BYTE], ranks[place + 1], _TAG)
    if place > 0:
        comm.Recv([_bytes(received), MPI.BYTE], ranks[place - 1], _TAG)
        row = received.to(x.device)
    request.Wait()
    return row


@collective
def _row_of_owner(call: Agreement, x: Tensor, *, comm: Comm, way: Direction) -> Tensor:
    """Return the last row [m] of all ranks' x [n, m]; some rank has rows."""
    call.same = Terms({"the function": "the last row", "reverse": way.reverse})
    owner = way.ranks()[-1]
    row = _plain(x[:1] if way.reverse else x[-1:]).cpu()
    row = row if comm.rank == owner else torch.empty((1, x.shape[1]), dtype=x.dtype)
    call.settle()
    call.begin()
    comm.Bcast([_bytes(row), MPI.BYTE], owner)
    return row[0].to(x.device)


@collective
def _sum_for_owner(call: Agreement, x: Tensor, *, comm: Comm, way: Direction) -> Tensor:
    """Return the sum of all ranks' x [m], to the rank that has the last row."""
    call.same = Terms({"the function": "the gradient of the last row", "reverse": way.reverse})
    sent = _plain(x).cpu()
    received = torch.zeros((comm.size, len(x)), dtype=x.dtype)
    call.settle()
    call.begin()
    owner = way.ranks()[-1]
    target = [_bytes(received), MPI.BYTE] if comm.rank == owner else None
    comm.Gather([_bytes(sent), MPI.BYTE], target, owner)
    return received.sum(0).to(x.device)


_TAG = 1 << 13


def _bytes(row: Tensor) -> Any:
    return row.view(torch.uint8).numpy()


@functools.cache
def _key_of_passes() -> int:
    """Return the key of the communicator's attribute that counts its backward passes."""
    return MPI.Comm.Create_keyval()


def _meet(comm: Comm) -> None:
    """Wait until every rank is in this backward pass; raise RankError if one does not come.

    Each rank tells rank 0 that it is there, and rank 0 tells all when all are.
    """
    if comm.size == 1:
        return
    aside = gradients(comm)
    if isinstance(aside, TorchComm):
        _raise_missing(aside.find_missing())
        return
    number = 1 + (aside.Get_attr(_key_of_passes()) or 0)
    aside.Set_attr(_key_of_passes(), number)
    deadline, pause = time.monotonic() + wait_limit(), 0.0
    others = range(1, comm.size) if comm.rank == 0 else [0]
    if comm.rank > 0:
        aside.send(number, 0, _TAG)
    missing = set(others)
    while missing:
        for rank in [rank for rank in missing if aside.Iprobe(rank, _TAG)]:
            if aside.recv(source=rank, tag=_TAG) != number:
                raise RankError(f"rank {rank} has left out a backward pass, and is out of step")
            missing.discard(rank)
        if missing and time.monotonic() > deadline:
            _raise_missing(min(missing))
        time.sleep(pause)
        pause = min(1e-3, pause + 1e-5)
    if comm.rank == 0:
        for rank in others:
            aside.send(number, rank, _TAG)


def _raise_missing(rank: int | None) -> None:
    """Raise RankError if a rank is missing."""
    if rank is not None:
        raise RankError(
            f"rank {rank} did not come to a backward pass within {wait_limit():g} s ({WAIT}): the "
            "results of distscan.torch must be part of the loss on every rank"
        )
