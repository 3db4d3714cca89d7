"""The forward and backward passes: autograd functions of rows [n, m], joined over the ranks.

Where there is one rank, they may be [outer, n, m]: nothing is moved to bring n to the front.

Gradients of complex numbers have PyTorch's convention: that of y = a x is conj(a) dy. A backward
pass has the same operations on every rank, whatever rows it has: PyTorch chooses the order of
passes by the graph, and they exchange rows in that order.
"""

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from .exchange import (
    Direction,
    find_gradients,
    heads_in_order,
    row_before,
    row_of_owner,
    scan_rows,
    solve_in_segments,
    solve_matrices,
    solve_rows,
    sum_for_owner,
)

Tensor = Any


class Present(torch.autograd.Function):
    """The tensor itself, as one that needs a gradient: other ranks' do."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, there: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, Any]:
        return None, None


class Sum(torch.autograd.Function):
    """y = sums of x. dx = sums of dy, from the other end."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, way: Direction) -> Tensor:
        ctx.way = way
        return scan_rows(x, "sum", way)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, Any]:
        return Sum.apply(dy, ctx.way.backward().other()), None


class Shift(torch.autograd.Function):
    """y[t] = x[t-1]; 0 before the first row. dx[t] = dy[t+1]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, way: Direction) -> Tensor:
        ctx.way = way
        row, n = row_before(x, comm=way.comm, way=way), x.shape[-2]
        if not n:
            return x.clone()
        parts = [x.narrow(-2, 1, n - 1), row] if way.reverse else [row, x.narrow(-2, 0, n - 1)]
        return torch.cat(parts, -2)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, Any]:
        return Shift.apply(dy, ctx.way.backward().other()), None


class Recurrence(torch.autograd.Function):
    """h[t] = a[t] h[t-1] + b[t], and ``first`` comes before the first h.

    db[t] = dh[t] + a[t+1] db[t+1]; da[t] = db[t] h[t-1].
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, first: Tensor | None, way: Direction) -> Tensor:
        ctx.way, before = way, None
        if way.segments is None:
            needed = any(ctx.needs_input_grad)
            h, before = solve_rows(a, b, first, way, comm=way.comm, before=needed)
        else:
            h = solve_in_segments(a, b, way, comm=way.comm)
        ctx.save_for_backward(a, h, first, before)
        return h

    @staticmethod
    def backward(ctx: Any, dh: Tensor) -> tuple[Any, ...]:
        saved = ctx.saved_tensors
        a, h, first, _ = saved
        way = ctx.way.backward()
        other = way.other()
        if way.segments is None and not torch.is_grad_enabled():
            return *_gradients(saved, dh, way), None
        db = Recurrence.apply(Shift.apply(a.conj(), other), dh, None, other)
        before, dfirst = Shift.apply(h.conj(), way), None
        if way.segments is not None:  # the first element of each, in the order of the scan
            before = torch.where(heads_in_order(way), 0, before)
        if first is not None:
            is_first = torch.zeros(len(h), 1, dtype=torch.bool, device=h.device)
            if way.ranks()[:1] == [way.comm.rank]:
                is_first[-1 if way.reverse else 0] = True
            before = torch.where(is_first, first.conj(), before)
            dfirst = torch.where(is_first, a.conj() * db, 0).sum(0)
        return db * before, db, dfirst, None


def _gradients(
    saved: tuple[Tensor, ...], dh: Tensor, way: Direction
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return da, db and that of ``first``, without derivatives.

    Of several columns on a GPU it is one pass over memory. ``saved`` are those of the forward pass.
    The last one, on GPUs, comes before the first row.
    """
    a, h, first, state = saved
    n, place = h.shape[-2], h.shape[-2] - 1 if way.reverse else 0
    is_first = way.ranks()[:1] == [way.comm.rank]
    if dh.is_cuda and dh.shape[-1] > 1:
        da, db = find_gradients(a, h, dh, way, comm=way.comm)
    else:
        if not dh.is_cuda:
            row = row_before(h, comm=way.comm, way=way)
            state = first if is_first else row
        other = way.other()
        db = Recurrence.apply(Shift.apply(a.conj(), other), dh, None, other)
        da = torch.empty_like(db)
        if n:  # no shifted copy of h
            rest, others = (0, 1) if way.reverse else (1, 0)
            part = h.narrow(-2, others, n - 1).conj()
            torch.mul(db.narrow(-2, rest, n - 1), part, out=da.narrow(-2, rest, n - 1))
    if n:
        row = da.narrow(-2, place, 1)
        if state is None:
            row.zero_()
        else:
            torch.mul(db.narrow(-2, place, 1), state.to(db.dtype).conj(), out=row)
    if first is None:
        return da, db, None
    return da, db, a[place].conj() * db[place] if is_first else torch.zeros_like(first)


class MatrixRecurrence(torch.autograd.Function):
    """h[t] = a[t] h[t-1] + b[t] of matrices: rows [n, m, k, k] and [n, m, k].

    h is 0 before the first element, and before each segment.
    db[t] = dh[t] + a[t+1]^T db[t+1]; da[t] = db[t] h[t-1]^T.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, way: Direction) -> Tensor:
        heads = None if way.segments is None else heads_in_order(way)
        h = solve_matrices(a, b, heads, way, comm=way.comm)
        ctx.way = way
        ctx.save_for_backward(a, h)
        return h

    @staticmethod
    def backward(ctx: Any, dh: Tensor) -> tuple[Any, ...]:
        a, h = ctx.saved_tensors
        way = ctx.way.backward()
        other = way.other()
        factors = Shift.apply(a.mH.flatten(1), other).reshape(a.shape)
        db = MatrixRecurrence.apply(factors, dh, other)
        before = Shift.apply(h.conj().flatten(1), way)
        if way.segments is not None:
            before = torch.where(heads_in_order(way), 0, before)
        before = before.reshape(h.shape)
        return db.unsqueeze(-1) * before.unsqueeze(-2), db, None


