"""``--gradients``: forward and backward passes of distscan.torch, beside PyTorch's own.

One rank has [8, 2^16, 256] float32, scanned along the middle. Several ranks have [1, 2^20, 256] in
all. The bytes are those that each pass must move; n are those of one array of the rank::

                            one rank                     several: the shard is read twice
    cumsum                  x; y                  2 n    x, x; y                       3 n
    its backward pass       dy; dx                2 n    dy, dy; dx                    3 n
    linear recurrence       a, b; h               3 n    a, b, a, b; h                 5 n
    its backward pass       a, h, dh; da, db      5 n    a, dh, a, h, dh; da, db       7 n

PyTorch's ``associative_scan`` is beside the recurrence, not beside its backward pass: the memory of
its own backward pass grows with the square of the length.

A sample is 16 layers of a network, of which none needs another one's result, 4 times: 64 calls, or
4 backward passes through 16 layers. So the host prepares a layer while the GPU works on the one
before. It is so in training, where a GPU has work whenever a pass begins: until it calls the first
function of a backward pass, PyTorch takes 0.3 to 0.4 ms of the host.

Elements are small integers, and factors are 1 or -1, so all results are exact.
"""

from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Any

from .case import first_difference
from .contenders import version
from .timing import Call
from .uses import Peer, Place, Use, UseData

_BATCH, _LENGTH, _IN_ALL, _FEATURES = 8, 1 << 16, 1 << 20, 256
_LAYERS, _TIMES = 16, 4
Function = Callable[..., Any]  # of tensors


