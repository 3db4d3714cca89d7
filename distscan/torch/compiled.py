"""The functions in graphs of ``torch.compile``: each is one operator, and its gradient another.

The compiler calls an operator as it is, and knows the shapes of its results. The operators run the
forward and backward passes of ``passes``. Second derivatives are for calls outside of a graph.

A compiler may change the order of operators that do not depend on each other, and not in the same
way on every rank. So each call of a graph has a number there, which the ranks compare.
"""

import itertools
import math
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import library
from torch._guards import TracingContext

from ..mpi.communicators import MPI, Comm, communicator
from ..mpi.torch_group import TorchComm
from .arguments import as_rows, begin, from_rows, peers_of, working_type
from .exchange import Direction, wide_type
from .passes import LogSum, Maximum, Minimum, Product, Recurrence, Sum

Tensor = Any


def is_one_node(tensors: tuple[Tensor, ...], dim: Any, form: dict[str, Any]) -> bool:
    """Return whether a call is compiled, as one operator.

    Other calls are made between two graphs. So are those with wrong arguments: there, all ranks
    raise. In a graph, one rank alone would.
    """
    if not torch.compiler.is_compiling():
        return False
    given = [*tensors, *(form[word] for word in _TENSORS if form.get(word) is not None)]
    dtype = form.get("dtype")
    return (
        all(type(x) in {torch.Tensor, torch.nn.Parameter} for x in given)  # no DTensor
        and len({x.ndim for x in tensors}) == 1  # no matrices
        and isinstance(dim, int)
        and (dtype is None or isinstance(dtype, torch.dtype))
        and form.get("cu_seqlens") is None
        and not form.get("return_total")
        and not form.get("return_last")
    )


def call_compiled(name: str, tensors: tuple[Tensor, ...], dim: int, **form: Any) -> Any:
    """Call a function in a graph that is being compiled."""
    dtype = working_type(name, tensors, form.get("dtype"))
    given, words = [tensor.to(dtype) for tensor in tensors], f"{name} {int(dim)} {_RESULTS}"
    enabled = torch.is_grad_enabled()
    for word in _OPTIONS:
        words += f" {word}" if form.get(word) else ""
    for word in _TENSORS:
        if form.get(word) is not None:
            given.append(form[word])
            words += f" {word}"
    words += " enabled" if enabled else ""
    needs = enabled and any(tensor.requires_grad for tensor in given)
    results = torch.ops.distscan.scan(given, words, _name_of(form.get("comm")), _site(), needs)
    return (results[0], results[1]) if form.get("return_indices") else results[0]


#: PyTorch keeps graphs on disk: this changes when the results of the operators do.
_RESULTS = "results-2"
_OPTIONS = ("reverse", "exclusive", "return_indices")
_TENSORS = ("initial", "segments")  # the last ones that an operator gets, if they are given


# ---- what is a constant of a graph ---------------------------------------------------------------

_torch_comms: dict[int, TorchComm] = {}
_sites = weakref.WeakKeyDictionary[TracingContext, Any]()


@torch.compiler.assume_constant_result
def _site() -> int:
    """Return the number of this call in its graph; -1 where the compiler has left the graph."""
    graph = TracingContext.try_get()
    return -1 if graph is None else int(next(_sites.setdefault(graph, itertools.count())))


@torch.compiler.assume_constant_result
def _name_of(comm: Any) -> str:
    """Return a name by which an operator finds the ranks, and which tells their number.

    PyTorch keeps compiled graphs on disk. The number of ranks is part of a graph.
    """
    ranks = communicator(comm).size
    if comm is None:
        return f"{ranks} default"
    if isinstance(comm, TorchComm):  # such as ``Plan.comm``
        _torch_comms[id(comm)] = comm
        return f"{ranks} torch {id(comm)}"
    group = getattr(comm, "group_name", None)
    return f"{ranks} mpi {comm.py2f()}" if group is None else f"{ranks} group {group}"


