"""What the passes do together: scans of rows, recurrences, and the exchange of single rows.

Kernels read and write the tensors' own memory, in the order of PyTorch's current stream.
"""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch

from ..core import arrays
from ..core.operators import in_segments
from ..engine.array_scan import scan_array
from ..engine.shard_scan import PeerAccess
from ..mpi.agree import Agreement, Terms, body, collective
from ..mpi.communicators import MPI, Comm, gradients
from ..options import ScanRequest
from ..scan import scan
from ..uses import recurrence

Tensor = Any


class Direction(NamedTuple):
    """The ranks of a scan, its direction, and its form."""

    comm: Comm
    lengths: tuple[int, ...]  # the number of rows of each rank
    reverse: bool
    exclusive: bool = False  # whether a result leaves out its own element
    segments: Tensor | None = None  # bools [n], where independent recurrences begin
    indices: bool = False  # whether to find the indices of maxima and minima
    in_place: bool = False  # whether rows are [outer, n, m], on one rank
    peers: PeerAccess | None = None  # of GPUs that exchange totals themselves

    def ranks(self) -> list[int]:
        """Return the ranks that have rows, in the order of the scan."""
        ranks = [rank for rank, length in enumerate(self.lengths) if length]
        return ranks[::-1] if self.reverse else ranks

    def backward(self) -> "Direction":
        """Return the same in a backward pass, whose agreements have a time limit.

        The results of a rank may take no part in the loss.
        """
        return self._replace(comm=gradients(self.comm))

    def other(self) -> "Direction":
        """Return the opposite direction."""
        return self._replace(reverse=not self.reverse)


# ---- tensors as native arrays ----------------------------------------------------------------


def native(x: Tensor) -> Any:
    """Return a NumPy or CuPy array of the numbers of a tensor, in its memory or in a copy."""
    return over(plain(x))


def over(x: Tensor) -> Any:
    """Return a NumPy or CuPy array over the memory of a contiguous tensor.

    PyTorch's and CuPy's own conversions by DLPack take 80 us.
    """
    assert x.is_contiguous()
    if not x.is_cuda:
        if x.dtype != torch.bfloat16:
            return x.numpy()
        import ml_dtypes  # noqa: PLC0415 - only bfloat16 needs it

        return x.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    import cupy  # noqa: PLC0415 - only tensors on a GPU need it

    memory = cupy.cuda.UnownedMemory(x.data_ptr(), x.nbytes, x, x.device.index)
    return cupy.ndarray(x.shape, _dtype(x.dtype), cupy.cuda.MemoryPointer(memory, 0))


@functools.cache
def _dtype(dtype: Any) -> np.dtype[Any]:
    """Return NumPy's type for PyTorch's."""
    kind: np.dtype[Any] = over(torch.empty(0, dtype=dtype, device="cpu")).dtype
    return kind


def plain(x: Tensor) -> Tensor:
    """Return the numbers of a tensor in memory, one after the other, without its history."""
    return x.detach().resolve_conj().resolve_neg().contiguous()


@contextmanager
def on_stream(x: Tensor) -> Iterator[None]:
    """Order the work of a ``with`` block in PyTorch's current stream of the GPU of ``x``.

    Usually it is CuPy's current stream, too. Else each waits for the other.
    """
    if not x.is_cuda:
        yield
        return
    import cupy  # noqa: PLC0415 - only tensors on a GPU need it

    gpu = x.device.index
    with arrays.context(gpu):
        theirs, pointer = torch.cuda.current_stream(gpu), cupy.cuda.get_current_stream(gpu).ptr
        if pointer == theirs.cuda_stream:
            yield
            return
        ours = torch.cuda.default_stream(gpu)
        if pointer:
            ours = torch.cuda.ExternalStream(pointer, device=gpu)
        ours.wait_stream(theirs)
        try:
            yield
        finally:
            theirs.wait_stream(ours)


# ---- scans and recurrences of rows -----------------------------------------------------------


def scan_rows(x: Tensor, op: str, way: Direction) -> Tensor:
    """Scan rows [..., n, m] along n; those with segments are [n, m], and not exclusive."""
    if way.segments is None:
        return _scan(x, op, way, comm=way.comm)
    return _scan_in_segments(x, heads_in_order(way), op, way, comm=way.comm)


@collective
def _scan(call: Agreement, x: Tensor, op: str, way: Direction, *, comm: Comm) -> Tensor:
    """Scan rows [..., n, m] along n."""
    with on_stream(x):
        y = x.new_empty(x.shape)
        asked = {"axis": x.ndim - 2, "exclusive": way.exclusive, "reverse": way.reverse}
        request = ScanRequest.parse(native(x), over(y), None, None, {"op": op, **asked})
        scan_array(call, request, way.peers)
    return y


@collective
def _scan_in_segments(
    call: Agreement, x: Tensor, heads: Tensor, op: str, way: Direction, *, comm: Comm
) -> Tensor:
    """Scan rows [n, m] along n; ``heads`` [n, 1] say where segments begin."""
    with on_stream(x):
        results = x.new_empty(x.shape), x.new_empty(x.shape, dtype=torch.bool)
        pairs: Any = native(x), native(heads.expand(x.shape))
        body(scan)(
            call,
            pairs,
            in_segments(op),
            axis=0,
            comm=comm,
            reverse=way.reverse,
            out=tuple(map(over, results)),
        )
    return results[0]


