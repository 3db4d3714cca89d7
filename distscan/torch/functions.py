"""The functions of ``distscan.torch``: their arguments, and what they return."""

import functools
from collections.abc import Callable
from operator import index
from typing import Any, NamedTuple

import torch

from ..core.steps import wait_limit
from ..mpi.agree import Agreement, Terms, collective
from ..mpi.communicators import Comm, gradients
from .dtensors import call_locally, is_dtensor
from .exchange import Direction
from .passes import Last, LogSum, Maximum, Minimum, Present, Product, Recurrence, Sum

Tensor = Any

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
    if is_dtensor(a) or is_dtensor(b):
        form |= {"comm": comm, "reverse": reverse}
        return call_locally(linear_recurrence, (a, b), dim, **form)
    (a, b), way = _begin("linear_recurrence", (a, b), dim, comm=comm, reverse=reverse, **form)
    first = None if initial is None else initial.reshape(-1)
    h = Recurrence.apply(_rows(a, dim), _rows(b, dim), first, way)
    if not return_last:
        return _back(h, b, dim)
    if way.ranks():
        first = Last.apply(h, way)
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
    if is_dtensor(x):
        return call_locally(functools.partial(_scanned, function), (x,), dim, **form)
    (x,), way = _begin(function.name, (x,), dim, **form)
    rows = _rows(x, dim)
    if way.indices:
        return tuple(_back(part, x, dim) for part in function.apply(rows, way))
    y = function.apply(rows, way)
    if not form.get("return_total"):
        return _back(y, x, dim)
    if way.ranks():
        total = Last.apply(function.join(y, rows) if way.exclusive else y, way)
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
            tensors = (Present.apply(tensors[0], there), *tensors[1:])
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


_SUM = _Function("cumsum", Sum.apply, torch.add, torch.sum)
_PRODUCT = _Function("cumprod", Product.apply, torch.mul, torch.prod)
_LOG_SUM = _Function("logcumsumexp", LogSum.apply, torch.logaddexp, torch.logsumexp)
_MAXIMUM = _Function("cummax", Maximum.apply, torch.maximum, torch.amax)
_MINIMUM = _Function("cummin", Minimum.apply, torch.minimum, torch.amin)