def _find(name: str) -> Comm:
    """Return the communicator of a name."""
    _, kind, *which = name.split(maxsplit=2)
    comm: Any = None
    if kind == "torch":
        comm = _torch_comms[int(which[0])]
    elif kind == "mpi":
        comm = MPI.Intracomm.f2py(int(which[0]))
    elif kind == "group":
        from torch.distributed.distributed_c10d import _resolve_process_group  # noqa: PLC0415

        comm = _resolve_process_group(which[0])
    return communicator(comm)


class _Form(NamedTuple):
    """What an operator is asked for. The operator gets it as a text, such as "cumsum 1 reverse"."""

    function: str
    dim: int
    words: list[str]

    @classmethod
    def of(cls, text: str) -> "_Form":
        """Read a text."""
        function, dim, *words = text.split()
        return cls(function, int(dim), words)

    @property
    def inputs(self) -> int:
        """The number of tensors that are joined over the ranks."""
        return 2 if self.function == "linear_recurrence" else 1

    @property
    def marks_winners(self) -> bool:
        """Whether the last result says which elements have won."""
        return self.function in {"cummax", "cummin"}

    @property
    def has_state(self) -> bool:
        """Whether the last result is the state before a rank's first element."""
        return self.function == "linear_recurrence" and "segments" not in self.words

    def split(self, tensors: list[Tensor]) -> tuple[list[Tensor], Any, Any]:
        """Return the tensors without the last ones: the first state and the segments, or None."""
        rest = list(tensors)
        segments = rest.pop() if "segments" in self.words else None
        initial = rest.pop() if "initial" in self.words else None
        return rest, initial, segments

    def rows(self, tensors: list[Tensor], initial: Any, way: Direction) -> list[Tensor]:
        """Return the arguments of a pass."""
        rows = [as_rows(tensor, self.dim, way) for tensor in tensors]
        if self.function == "linear_recurrence":
            rows.append(None if initial is None else initial.to(rows[0]).reshape(-1))
        return rows

    def saved(self, kept: list[Tensor], initial: Any, way: Direction) -> list[Any]:
        """Return what a pass has saved."""
        if self.function != "linear_recurrence":
            return self.rows(kept, initial, way)
        rows = self.rows(kept[:2], initial, way)
        several = self.has_state and len(way.lengths) > 1
        return [*rows, kept[-1] if several else rows[-1]]

    def state(self, x: Tensor) -> Tensor:
        """Return the state 0 before the first element of ``x``."""
        shape = list(x.shape)
        del shape[self.dim]
        return x.new_zeros(math.prod(shape), dtype=wide_type(x.dtype))


# ---- the operators -------------------------------------------------------------------------------


class _Context:
    """What autograd's context is to a pass."""

    saved_tensors: tuple[Any, ...] = ()
    way: Any = None
    needs_input_grad = (True,)

    def save_for_backward(self, *tensors: Tensor) -> None:
        self.saved_tensors = tensors

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """Do nothing."""


class _Pass(NamedTuple):
    """An autograd function, and what its backward pass needs of the inputs and of the results."""

    function: Any
    keep: Callable[[list[Tensor], list[Tensor]], list[Tensor]]


_PASSES = {
    "cumsum": _Pass(Sum, lambda inputs, results: []),
    "cumprod": _Pass(Product, lambda inputs, results: inputs),
    "logcumsumexp": _Pass(LogSum, lambda inputs, results: [*inputs, results[0]]),
    "cummax": _Pass(Maximum, lambda inputs, results: results[-1:]),
    "cummin": _Pass(Minimum, lambda inputs, results: results[-1:]),
    "linear_recurrence": _Pass(
        Recurrence, lambda inputs, results: [inputs[0], *results, *inputs[2:]]
    ),
}