def wide_type(dtype: Any) -> Any:
    """Return the type of the running values of a recurrence."""
    return torch.float32 if dtype.itemsize == 2 else dtype


@collective
def solve_rows(
    call: Agreement,
    a: Tensor,
    b: Tensor,
    first: Tensor | None,
    way: Direction,
    *,
    comm: Comm,
    before: bool,
) -> tuple[Tensor, Tensor | None]:
    """Solve recurrences of rows [..., n, m]; return h, and the state before the first row.

    The second is ``first`` on one rank, on CPUs, and without ``before``.
    """
    with on_stream(b):
        h, state = b.new_empty(b.shape), None
        if before and call.several and b.is_cuda:
            wide = wide_type(b.dtype)
            state = b.new_zeros(b.shape[-1], dtype=wide)
            if first is not None:
                state.copy_(first)
        recurrence.solve_native(
            call,
            native(a),
            native(b),
            over(h),
            reverse=way.reverse,
            initial=None if first is None else native(first.cpu()),
            before=None if state is None else over(state),
            peers=way.peers,
        )
    return h, first if state is None else state


@collective
def solve_in_segments(
    call: Agreement, a: Tensor, b: Tensor, way: Direction, *, comm: Comm
) -> Tensor:
    """Solve recurrences of rows [n, m] in segments, the state before each of which is 0."""
    with on_stream(b):
        h = body(recurrence.linear_recurrence)(
            call,
            native(a),
            native(b),
            comm=comm,
            reverse=way.reverse,
            segments=native(way.segments),
        )
        return tensor(h, b)


@collective
def find_gradients(
    call: Agreement, a: Tensor, h: Tensor, dh: Tensor, way: Direction, *, comm: Comm
) -> tuple[Tensor, Tensor]:
    """Return the gradients of the factors and of the terms of a recurrence, on GPUs.

    That of the first factor of this rank is as if the state before it were 0.
    """
    with on_stream(dh):
        da, db = h.new_empty(h.shape), h.new_empty(h.shape)
        form: Any = {"reverse": way.reverse, "peers": way.peers}
        results = over(da), over(db)
        recurrence.find_native_gradients(call, native(a), native(h), native(dh), results, **form)
    return da, db


@collective
def solve_matrices(
    call: Agreement, a: Tensor, b: Tensor, heads: Tensor | None, way: Direction, *, comm: Comm
) -> Tensor:
    """Solve recurrences of rows of matrices [n, m, k, k] and of vectors [n, m, k]."""
    with on_stream(b):
        starts = None if heads is None else native(heads.expand(b.shape[:2]))
        h = recurrence.solve_native_matrices(
            call, native(a), native(b), starts, reverse=way.reverse
        )
        return tensor(h, b)


def tensor(array: Any, like: Tensor) -> Tensor:
    """Return a tensor over the memory of an array, which is on the device of ``like``."""
    convert = arrays.converter(like)
    return array if convert is None else convert(array)


def heads_in_order(way: Direction) -> Tensor:
    """Return bools [n, 1]: whether a segment begins, in the order of the scan; collective."""
    assert way.segments is not None
    heads = plain(way.segments.unsqueeze(1))
    if not way.reverse:
        return heads
    # The last element of a segment is the one before the head of the next.
    row = row_before(heads, comm=way.comm, way=way)
    return torch.cat([heads[1:], row]) if len(heads) else heads


# ---- single rows -----------------------------------------------------------------------------


@collective
def row_before(call: Agreement, x: Tensor, *, comm: Comm, way: Direction) -> Tensor:
    """Return the row [..., 1, m] before the first one of this rank, in scan order; else zeros.

    Without rows, return [0, m].
    """
    call.same = Terms({"the function": "a shift by one row", "reverse": way.reverse})
    row = torch.zeros_like(x[..., :1, :])
    if not call.several:
        return row
    sent = plain(x[:1] if way.reverse else x[-1:]).cpu()
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
def row_of_owner(call: Agreement, x: Tensor, *, comm: Comm, way: Direction) -> Tensor:
    """Return the last row [..., m] of all ranks' x [..., n, m]; some rank has rows."""
    call.same = Terms({"the function": "the last row", "reverse": way.reverse})
    if not call.several:
        return plain(x[..., 0 if way.reverse else -1, :]).clone()
    owner = way.ranks()[-1]
    row = plain(x[:1] if way.reverse else x[-1:]).cpu()
    row = row if comm.rank == owner else row.new_empty((1, x.shape[1]))
    call.settle()
    call.begin()
    comm.Bcast([_bytes(row), MPI.BYTE], owner)
    return row[0].to(x.device)


@collective
def sum_for_owner(call: Agreement, x: Tensor, *, comm: Comm, way: Direction) -> Tensor:
    """Return the sum of all ranks' x [..., m], to the rank that has the last row."""
    call.same = Terms({"the function": "the gradient of the last row", "reverse": way.reverse})
    if not call.several:
        return x
    sent = plain(x).cpu()
    received = sent.new_zeros((comm.size, len(x)))
    call.settle()
    call.begin()
    owner = way.ranks()[-1]
    target = [_bytes(received), MPI.BYTE] if comm.rank == owner else None
    comm.Gather([_bytes(sent), MPI.BYTE], target, owner)
    return received.sum(0).to(x.device)


_TAG = 1 << 13


def _bytes(row: Tensor) -> Any:
    return row.view(torch.uint8).numpy()
