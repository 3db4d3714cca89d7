"""Long rows of totals: exchanged in pieces, with the bits of one exchange."""

import ctypes
import subprocess
import sys
from functools import partial, reduce
from importlib import util
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import distscan
from distscan import DisagreementError, RankError
from distscan.core import form as cut_in_pieces
from distscan.core.form import Extents, Form
from distscan.core.operators import BUILTIN, MAPS
from distscan.engine import cache
from distscan.fsum import special
from distscan.mpi.exscan import Exscan
from support import processes, reference
from support.cases import FORMS, two_cuts
from support.operators import COMPOSE, maps
from support.processes import everywhere
from support.steps import Known

WIDTHS = [1, 2, 6, 7, 8, 9, 13, 14, 15, 40]  # elements of a row, of which 7 are a piece


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Pieces of 7 numbers of 8 bytes, and no plans of whole rows."""
    monkeypatch.setattr(cut_in_pieces, "PIECE", 56)
    cache.clear()
    yield
    cache.clear()


def test_as_many_on_every_rank(monkeypatch):
    sizes = [
        [part.stop - part.start for part in cut_in_pieces.Pieces(n, np.dtype("d"))] for n in WIDTHS
    ]
    assert sizes[:8] == [[1], [2], [6], [7], [7, 1], [7, 2], [7, 6], [7, 7]]
    assert len(cut_in_pieces.Pieces(3, np.dtype([("a", "S99")]))) == 3  # each larger than a piece


@two_cuts
@pytest.mark.parametrize("form", FORMS)
def test_order_is_kept(form, strategy, cut, rng):
    """An operator that does not commute, and shards that are empty."""
    form = form | {"initial": form["initial"] and int(maps(rng, 1)[0])}
    for width in WIDTHS:
        x = maps(rng, 11 * width).reshape(11, width)
        mine = cut(11)
        want = reference.scan(COMPOSE.numpy, x, axis=0, identity=1 << 32, **form)[mine]
        y = distscan.scan(x[mine], COMPOSE, axis=0, strategy=strategy, **form)
        np.testing.assert_array_equal(y, want)


@two_cuts
@pytest.mark.parametrize("op", [BUILTIN["sum"], BUILTIN["max"], MAPS])
def test_the_bits_of_one_exchange(op, comm, cut, rng, monkeypatch):
    """Of floats that round, by MPI's own operator, by NumPy's, and of structures."""
    dtype = np.dtype("d") if op is not MAPS else np.dtype([("x0", "d"), ("x1", "d")])
    rows = rng.normal(size=(comm.size, 40, dtype.itemsize // 8)).view(dtype)[..., 0]
    mine = cut(comm.size)
    shard = rows[mine]

    def exchanged():
        total = None
        if len(shard):
            value = shard[0].copy()
            for row in shard[1:]:
                value = op.combine(value, row)
            total = value
        offsets = []
        for _ in range(2):
            exchange = Exscan(op, dtype, Form(Extents(inner=40)))
            exchange.reserve()
            again = Known(None if total is None else total.copy())
            offsets.append(exchange(comm, again))
            again = Known(None if total is None else total.copy())
            exchange.start(comm, again)
            offsets.append(exchange.wait(comm))
        return [None if total is None or y is None else y.tobytes() for y in offsets]

    pieces = exchanged()
    monkeypatch.setattr(cut_in_pieces, "PIECE", 1 << 20)
    whole = exchanged()
    if len(shard) and mine.start:
        assert pieces == whole
        assert whole[0] is not None


@two_cuts
@pytest.mark.parametrize("reverse", [False, True])
def test_started(reverse, strategy, cut, rng):
    """Plans are used again and again, at once and in two halves."""
    shape = 9, 2, 13
    mine = cut(9)
    plan = distscan.Plan(None, (mine.stop - mine.start, *shape[1:]), "L", COMPOSE, axis=0,
                         reverse=reverse, strategy=strategy, backend="cpu")  # fmt: skip
    for _ in range(3):
        x = maps(rng, int(np.prod(shape))).reshape(shape)
        want = reference.scan(COMPOSE.numpy, x, axis=0, identity=1 << 32, exclusive=False,
                              initial=None, reverse=reverse)[mine]  # fmt: skip
        plan.start(x[mine])
        np.testing.assert_array_equal(plan.wait(), want)
        np.testing.assert_array_equal(plan(x[mine]), want)


@pytest.mark.parametrize("op", ["sum", "logaddexp"])
def test_a_rank_without_its_shard(op, comm, rng):
    """It raises its own fault, those behind it hear of it, those before it have their results."""
    x = rng.integers(0, 9, (2 * comm.size, 20)).astype("d")
    at = comm.size // 2
    plan = distscan.Plan(None, (2, 20), "d", op, axis=0, backend="cpu")
    mine = slice(2 * comm.rank, 2 * comm.rank + 2)
    if comm.rank == at:
        with pytest.raises(TypeError, match="x is int8"):
            plan(np.zeros((2, 20), "b"))
    elif comm.rank > at:
        with pytest.raises(RankError, match="an earlier rank failed"):
            plan(x[mine])
    else:
        want = BUILTIN[op].numpy.accumulate(x, 0)
        np.testing.assert_allclose(plan(x[mine]), want[mine], rtol=1e-14)


class Arriving(Known):
    """A row whose pieces are asked for one after the other, of which one never comes."""

    def __init__(self, row, lost):
        super().__init__(row)
        self.row, self.lost, self.taken, self.given = row, lost, [], []

    def total(self, piece=None):
        self.taken.append(piece.start)
        if piece.start == self.lost:
            raise MemoryError("lost on its way")
        return super().total(piece)

    def put(self, piece, offset):
        if offset is not None:
            self.given.append(piece.start)
        super().put(piece, offset)


@pytest.mark.parametrize("lost", [None, 0, 7, 14, 35])
@pytest.mark.parametrize("op", [BUILTIN["sum"], COMPOSE])
def test_pieces_that_arrive(op, lost, comm, rng):
    """Each is asked for in its turn; where one is lost all are exchanged, and nobody waits."""
    rows = maps(rng, 40 * comm.size).reshape(comm.size, 40)
    exchange = Exscan(op, rows.dtype, Form(Extents(inner=40)))
    exchange.reserve()

    def started(total):
        exchange.start(comm, total)
        return exchange.wait(comm)

    for run in (lambda total: exchange(comm, total), started):
        row = Arriving(rows[comm.rank].copy(), lost if comm.rank == 0 else None)
        if comm.size == 1:
            assert run(row) is None
            assert not row.taken
        elif lost is not None:
            with pytest.raises(MemoryError if comm.rank == 0 else RankError):
                run(row)
        else:
            offset = run(row)
            assert row.taken == list(range(0, 40, 7))
            if comm.rank == 0:
                assert offset is None
                assert not row.given
                continue
            assert offset is row.row
            assert row.given == row.taken
            want = rows[0].copy()
            for other in rows[1 : comm.rank]:
                want = op.combine(want, other)
            np.testing.assert_array_equal(row.row, want)


class OnRow(Known):
    """A call whose totals come to the host by a row, and whose offsets go back by it."""

    def __init__(self, row):
        super().__init__(None)
        self.row, self.empty = row, False

    def total(self, piece=None):
        return self.row.take(piece)

    def put(self, piece, offset):
        self.row.put(piece, offset)
        self.offset = None if offset is None else self.row


# ---- a CuPy of memory and copies alone, whose queue is worked off as late as can be --------------


class Pointer:
    """Memory on the GPU, as ``cupy.cuda.MemoryPointer``."""

    def __init__(self, queue, ptr):
        self.queue, self.ptr = queue, ptr

    def __add__(self, offset):
        return Pointer(self.queue, self.ptr + offset)

    def copy_to_host_async(self, host, size):
        self.queue.append(lambda: ctypes.memmove(host, self.ptr, size))

    def copy_from_host_async(self, host, size):
        self.queue.append(lambda: ctypes.memmove(self.ptr, host, size))


class Event:
    def __init__(self, queue):
        self.queue, self.at = queue, 0

    def record(self):
        self.at = len(self.queue)

    def synchronize(self):
        work_off(self.queue, self.at)


def work_off(queue, end):
    """Do what is queued before ``end``, in order; what is done stays in place, as nothing."""
    for at in range(end):
        queue[at]()
        queue[at] = lambda: None


def make_late_gpu():
    """Return what stands for CuPy, and its queue."""
    queue = []

    def pinned(size):
        memory = type("Pinned", (ctypes.c_char * size,), {})()
        memory.ptr = ctypes.addressof(memory)
        return memory

    def empty(size, dtype):
        memory = pinned(size)
        return SimpleNamespace(data=Pointer(queue, memory.ptr), nbytes=size, memory=memory)

    stream = SimpleNamespace(synchronize=lambda: work_off(queue, len(queue)))
    cuda = SimpleNamespace(
        alloc_pinned_memory=pinned,
        Event=lambda **_: Event(queue),
        get_current_stream=lambda: stream,
        runtime=SimpleNamespace(CUDARuntimeError=RuntimeError),
    )
    return SimpleNamespace(empty=empty, cuda=cuda), queue


@pytest.fixture
def late(monkeypatch):
    """The rows of a GPU that does nothing before it is waited for, and its queue."""
    gpu, queue = make_late_gpu()
    monkeypatch.setitem(sys.modules, "cupy", gpu)
    file = Path(distscan.__file__).parent / "cuda" / "workspace.py"
    spec = util.spec_from_file_location("distscan.cuda.late", file)
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Row, queue


@pytest.mark.parametrize("pieces", [0.5, 1, 1.5, 5.5])
@pytest.mark.parametrize(
    ("op", "held", "exchanged"),
    [(BUILTIN["sum"], "d", "d"), (COMPOSE, "L", "L"), (BUILTIN["max"], "I", "H")],
)
def test_copies_that_are_late(pieces, op, held, exchanged, late, comm, rng):
    """A row on a GPU, again and again: no memory is written that a copy still reads."""
    make, queue = late
    held, exchanged = np.dtype(held), np.dtype(exchanged)
    width = int(pieces * cut_in_pieces.longest_piece(exchanged))
    exchange = Exscan(op, exchanged, Form(Extents(inner=width)))
    exchange.reserve()
    row = make(held, width, exchanged)
    memory = (ctypes.c_char * (width * held.itemsize)).from_address(row.pointer)
    on_gpu = np.frombuffer(memory, held)
    seen, wants = [], []
    for turn in range(4):
        rows = maps(rng, comm.size * width).reshape(comm.size, width).astype(exchanged)
        if exchanged.kind == "f":  # sums are exact in any order
            rows = rng.integers(-(1 << 20), 1 << 20, rows.shape).astype(exchanged)
        queue.append(partial(on_gpu.__setitem__, slice(None), rows[comm.rank]))  # reduces
        row.bring()
        call = OnRow(row)
        if turn % 2:
            exchange.start(comm, call)
            offset = exchange.wait(comm)
        else:
            offset = exchange(comm, call)
        if comm.rank == 0:
            assert offset is None
            continue
        assert (offset is row) == (pieces > 1)
        if offset is not row:
            row.put(slice(None), offset)
        queue.append(lambda: seen.append(on_gpu.copy()))  # scans
        wants.append(reduce(op.combine, rows[: comm.rank]))
    assert not wants or len(seen) < len(wants)
    work_off(queue, len(queue))
    np.testing.assert_array_equal(seen, wants)


def test_an_operator_that_fails_on_one_piece(comm):
    if comm.size < 3:
        pytest.skip("two ranks have no totals to combine")

    def combine(a, b):
        if np.shape(b) == (6,):  # the last piece
            raise ZeroDivisionError("totals do not combine")
        return a + b

    op = distscan.Operator("fails", combine, identity=0)
    x = np.ones((5, 20))
    everywhere(comm, ZeroDivisionError, "totals",
               lambda: distscan.scan(x, op, axis=0, strategy="scan-add"))  # fmt: skip


@pytest.mark.parametrize("reverse", [False, True])
def test_recurrences(reverse, comm, cut, rng):
    """Structures, whose pieces hold fewer."""
    n, width = 10, 11
    a = rng.integers(-2, 3, (n, width)).astype("d")
    b = rng.integers(-3, 4, (n, width)).astype("d")
    mine, h = cut(n), np.zeros(width)
    want = np.empty_like(b)
    for i in reversed(range(n)) if reverse else range(n):
        want[i] = h = a[i] * h + b[i]
    y = distscan.linear_recurrence(a[mine], b[mine], reverse=reverse)
    np.testing.assert_array_equal(y, want[mine])


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_recurrences_behind_a_row(reverse, compiled, comm, cut, rng):
    """The row is longer than a piece, and changes from call to call."""
    n, width = 10, 11
    dtype = np.dtype("d" if compiled else "g")
    a, b = (rng.integers(-2, 3, (n, width)).astype(dtype) for _ in range(2))
    mine, initial = cut(n), rng.integers(-3, 4, width).astype(dtype)
    for _ in range(2):
        want, h = np.empty_like(b), initial.copy()
        for i in reversed(range(n)) if reverse else range(n):
            want[i] = h = a[i] * h + b[i]
        y, last = distscan.linear_recurrence(
            a[mine], b[mine], initial, reverse=reverse, return_last=True
        )
        np.testing.assert_array_equal(y, want[mine])
        np.testing.assert_array_equal(last, h)
        initial += 1
    none = b[:0]
    last = distscan.linear_recurrence(none, none, initial, return_last=True)[1]
    np.testing.assert_array_equal(last, initial)
    assert not np.shares_memory(last, initial)
    if comm.size > 1:
        initial[-1] += comm.rank
        everywhere(comm, DisagreementError, "initial",
                   lambda: distscan.linear_recurrence(a[mine], b[mine], initial))  # fmt: skip


@two_cuts
@pytest.mark.parametrize("form", FORMS)
def test_special_columns_of_exact_sums(form, cut, rng, monkeypatch):
    """Codes of few columns at a time; matrices, and views of them."""
    monkeypatch.setattr(special, "_FEWEST", 3)
    monkeypatch.setattr(special, "_CODES", 1)
    monkeypatch.setattr(special, "_CHUNK", 4)
    x = rng.choice([-0.0, 0.0, 1.5, np.inf, -np.inf, np.nan], (7, 11), p=[0.5, *[0.1] * 5])
    mine = cut(7)
    how = form | {"initial": form["initial"] and -0.0}
    columns = [
        distscan.scan(np.ascontiguousarray(x[mine, i]), "fsum", **how) for i in range(x.shape[1])
    ]
    want = np.stack(columns, 1)
    for shard in (x[mine].copy(), np.asfortranarray(x[mine]), x[mine, :, None]):
        y = distscan.scan(shard, "fsum", axis=0, **how)
        np.testing.assert_array_equal(y.reshape(want.shape), want)
        np.testing.assert_array_equal(np.signbit(y).reshape(want.shape), np.signbit(want))


ROWS = """
import resource, sys
import numpy as np
import distscan
from mpi4py import MPI
comm, (what, codes) = MPI.COMM_WORLD, sys.argv[1:]
x = np.full((1, (64 << 20) // np.dtype(codes).itemsize), 1, codes)
small = x[:, :10].copy()
if what == "recurrence":
    row, room = x[0].copy(), 112  # the result, too
    scan = lambda x: distscan.linear_recurrence(x, x, row[: x.size])
    want = 2 + comm.rank
else:
    how, room = {"axis": 0, "dtype": x.dtype}, 48
    scan = lambda x: distscan.scan(x, what, out=x, **how)
    x[0, 0] = small[0, 0] = np.inf if what == "fsum" else 1
    want = comm.rank + 1
scan(small)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
y = scan(x)
grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10
comm.Barrier()
assert (y[0, 1:] == want).all() and (what != "fsum" or y[0, 0] == np.inf)
assert grown < room, f"{grown} MiB beside a row of 64 MiB"
"""


@pytest.mark.one_rank
@pytest.mark.parametrize(
    ("what", "codes"), [("sum", "d"), ("sum", "b"), ("fsum", "f"), ("recurrence", "d")]
)
def test_memory(what, codes):
    """Of three processes that scan a row of 64 MiB in place; a row of running values is more."""
    script = Path(__file__).parents[2] / "launch" / "mpirun.sh"
    command = ["bash", str(script), "3", sys.executable, "-c", ROWS, what, codes]
    run = subprocess.run(
        command,
        check=False,
        env=processes.environment(),
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert run.returncode == 0, run.stdout + run.stderr