class Last(torch.autograd.Function):
    """The last row [..., m] of all ranks, on every one. Its owner gets the sum of the gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, way: Direction) -> Tensor:
        ctx.way = way
        return row_of_owner(x, comm=way.comm, way=way)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, Any]:
        return ToLast.apply(dy, ctx.way.backward()), None


class ToLast(torch.autograd.Function):
    """Rows of zeros, of which the last one of all ranks is the sum of the ranks' x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, way: Direction) -> Tensor:
        ctx.way = way
        total = sum_for_owner(x, comm=way.comm, way=way)
        *outer, m = x.shape
        rows = x.new_zeros(*outer, way.lengths[way.comm.rank], m)
        if way.ranks()[-1] == way.comm.rank:
            rows[..., 0 if way.reverse else -1, :] = total
        return rows

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, Any]:
        return Last.apply(dy, ctx.way.backward()), None


class Product(torch.autograd.Function):
    """y = products of x. dx[t] = (product before t) times r[t], a recurrence from the other end.

    Inclusive: r[t] = dy[t] + x[t+1] r[t+1]. Exclusive: r[t] = s[t+1], s[t] = dy[t] + x[t] s[t+1].
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, way: Direction) -> Tensor:
        ctx.way = way
        ctx.save_for_backward(x)
        return scan_rows(x, "prod", way)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, Any]:
        x, way = ctx.saved_tensors[0].conj(), ctx.way.backward()
        other = way.other()._replace(exclusive=False)
        before = Product.apply(x, way._replace(exclusive=True))
        if way.exclusive:
            return before * Shift.apply(Recurrence.apply(x, dy, None, other), other), None
        return before * Recurrence.apply(Shift.apply(x, other), dy, None, other), None


class LogSum(torch.autograd.Function):
    """y = log sums of exp(x). dx[t] = sum of dy[j] exp(x[t] - y[j]) over j from t on.

    The sums of positive and of negative dy are found as logarithms, so nothing overflows.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, way: Direction) -> Tensor:
        y = scan_rows(x, "logaddexp", way)
        ctx.way = way
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, Any]:
        (x, y), other = ctx.saved_tensors, ctx.way.backward().other()
        logs = torch.where(y == -torch.inf, -torch.inf, dy.abs().log() - y)
        parts = []
        for sign in (dy > 0, dy < 0):
            part = torch.where(sign, logs, -torch.inf)
            parts.append((x + scan_rows(part, "logaddexp", other)).exp())
        return parts[0] - parts[1], None


class _Extreme(torch.autograd.Function):
    """y = maxima or minima of x. An element that wins gets dy up to the next one that wins."""

    op = ""

    @classmethod
    def _forward(cls, ctx: Any, x: Tensor, way: Direction) -> Any:
        y = scan_rows(x, cls.op, way)
        wins = (x == y) | x.isnan()
        ctx.way = way
        ctx.save_for_backward(wins)
        if not way.indices:
            return y
        first = sum(way.lengths[: way.comm.rank])
        places = torch.arange(first, first + x.shape[-2], device=x.device).unsqueeze(1)
        none, latest = (sum(way.lengths), "min") if way.reverse else (-1, "max")
        indices = scan_rows(torch.where(wins, places, none), latest, way)
        ctx.mark_non_differentiable(indices)
        return y, indices

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor, *_: Any) -> tuple[Any, Any]:
        (wins,) = ctx.saved_tensors
        other = ctx.way.backward().other()
        goes_on = Shift.apply((~wins).to(dy.dtype), other)
        return torch.where(wins, Recurrence.apply(goes_on, dy, None, other), 0), None


class Maximum(_Extreme):
    """y = maxima of x."""

    op = "max"

    @staticmethod
    def forward(ctx: Any, x: Tensor, way: Direction) -> Any:
        return Maximum._forward(ctx, x, way)


class Minimum(_Extreme):
    """y = minima of x."""

    op = "min"

    @staticmethod
    def forward(ctx: Any, x: Tensor, way: Direction) -> Any:
        return Minimum._forward(ctx, x, way)