@library.custom_op("distscan::scan", mutates_args=())
def _scan(
    tensors: list[torch.Tensor], form: str, comm: str, site: int, needs: bool
) -> list[torch.Tensor]:
    """Return the results, what else the backward pass needs, and what it needs of the ranks.

    The last is the lengths of their shards, and whether their GPUs may exchange totals themselves.
    """
    asked = _Form.of(form)
    inputs, initial, segments = asked.split(tensors)
    options = {word: word in asked.words for word in _OPTIONS}
    with torch.no_grad():
        inputs, way = begin(  # type: ignore[assignment]
            asked.function,
            tuple(inputs),
            asked.dim,
            comm=_find(comm),
            initial=initial,
            segments=segments,
            site=site,
            needs=needs,
            enabled="enabled" in asked.words,
            **options,
        )
        context = _Context()
        made = _PASSES[asked.function].function.forward(
            context, *asked.rows(inputs, initial, way), way
        )
        made = made if isinstance(made, tuple) else (made,)
        made = (*made, *context.saved_tensors) if asked.marks_winners else made
        results = [from_rows(rows, inputs[0], asked.dim).contiguous() for rows in made]
        if asked.has_state:
            *_, state = context.saved_tensors
            none = asked.state(inputs[0])
            results.append(none if state is None else state.to(none.dtype, copy=True))
        by_gpus = way.peers is not None
        ranks = torch.tensor([*way.lengths, by_gpus], dtype=torch.int64, device="cpu")
        return [*results, ranks]


@_scan.register_fake
def _(tensors: list[Tensor], form: str, comm: str, site: int, needs: bool) -> list[Tensor]:
    x, asked = tensors[0], _Form.of(form)
    types = [x.dtype]
    types += [torch.int64] if "return_indices" in asked.words else []
    types += [torch.bool] if asked.marks_winners else []
    results = [torch.empty(x.shape, dtype=dtype, device=x.device) for dtype in types]
    results += [asked.state(x)] if asked.has_state else []
    ranks = 1 + int(comm.split(maxsplit=1)[0])
    return [*results, torch.empty(ranks, dtype=torch.int64, device="cpu")]


@library.custom_op("distscan::gradient", mutates_args=())
def _gradient(
    dy: torch.Tensor, kept: list[torch.Tensor], lengths: torch.Tensor, form: str, comm: str
) -> list[torch.Tensor]:
    """Return the gradients of the inputs, and of the first state if there is one."""
    asked, (*ranks, by_gpus) = _Form.of(form), lengths.tolist()
    tensors, initial, segments = asked.split(kept)
    way = Direction(
        _find(comm),
        tuple(ranks),
        "reverse" in asked.words,
        "exclusive" in asked.words,
        segments,
        in_place=len(ranks) == 1 and initial is segments is None and asked.dim % dy.ndim > 0,
    )
    if by_gpus:
        way = way._replace(peers=peers_of(way.comm, dy, known=True))
    with torch.no_grad():
        context = _Context()
        context.way, context.saved_tensors = way, tuple(asked.saved(tensors, initial, way))
        found = _PASSES[asked.function].function.backward(context, as_rows(dy, asked.dim, way))
        gradients = [from_rows(rows, dy, asked.dim).contiguous() for rows in found[: asked.inputs]]
        if initial is not None:
            gradients.append(found[2].reshape(initial.shape).to(initial))
        return gradients


@_gradient.register_fake
def _(dy: Tensor, kept: list[Tensor], lengths: Tensor, form: str, comm: str) -> list[Tensor]:
    asked = _Form.of(form)
    _, initial, _ = asked.split(kept)
    shape: Any = {"dtype": dy.dtype, "device": dy.device}
    gradients = [torch.empty(dy.shape, **shape) for _ in range(asked.inputs)]
    return gradients if initial is None else [*gradients, torch.empty_like(initial)]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    tensors, form, comm, _, _ = inputs
    *results, lengths = output
    ctx.save_for_backward(*_PASSES[_Form.of(form).function].keep(tensors, results), lengths)
    ctx.form, ctx.tensors = (form, comm), len(tensors)


def _backward(ctx: Any, gradients: list[Tensor]) -> tuple[Any, ...]:
    *kept, lengths = ctx.saved_tensors
    found: list[Any] = torch.ops.distscan.gradient(gradients[0], kept, lengths, *ctx.form)
    found = [*found, *[None] * (ctx.tensors - len(found))]  # segments have no gradient
    return found, None, None, None, None


_scan.register_autograd(_backward, setup_context=_keep)
