"""The arguments of the functions: what all ranks agree on, and tensors as rows."""

import functools
from operator import index
from typing import Any

import torch

from ..core.errors import DisagreementError
from ..core.steps import wait_limit
from ..engine.shard_scan import PeerAccess
from ..mpi.agree import Agreement, Terms, collective, mark_collective
from ..mpi.communicators import Comm, gradients, in_backward_pass
from .exchange import Direction
from .passes import Present

Tensor = Any
_SITE = 48  # the bit of a contribution from which on it has the number of the call in a graph


def begin(
    name: str, tensors: tuple[Tensor, ...], dim: int, *, comm: Comm | None = None, **form: Any
) -> tuple[tuple[Tensor, ...], Direction]:
    """Check the arguments; return tensors that need gradients on every rank or on none.

    For ``form`` see ``_begin``. A checkpoint runs the forward pass again inside of a backward pass,
    which a rank may leave out.
    """
    if torch._C._current_graph_task_id() != -1:
        comm = in_backward_pass(comm)
    return _begin(name, tensors, dim, comm=comm, **form)


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
    site: int = -1,
    needs: bool | None = None,
    enabled: bool | None = None,
) -> tuple[tuple[Tensor, ...], Direction]:
    """Do as ``begin``.

    In a graph of ``torch.compile``, ``site`` is the number of the call among those of the graph,
    from 0 on. ``needs`` and ``enabled`` are then whether the tensors need gradients, and whether
    gradients are enabled: an operator does not see it.
    """
    dim, shapes = index(dim), [getattr(tensor, "shape", None) for tensor in tensors]
    matrices = name == "linear_recurrence" and _are_matrices(*shapes)
    enabled = torch.is_grad_enabled() if enabled is None else enabled
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} takes tensors of PyTorch, not {type(tensor).__name__}")
        if not -tensor.ndim <= dim < tensor.ndim:
            raise IndexError(f"dim is {dim}; the tensor has {tensor.ndim} dimensions")
        if tensor.shape != tensors[0].shape and not matrices:
            raise ValueError(
                f"a has shape {list(tensors[0].shape)}, b {list(tensor.shape)}: they must be equal"
                f"; or [..., k, k] and [..., k], k up to {_MOST_MATRIX}"
            )
    if matrices and dim % tensors[-1].ndim == tensors[-1].ndim - 1:
        raise IndexError(f"dim is {dim}: that of the vectors b, which matrices a multiply")
    dtype = working_type(name, tensors, dtype)
    tensors = tuple(tensor.to(dtype) for tensor in tensors)
    shape = list(tensors[-1].shape)
    length = shape.pop(dim)
    if cu_seqlens is None:
        _check_states(initial, segments, dtype, shape, length)
        if name == "linear_recurrence" and not (initial is None or segments is None):
            raise ValueError("initial is not for segments")
    else:
        _check_sequences(cu_seqlens, initial, shape)
        if segments is not None:
            raise ValueError("cu_seqlens is not for segments=")
    values = (
        f"distscan.torch.{name}",
        dim % tensors[-1].ndim,
        matrices,
        # GPUs have a backward pass of their own.
        tensors[0].device.type if name == "linear_recurrence" else "any",
        tensors[0].dtype,
        tuple(shape),
        bool(exclusive),
        bool(reverse),
        initial is not None,
        segments is not None,
        bool(return_last),
        bool(return_total),
        bool(return_indices),
        enabled,
    )
    same = _terms(*values)
    ends = {} if cu_seqlens is None else {"cu_seqlens": cu_seqlens.tolist()}
    call.same = Terms(same | ends) if ends else same
    wait_limit()  # a wrong setting is a fault here, not in the backward pass
    if needs is None:
        inputs = tensors if initial is None else (*tensors, initial)
        needs = enabled and any(tensor.requires_grad for tensor in inputs)
    gpu = _gpu(call.comm, tensors[-1]) if call.several else _NO_GPU
    call.contribution = (site + 1 << _SITE) + (length << _LENGTH) + (gpu << 1) + needs
    call.settle()
    ranks = _without_sites(name, call.contributions())
    lengths = tuple(number >> _LENGTH for number in ranks)
    lowest = min(number >> 1 & 3 for number in ranks)
    plain_form = initial is segments is cu_seqlens is None
    known = lowest == _PROVEN
    direction = Direction(
        call.comm,
        lengths,
        bool(reverse),
        bool(exclusive),
        segments,
        bool(return_indices),
        in_place=not (call.several or matrices) and plain_form and dim % tensors[-1].ndim > 0,
        peers=None if lowest == _NO_GPU else peers_of(call.comm, tensors[-1], known=known),
    )
    if any(number & 1 for number in ranks):
        gradients(call.comm)  # made here, where all ranks are
        if not needs:
            there = torch.zeros((), requires_grad=True)
            tensors = (Present.apply(tensors[0], there), *tensors[1:])
    return tensors, direction


