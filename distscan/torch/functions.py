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
    cu_seqlens: Tensor | None = None,
    return_last: bool = False,
) -> Any:
    """Solve ``h[t] = a[t] * h[t-1] + b[t]`` along ``dim``, over all ranks.

    Parameters
    ----------
    a, b
        This rank's shards, of one shape. If their types differ, as float32 and bfloat16 may, both
        are converted to the type that PyTorch promotes them to.
    dim, comm, reverse
        As in ``cumsum``; with ``reverse``, ``h[t] = a[t] * h[t+1] + b[t]``.
    initial
        The state before the first element, of the shape of ``b`` without ``dim`` and of its type,
        the same on every rank. None is 0. Its gradient is on the rank with the first element, and 0
        on the others: add them up, as for any parameter that ranks share. With ``cu_seqlens``, a
        state for each sequence, [sequences, ...].
    segments
        Where independent recurrences begin, such as packed sequences: bools [n], n the length of
        this rank's shard along ``dim``, True at the first element of each. Not with ``initial``.
    cu_seqlens
        The same by places among the elements of all ranks: integers [sequences + 1] that do not
        fall, from 0 to the number of elements, the same on every rank. Sequence i has the elements
        ``cu_seqlens[i]`` to ``cu_seqlens[i + 1]``.
    return_last
        Whether to return the last state of all ranks, too. Not with ``cu_seqlens``.

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
    form: Any = {
        "initial": initial,
        "segments": segments,
        "cu_seqlens": cu_seqlens,
        "return_last": return_last,
    }
    if is_dtensor(a) or is_dtensor(b):
        form |= {"comm": comm, "reverse": reverse}
        return call_locally(linear_recurrence, (a, b), dim, **form)
    (a, b), way = _begin("linear_recurrence", (a, b), dim, comm=comm, reverse=reverse, **form)
    a_rows, b_rows, first = _rows(a, dim, way), _rows(b, dim, way), None
    if cu_seqlens is not None:
        way, heads, sequences = _packed(cu_seqlens, way, b_rows)
        if initial is not None:
            states = initial.to(b.dtype).reshape(len(initial), b_rows.shape[1])
            b_rows = b_rows.index_add(0, heads, a_rows[heads] * states[sequences])
    elif initial is not None:
        first = initial.to(b.dtype).reshape(-1)
    h = Recurrence.apply(a_rows, b_rows, first, way)
    if not return_last:
        return _back(h, b, dim)
    if way.ranks():
        first = Last.apply(h, way)
    elif first is None:
        first = h.sum(0)  # of no rows
    return _back(h, b, dim), first.reshape(b.movedim(dim, 0).shape[1:])


def _packed(cu_seqlens: Tensor, way: Direction, rows: Tensor) -> tuple[Direction, Tensor, Tensor]:
    """Return the direction with segments; this rank's first rows of sequences, and their numbers.

    They are first in the order of the scan. Raises ValueError on every rank alike.
    """
    ends, total = cu_seqlens.to(rows.device, torch.int64), sum(way.lengths)
    if int(ends[-1]) != total:
        raise ValueError(f"cu_seqlens ends at {int(ends[-1])}; the ranks have {total} elements")
    begin = sum(way.lengths[: way.comm.rank])
    some = ends[:-1] < ends[1:]  # empty sequences have no rows

    def here(places: Tensor) -> tuple[Tensor, Tensor]:
        mine = some & (places >= begin) & (places < begin + len(rows))
        return places[mine] - begin, mine.nonzero().squeeze(1)

    segments = torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
    segments[here(ends[:-1])[0]] = True
    heads = here(ends[1:] - 1) if way.reverse else here(ends[:-1])
    return way._replace(segments=segments), *heads


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
    rows = _rows(x, dim, way)
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
    cu_seqlens: Tensor | None = None,
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
        if tensor.shape != tensors[0].shape:
            raise ValueError(
                f"a has shape {list(tensors[0].shape)}, b {list(tensor.shape)}: they must be equal"
            )
    if dtype is None:
        dtype = _common_type(tensors)
    tensors = tuple(tensor.to(dtype) for tensor in tensors)
    shape = list(tensors[0].shape)
    length = shape.pop(dim)
    if cu_seqlens is None:
        _check_states(initial, segments, dtype, shape, length)
    else:
        _check_sequences(cu_seqlens, initial, shape)
        if segments is not None or return_last:
            raise ValueError("cu_seqlens is not for segments=, and not for return_last=")
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
            "cu_seqlens": None if cu_seqlens is None else cu_seqlens.tolist(),
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
    plain_form = initial is segments is cu_seqlens is None
    direction = Direction(
        call.comm,
        lengths,
        bool(reverse),
        bool(exclusive),
        segments,
        bool(return_indices),
        in_place=not call.several and plain_form and dim % tensors[0].ndim > 0,
    )
    if any(number % 2 for number in ranks):
        gradients(call.comm)  # made here, where all ranks are
        if not needs:
            there = torch.zeros((), requires_grad=True)
            tensors = (Present.apply(tensors[0], there), *tensors[1:])
    call.begin()
    return tensors, direction


def _common_type(tensors: tuple[Tensor, ...]) -> Any:
    """Return the type of a computation: that of all tensors; float32 for narrower ones in autocast.

    It is so for ``torch.cumsum``, too.
    """
    dtype = functools.reduce(torch.promote_types, (tensor.dtype for tensor in tensors))
    narrow = dtype in {torch.float16, torch.bfloat16}
    if narrow and torch.is_autocast_enabled(tensors[0].device.type):
        return torch.float32
    return dtype


def _check_sequences(cu_seqlens: Any, initial: Any, shape: list[int]) -> None:
    """Check the ends of packed sequences, and their first states; raise TypeError or ValueError."""
    if not isinstance(cu_seqlens, torch.Tensor) or cu_seqlens.dtype not in {
        torch.int32,
        torch.int64,
    }:
        raise TypeError("cu_seqlens is no tensor of int32 or int64")
    if (
        cu_seqlens.ndim != 1
        or not len(cu_seqlens)
        or cu_seqlens[0]
        or (cu_seqlens.diff() < 0).any()
    ):
        raise ValueError("cu_seqlens must be [sequences + 1], begin with 0, and not fall")
    states = [len(cu_seqlens) - 1, *shape]
    if initial is not None and not isinstance(initial, torch.Tensor):
        raise TypeError(f"initial is a tensor of PyTorch, not {type(initial).__name__}")
    if initial is not None and [*initial.shape] != states:
        raise ValueError(f"initial has shape {list(initial.shape)}; the states have {states}")


def _check_states(
    initial: Any, segments: Any, dtype: torch.dtype, shape: list[int], length: int
) -> None:
    """Check the first state, and where recurrences begin; raise TypeError or ValueError."""
    if initial is not None and not isinstance(initial, torch.Tensor):
        raise TypeError(f"initial is a tensor of PyTorch, not {type(initial).__name__}")
    if initial is not None and (
        torch.promote_types(initial.dtype, dtype) != dtype or [*initial.shape] != shape
    ):
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


def _rows(x: Tensor, dim: int, way: Direction) -> Tensor:
    """View a tensor as rows [n, m], n along ``dim``; in place as [outer, n, m] where that is done.

    So it is on one rank, without a first state and segments. Else [outer, n, m] with outer > 1 is
    copied.
    """
    dim %= x.ndim
    if way.in_place:
        return x.reshape(x.shape[:dim].numel(), x.shape[dim], x.shape[dim + 1 :].numel())
    moved = x.movedim(dim, 0)
    return moved.reshape(len(moved), moved.shape[1:].numel())


def _back(rows: Tensor, x: Tensor, dim: int) -> Tensor:
    """View rows in the shape of ``x``."""
    if rows.ndim == 3:
        return rows.reshape(x.shape)
    return rows.reshape(x.movedim(dim, 0).shape).movedim(0, dim)


_SUM = _Function("cumsum", Sum.apply, torch.add, torch.sum)
_PRODUCT = _Function("cumprod", Product.apply, torch.mul, torch.prod)
_LOG_SUM = _Function("logcumsumexp", LogSum.apply, torch.logaddexp, torch.logsumexp)
_MAXIMUM = _Function("cummax", Maximum.apply, torch.maximum, torch.amax)
_MINIMUM = _Function("cummin", Minimum.apply, torch.minimum, torch.amin)
