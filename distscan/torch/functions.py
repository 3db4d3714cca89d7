"""The functions of ``distscan.torch``: their arguments, and what they return."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..mpi.communicators import Comm
from .arguments import as_rows, begin, from_rows
from .compiled import call_compiled, is_one_node
from .dtensors import call_locally, is_dtensor
from .exchange import Direction, heads_in_order
from .passes import (
    Last,
    LogSum,
    MatrixRecurrence,
    Maximum,
    Minimum,
    Product,
    Recurrence,
    Shift,
    Sum,
)
from .signatures import with_indices, with_last, with_total


@with_total
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


@with_total
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


@with_total
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


@with_indices
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


@with_indices
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


def scan(
    x: Tensor,
    dim: int,
    op: str = "sum",
    *,
    comm: Comm | None = None,
    exclusive: bool = False,
    reverse: bool = False,
    initial: Tensor | None = None,
    segments: Tensor | None = None,
) -> Tensor:
    """Scan ``x`` along ``dim`` over all ranks. See ``cumsum``.

    Parameters
    ----------
    op
        "sum", "prod", "max", "min" or "logaddexp".
    exclusive
        Whether each result leaves out its own element; the first one is ``initial``, or the
        operator's identity.
    initial
        What comes before the first element, and before each segment: of the shape of ``x`` without
        ``dim``, the same on every rank. Each rank has the gradient of its own results: add them up,
        as for any parameter that ranks share.
    segments
        Where independent scans begin, as in ``linear_recurrence``.

    Examples
    --------
    Two independent sums, on one rank:

    >>> import distscan.torch, torch
    >>> heads = torch.tensor([True, False, True])
    >>> distscan.torch.scan(torch.tensor([1.0, 2.0, 3.0]), 0, segments=heads)
    tensor([1., 3., 3.])
    """
    form: Any = {"comm": comm, "exclusive": exclusive, "reverse": reverse}
    function = _OPERATORS.get(op) if isinstance(op, str) else None
    plain = initial is segments is None and not (exclusive and function not in {_SUM, _PRODUCT})
    if function is not None and plain:
        return _scanned(function, x, dim, **form)
    return _scanned_by(x, dim, op, initial=initial, segments=segments, **form)


@torch.compiler.disable
def _scanned_by(x: Tensor, dim: int, op: str, **form: Any) -> Tensor:
    """Scan ``x`` exclusively, from an initial value, or in segments.

    Sums and products in segments are recurrences, which have their gradients.
    """
    if is_dtensor(x):
        return call_locally(_scanned_by, (x,), dim, op=op, **form)
    function = _OPERATORS.get(op) if isinstance(op, str) else None
    name = f"scan by {op!r}" if function is None else function.name
    (x,), way = begin(name, (x,), dim, **form)
    if function is None:
        raise ValueError(f"op is {op!r}; it is one of {', '.join(_OPERATORS)}")
    inclusive, rows = way._replace(exclusive=False), as_rows(x, dim, way)
    starts = torch.zeros(rows.shape[-2], 1, dtype=torch.bool, device=x.device)
    if way.segments is not None:
        starts = heads_in_order(way).clone()
    if way.ranks()[:1] == [way.comm.rank]:
        starts[-1 if way.reverse else 0] = True
    numbers = x.is_floating_point() or x.is_complex()
    if way.segments is not None and op in _ADDING and numbers:
        terms = rows if op == "sum" else torch.where(starts, rows, 0)
        factors = torch.ones_like(rows) if op == "sum" else torch.where(starts, 1, rows)
        y = Recurrence.apply(factors, terms, None, inclusive)
    else:
        y = function.apply(rows, inclusive)
    if way.exclusive:
        y = torch.where(starts, function.identity(y.dtype), Shift.apply(y, inclusive))
    if form["initial"] is not None:
        y = function.join(form["initial"].to(y).reshape(-1), y)
    return from_rows(y, x, dim)


@with_last
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
        are converted to the type that PyTorch promotes them to. For vectors ``b`` [..., k], k up to
        4, ``a`` may be matrices [..., k, k], which multiply them; ``dim`` is then another one.
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
        Whether to return the last state of all ranks, too; with ``cu_seqlens``, those of sequences.

    Returns
    -------
    tensor, of the shape of ``b``
        This rank's part of h.
    last
        With ``return_last``: the state after the last element, of the shape of ``initial``, the
        same on every rank. If there are no elements, it is ``initial``, or 0.

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
        "comm": comm,
        "reverse": reverse,
        "initial": initial,
        "segments": segments,
        "cu_seqlens": cu_seqlens,
        "return_last": return_last,
    }
    if is_one_node((a, b), dim, form):
        return call_compiled("linear_recurrence", (a, b), dim, **form)
    return _solved(a, b, dim, **form)


@torch.compiler.disable
def _solved(a: Tensor, b: Tensor, dim: int, **form: Any) -> Any:
    """Solve a recurrence by its autograd function; return the result, and what is asked for."""
    if is_dtensor(a) or is_dtensor(b):
        return call_locally(_solved, (a, b), dim, **form)
    (a, b), way = begin("linear_recurrence", (a, b), dim, **form)
    dim %= b.ndim
    a_rows, b_rows, first = as_rows(a, dim, way), as_rows(b, dim, way), None
    initial, cu_seqlens = form["initial"], form["cu_seqlens"]
    if cu_seqlens is not None:
        packed = _Packed.of(cu_seqlens, way, b_rows)
        states = None if initial is None else initial.to(b).reshape(len(initial), -1)
        h = packed.solve(a_rows, b_rows, states)
        if not form["return_last"]:
            return from_rows(h, b, dim)
        shape = b.movedim(dim, 0).shape[1:]
        return from_rows(h, b, dim), packed.last(h, states).reshape(-1, *shape)
    if initial is not None:
        first = initial.to(b).reshape(-1)
    h = _solve(a_rows, b_rows, first, way)
    if not form["return_last"]:
        return from_rows(h, b, dim)
    if way.ranks():
        first = Last.apply(h, way)
    elif first is None:
        first = h.sum(0)  # of no rows
    return from_rows(h, b, dim), first.reshape(b.movedim(dim, 0).shape[1:])


def _solve(a: Tensor, b: Tensor, first: Tensor | None, way: Direction) -> Tensor:
    """Solve the recurrences of rows b [n, m], with factors a [n, m], or matrices [n, m * k]."""
    if a.shape == b.shape:
        return Recurrence.apply(a, b, first, way)
    if first is not None:  # in the graph of every rank
        rows = [len(b) - 1 if way.reverse else 0] if way.ranks()[:1] == [way.comm.rank] else []
        place = torch.tensor(rows, dtype=torch.int64, device=b.device)
        b = b.index_add(0, place, _times(a[place], first.expand(len(rows), -1)))
    matrices, vectors = _as_matrices(a, b)
    return MatrixRecurrence.apply(matrices, vectors, way).reshape(b.shape)


def _times(a: Tensor, h: Tensor) -> Tensor:
    """Return products of rows h [n, m] with factors [n, m], or with matrices [n, m * k]."""
    if a.shape == h.shape:
        return a * h
    matrices, vectors = _as_matrices(a, h)
    return (matrices @ vectors.unsqueeze(-1)).reshape(h.shape)


def _as_matrices(a: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """Return views [n, m / k, k, k] of a [n, m * k], and [n, m / k, k] of h [n, m]."""
    size = a.shape[1] // h.shape[1]
    vectors = h.reshape(len(h), h.shape[1] // size, size)
    return a.reshape(*vectors.shape, size), vectors


class _Packed(NamedTuple):
    """Packed sequences, which may lie over ranks in any way; some may be empty."""

    way: Direction  # with segments
    firsts: tuple[Tensor, Tensor]  # the rows of this rank that are a sequence's first; its number
    lasts: tuple[Tensor, Tensor]  # those that are a sequence's last, in the order of the scan
    some: Tensor  # bools [sequences]: whether a sequence has rows

    @classmethod
    def of(cls, cu_seqlens: Tensor, way: Direction, rows: Tensor) -> "_Packed":
        """Find the rows; raise ValueError on every rank alike."""
        ends, total = cu_seqlens.to(rows.device, torch.int64), sum(way.lengths)
        if int(ends[-1]) != total:
            raise ValueError(f"cu_seqlens ends at {int(ends[-1])}; the ranks have {total} elements")
        start, some = sum(way.lengths[: way.comm.rank]), ends[:-1] < ends[1:]

        def here(places: Tensor) -> tuple[Tensor, Tensor]:
            mine = some & (places >= start) & (places < start + len(rows))
            return places[mine] - start, mine.nonzero().squeeze(1)

        segments = torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
        lowest, highest = here(ends[:-1]), here(ends[1:] - 1)
        segments[lowest[0]] = True
        order = (highest, lowest) if way.reverse else (lowest, highest)
        return cls(way._replace(segments=segments), *order, some)

    def solve(self, a: Tensor, b: Tensor, states: Tensor | None) -> Tensor:
        """Solve the recurrences of rows, from the first states [sequences, m]."""
        if states is not None:
            rows, sequences = self.firsts
            b = b.index_add(0, rows, _times(a[rows], states[sequences]))
        return _solve(a, b, None, self.way)

    def last(self, h: Tensor, states: Tensor | None) -> Tensor:
        """Return the last states [sequences, m], the same on every rank.

        Each has a row on one rank, so their sum over the ranks is exact.
        """
        rows, sequences = self.lasts
        own = h.new_zeros(len(self.some), h.shape[1]).index_add(0, sequences, h[rows])
        comm = self.way.comm
        one = Direction(comm, (1,) * comm.size, reverse=False)
        last = Last.apply(Sum.apply(own.reshape(1, -1), one), one).reshape(own.shape)
        return last if states is None else torch.where(self.some.unsqueeze(1), last, states)


class _Function(NamedTuple):
    """A function of this module, of one tensor."""

    name: str
    apply: Callable[..., Any]  # of the autograd function
    join: Callable[[Tensor, Tensor], Tensor]  # of a result and an element
    reduce: Callable[..., Tensor]
    identity: Callable[[Any], Any]  # of a type


def _scanned(function: _Function, x: Tensor, dim: int, **form: Any) -> Any:
    """Scan ``x``: by one operator in a graph of ``torch.compile``, if it can."""
    if is_one_node((x,), dim, form):
        return call_compiled(function.name, (x,), dim, **form)
    return _scanned_now(function, x, dim, **form)


@torch.compiler.disable
def _scanned_now(function: _Function, x: Tensor, dim: int, **form: Any) -> Any:
    """Scan the rows of ``x`` by an autograd function; return the results, and what is asked for."""
    if is_dtensor(x):
        return call_locally(functools.partial(_scanned_now, function), (x,), dim, **form)
    (x,), way = begin(function.name, (x,), dim, **form)
    rows = as_rows(x, dim, way)
    if way.indices:
        return tuple(from_rows(part, x, dim) for part in function.apply(rows, way))
    y = function.apply(rows, way)
    if not form.get("return_total"):
        return from_rows(y, x, dim)
    if way.ranks():
        total = Last.apply(function.join(y, rows) if way.exclusive else y, way)
    else:
        total = function.reduce(y, 0)  # of no rows
    return from_rows(y, x, dim), total.reshape(x.movedim(dim, 0).shape[1:])


def _lowest(dtype: Any) -> Any:
    if dtype == torch.bool:
        return False
    return -torch.inf if dtype.is_floating_point else torch.iinfo(dtype).min


def _highest(dtype: Any) -> Any:
    if dtype == torch.bool:
        return True
    return torch.inf if dtype.is_floating_point else torch.iinfo(dtype).max


def _larger(earlier: Tensor, later: Tensor) -> Tensor:
    """Return the maximum; of equal ones the later, which then has the gradient."""
    return torch.where((earlier > later) | earlier.isnan(), earlier, later)


def _smaller(earlier: Tensor, later: Tensor) -> Tensor:
    return torch.where((earlier < later) | earlier.isnan(), earlier, later)


def _log_add(earlier: Tensor, later: Tensor) -> Tensor:
    """Return the logarithm of the sum; the gradient of -inf is no NaN."""
    nothing = (earlier == -torch.inf) | (later == -torch.inf)
    both = torch.logaddexp(torch.where(nothing, 0, earlier), torch.where(nothing, 0, later))
    return torch.where(nothing, _larger(earlier, later), both)


_SUM = _Function("cumsum", Sum.apply, torch.add, torch.sum, lambda dtype: 0)
_PRODUCT = _Function("cumprod", Product.apply, torch.mul, torch.prod, lambda dtype: 1)
_LOG_SUM = _Function("logcumsumexp", LogSum.apply, _log_add, torch.logsumexp, _lowest)
_MAXIMUM = _Function("cummax", Maximum.apply, _larger, torch.amax, _lowest)
_MINIMUM = _Function("cummin", Minimum.apply, _smaller, torch.amin, _highest)
_ADDING = {"sum", "prod"}  # the operators with exclusive scans and segments of their own
_OPERATORS = {
    "sum": _SUM,
    "prod": _PRODUCT,
    "max": _MAXIMUM,
    "min": _MINIMUM,
    "logaddexp": _LOG_SUM,
}