def all_passes(ranks: int, most: int) -> list[Use]:
    """Return the passes, of at most 2^``most`` elements on each rank."""
    batch, length = (_BATCH, _LENGTH) if ranks == 1 else (1, _IN_ALL // ranks)
    length = max(1, min(length, (1 << most) // (batch * _FEATURES)))
    shape = batch, length, _FEATURES
    size, text = batch * length * _FEATURES, f"[{batch}, {length}, {_FEATURES}]"
    again = int(ranks > 1)  # a shard is read once more, for its total
    return [
        Use(
            kind,
            f"{title}, {text}",
            size,
            4 * size * moved,
            partial(draw, shape),
            loops=_LAYERS * _TIMES,
            at_once=True,
            kept=4 * size * kept * _LAYERS,
        )
        for kind, title, moved, kept, draw in (
            ("cumsum", "cumsum", 2 + again, 0, _sums),
            ("cumsum backward", "cumsum, backward", 2 + again, 2, _sums_backward),
            ("recurrence", "recurrence", 3 + 2 * again, 0, _recurrence),
            ("recurrence backward", "recurrence, backward", 5 + 2 * again, 3, _recurrence_backward),
        )
    ]


# ---- the passes of a function of tensors ---------------------------------------------------------


def _forward(function: Function, layers: int = _LAYERS * _TIMES) -> Function:
    """Return a function of arrays, whose result is that of the last layer."""
    known: dict[int, list[Any]] = {}

    def call(*inputs: Any) -> Any:
        if id(inputs[0]) not in known:
            known[id(inputs[0])] = _tensors(inputs)
        for _ in range(layers):
            y = function(*known[id(inputs[0])])
        return y

    return call


def _backward(function: Function, layers: int = _LAYERS, times: int = _TIMES) -> Function:
    """Return the backward pass through all layers, of their inputs and the gradient of a result.

    The forward pass of the same arrays runs once, and its graph is kept. The results are the
    gradients of the last layer's inputs.
    """
    import torch  # noqa: PLC0415 - only these passes need it

    graphs: dict[int, Any] = {}

    def call(*inputs: Any) -> Any:
        graph = graphs.get(id(inputs[0]))
        if graph is None:
            *tensors, gradient = _tensors(inputs)
            leaves = [[x.detach().requires_grad_() for x in tensors] for _ in range(layers)]
            ys, every = [function(*each) for each in leaves], list(chain(*leaves))
            graph = graphs[id(inputs[0])] = ys, every, [gradient] * layers
        for _ in range(times):
            results: Any = None  # those of the time before are no longer there
            results = torch.autograd.grad(*graph, retain_graph=True)
        return results[1 - len(inputs) :]

    return call


def _tensors(inputs: tuple[Any, ...]) -> list[Any]:
    import torch  # noqa: PLC0415

    return [torch.from_dlpack(array) for array in inputs]


def _use_data(
    place: Place,
    inputs: tuple[Any, ...],
    call: Function,
    fault: Callable[[Any, list[Any]], str],
    show: Callable[[Any], Any],
) -> UseData:
    """Return the data of a use, whose results are tensors; ``fault`` and ``show`` take arrays."""
    convert = place.machine.xp.from_dlpack

    def arrays(result: Any) -> Any:
        return tuple(map(convert, result)) if isinstance(result, tuple) else convert(result)

    return UseData(
        inputs,
        (),
        call,
        lambda result, gathered: fault(arrays(result), gathered),
        lambda result: show(arrays(result)),
    )


def _cumsum(place: Place) -> Function:
    from .. import torch as ours  # noqa: PLC0415 - it needs PyTorch

    return lambda x: ours.cumsum(x, 1, comm=place.comm)


def _linear_recurrence(place: Place) -> Function:
    from .. import torch as ours  # noqa: PLC0415

    return lambda a, b: ours.linear_recurrence(a, b, 1, comm=place.comm)


# ---- the data of each pass, and the check --------------------------------------------------------


def _step(place: Place, h: Any, a: Any, b: Any, gathered: list[Any], *, reverse: bool) -> str:
    """Return what is wrong with h[t] = a[t] h[t-1] + b[t] along axis 1; empty if nothing is.

    ``gathered`` are the first and the last h of each rank. Without ``a``, all factors are 1.
    """
    comm, xp = place.comm, place.machine.xp
    nearest = comm.rank + 1 if reverse else comm.rank - 1
    edge = xp.zeros_like(h[:, :1])
    if 0 <= nearest < comm.size:
        edge[...] = xp.asarray(gathered[nearest][0 if reverse else 1])
    before = xp.concatenate([h[:, 1:], edge] if reverse else [edge, h[:, :-1]], 1)
    want = before + b if a is None else a * before + b
    return first_difference(h.reshape(-1), want.reshape(-1))


def _edges(h: Any) -> tuple[Any, Any]:
    """Return the first and the last elements along axis 1, in host memory."""
    edges = h[:, :1], h[:, -1:]
    return tuple(edge.get() if hasattr(edge, "get") else edge.copy() for edge in edges)


def _sums(shape: tuple[int, ...], place: Place) -> UseData:
    x = place.integers(-3, 4, shape)
    return _use_data(
        place, (x,), _forward(_cumsum(place)),
        lambda y, gathered: _step(place, y, None, x, gathered, reverse=False), _edges,
    )  # fmt: skip


def _sums_backward(shape: tuple[int, ...], place: Place) -> UseData:
    x, dy = place.integers(-3, 4, shape), place.integers(-3, 4, shape)
    return _use_data(
        place, (x, dy), _backward(_cumsum(place)),
        lambda dx, gathered: _step(place, dx[0], None, dy, gathered, reverse=True),
        lambda dx: _edges(dx[0]),
    )  # fmt: skip


def _recurrence(shape: tuple[int, ...], place: Place) -> UseData:
    a, b = 2 * place.integers(0, 2, shape) - 1, place.integers(-3, 4, shape)
    return _use_data(
        place, (a, b), _forward(_linear_recurrence(place)),
        lambda h, gathered: _step(place, h, a, b, gathered, reverse=False), _edges,
    )  # fmt: skip


def _recurrence_backward(shape: tuple[int, ...], place: Place) -> UseData:
    """db[t] = dh[t] + a[t+1] db[t+1], and da[t] = db[t] h[t-1]."""
    a, b = 2 * place.integers(0, 2, shape) - 1, place.integers(-3, 4, shape)
    dh, xp, comm = place.integers(-3, 4, shape), place.machine.xp, place.comm
    h = xp.from_dlpack(_forward(_linear_recurrence(place))(a, b))

    def fault(result: Any, gathered: list[Any]) -> str:
        da, db = result
        firsts, lasts = [first for _, first, _ in gathered], [last for *_, last in gathered]
        later = xp.asarray(firsts[comm.rank + 1]) if comm.rank + 1 < comm.size else a[:, :1] * 0
        factors = xp.concatenate([a[:, 1:], later], 1)
        wrong = _step(place, db, factors, dh, [edges for edges, *_ in gathered], reverse=True)
        earlier = xp.asarray(lasts[comm.rank - 1]) if comm.rank > 0 else h[:, :1] * 0
        want = db * xp.concatenate([earlier, h[:, :-1]], 1)
        return wrong or first_difference(da.reshape(-1), want.reshape(-1))

    return _use_data(
        place, (a, b, dh), _backward(_linear_recurrence(place)), fault,
        lambda result: (_edges(result[1]), _edges(a)[0], _edges(h)[1]),
    )  # fmt: skip


# ---- PyTorch -------------------------------------------------------------------------------------


def _torch_cumsum(place: Place) -> Function:
    import torch  # noqa: PLC0415

    return partial(torch.cumsum, dim=1)


def _associative_scan(place: Place) -> Function:
    import torch  # noqa: PLC0415
    from torch._higher_order_ops.associative_scan import associative_scan  # noqa: PLC0415

    def combine(left: Any, right: Any) -> Any:
        return right[0] * left[0], right[0] * left[1] + right[1]

    mode = "pointwise" if place.machine.backend == "cuda" else "generic"

    def solve(a: Any, b: Any) -> Any:
        return associative_scan(combine, (a, b), dim=1, combine_mode=mode)[1]

    compiled: Function = torch.compile(solve, dynamic=False)
    return compiled


def _peer(name: str, kind: str, make: Callable[[Place], Function]) -> Peer:
    passed: Callable[..., Function] = partial(_forward, layers=1)
    if kind.endswith("backward"):
        passed = partial(_backward, layers=1, times=1)

    def prepare(place: Place, *inputs: Any) -> Call:
        return partial(passed(make(place)), *inputs)

    return Peer(name, kind, prepare, version("torch"))


PEERS = (
    _peer("torch", "cumsum", _torch_cumsum),
    _peer("torch", "cumsum backward", _torch_cumsum),
    _peer("torch", "recurrence", _associative_scan),
)