# Whether GPUs may exchange totals themselves, as a rank contributes it, beside its length.
_NO_GPU, _UNPROVEN, _PROVEN = range(3)
_LENGTH = 3  # the bit of a contribution from which on it has the length


def _gpu(comm: Comm, x: Tensor) -> int:
    """Return what this rank knows of its GPU; empty shards exchange no totals."""
    if not (x.is_cuda and x.numel()):
        return _NO_GPU
    from ..engine.peers import is_proven  # noqa: PLC0415 - it needs CuPy

    return _PROVEN if is_proven(comm, x.device.index) else _UNPROVEN


def peers_of(comm: Comm, x: Tensor, *, known: bool) -> PeerAccess:
    """Return whether the ranks' GPUs can exchange totals themselves; collective, if not known."""
    from ..engine.peers import access  # noqa: PLC0415 - it needs CuPy

    return access(comm, x.device.index, known=known)


_TERMS = (
    "the function",
    "dim",
    "whether a are matrices",
    "the device",
    "the dtype",
    "the shape beyond dim",
    "exclusive",
    "reverse",
    "whether there is an initial state",
    "whether there are segments",
    "return_last",
    "return_total",
    "return_indices",
    "whether gradients are enabled",
)


@functools.lru_cache(maxsize=64, typed=True)
def _terms(*values: Any) -> Terms:
    """Return the terms of calls with such arguments: to write and digest them takes 30 us."""
    return Terms(zip(_TERMS, values, strict=True))


_MOST_MATRIX = 4  # rows


def _are_matrices(a: Any, b: Any) -> bool:
    """Return whether the shapes are those of small matrices and vectors."""
    if None in {a, b} or len(a) != len(b) + 1 or len(b) < 2:
        return False
    return bool(a == (*b, b[-1]) and b[-1] <= _MOST_MATRIX)


def _without_sites(name: str, numbers: list[int]) -> list[int]:
    """Return the contributions of all ranks without the numbers of their calls in graphs.

    Raises on every rank alike if these differ, or if only some ranks' tensors need gradients.
    """
    sites = {number >> _SITE for number in numbers} - {0}
    ranks = [number % (1 << _SITE) for number in numbers]
    if len(sites) > 1:
        raise mark_collective(
            DisagreementError(
                f"the ranks are at different calls of {name} in a graph of torch.compile: they "
                "must compile one program"
            )
        )
    if sites and len({number & 1 for number in ranks}) > 1:
        raise mark_collective(
            ValueError(f"{name} in torch.compile: all ranks' tensors need gradients, or none does")
        )
    return ranks


def working_type(name: str, tensors: tuple[Tensor, ...], dtype: Any) -> Any:
    """Return the type of a computation and of its result, as PyTorch's functions choose it.

    It is ``dtype``, or that of all tensors; in autocast, float32 for narrower floats. Integers and
    bools become int64 in sums and products, and floats of the default type in logarithms of sums
    and in recurrences.
    """
    if dtype is None:
        dtype = functools.reduce(torch.promote_types, (tensor.dtype for tensor in tensors))
        narrow = dtype in {torch.float16, torch.bfloat16}
        if narrow and torch.is_autocast_enabled(tensors[0].device.type):
            return torch.float32
    if dtype.is_floating_point or dtype.is_complex or name in {"cummax", "cummin"}:
        return dtype
    return torch.int64 if name in {"cumsum", "cumprod"} else torch.get_default_dtype()


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


def as_rows(x: Tensor, dim: int, way: Direction) -> Tensor:
    """View a tensor as rows [n, m], n along ``dim``; in place as [outer, n, m] where that is done.

    So it is on one rank, without a first state and segments. Else [outer, n, m] with outer > 1 is
    copied.
    """
    dim %= x.ndim
    if way.in_place:
        return x.reshape(x.shape[:dim].numel(), x.shape[dim], x.shape[dim + 1 :].numel())
    if x.shape[:dim].numel() == 1:
        return x.reshape(x.shape[dim], x.shape[dim + 1 :].numel())
    moved = x.movedim(dim, 0)
    return moved.reshape(len(moved), moved.shape[1:].numel())


def from_rows(rows: Tensor, x: Tensor, dim: int) -> Tensor:
    """View rows in the shape of ``x``."""
    if rows.ndim == 3 or x.shape[: dim % x.ndim].numel() == 1:
        return rows.reshape(x.shape)
    return rows.reshape(x.movedim(dim, 0).shape).movedim(0, dim)
