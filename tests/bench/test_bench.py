"""The benchmark: who is timed, and who is refused. On the CPU, at any ranks."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from distscan.bench import contenders, suite, timing
from distscan.bench.case import Case, Data
from distscan.bench.contenders import CONTENDERS, Contender
from distscan.bench.timing import Gpu, Host, Stats
from distscan.core.operators import BUILTIN

NAMED = {contender.name: contender for contender in CONTENDERS}


@pytest.fixture
def machine():
    """A CPU with so small a cache that few buffers are made."""
    host = Host("a chip")
    host.cache = 1 << 12
    return host


@pytest.fixture
def case(comm):
    def make(x="f4", out=None, n=1 << 10, op="sum"):
        return Case(BUILTIN[op], np.dtype(x), np.dtype(out or x), n, comm.size)

    return make


def numpy_only(task, spoil=lambda x, out: None):
    """A right scan over ranks by NumPy and an allgather, and then something done to it."""

    def call(x, out):
        np.cumsum(x, dtype=out.dtype, out=out)
        totals = task.comm.allgather(out[-1])
        out += sum(totals[: task.comm.rank], out.dtype.type(0))
        spoil(x, out)

    return [partial(call, *pair) for pair in task.pairs]


RIGHT = Contender("right", numpy_only, lambda: "1")


@pytest.mark.parametrize(("x", "out"), [("f4", "f4"), ("i8", "i8"), ("i1", "i8"), ("u2", "u2")])
@pytest.mark.parametrize("op", ["sum", "prod", "max", "min"])
def test_contenders(x, out, op, comm, machine, case):
    """Whoever is here is right and is timed."""
    suited = [c for c in CONTENDERS if c.suits("cpu", comm.size, op)]
    able, _, _ = suite.present(comm, suited)
    assert {"copy", "distscan.scan"} <= {contender.name for contender in able}
    rows = suite.measure(comm, machine, able, case(x, out, op=op), 11)
    for row in rows:
        if row.contender in ("torch", "heat") and row.status == "error":
            assert "implemented" in row.message, row
            continue
        assert row.status == "timed", row
        assert row.wall_us.samples == 11
        assert 0 < row.wall_us.q1 <= row.wall_us.median <= row.wall_us.q3
        assert row.share > 0
        assert row.device_us is None  # a CPU has no clock of its own


def _one_more(x, out):
    out[-1] += 1


def _local(x, out):
    np.cumsum(x, dtype=out.dtype, out=out)
    out[0] += 1


def _nothing(x, out):
    out.view(np.uint8)[...] = 0xA5


def _eats_input(x, out):
    x[7] += 1


@pytest.mark.parametrize("n", [1 << 10, 1 << 14])
@pytest.mark.parametrize("spoil", [_one_more, _local, _nothing, _eats_input])
def test_a_wrong_result_is_never_timed(spoil, n, comm, machine, case, monkeypatch):
    monkeypatch.setattr("distscan.bench.case.HOST_CHECK", 1 << 12)  # both ways to check
    monkeypatch.setattr("distscan.bench.case._PIECE", 1000)
    wrong = Contender("wrong", partial(numpy_only, spoil=spoil), lambda: "1")
    for dtype in ("f4", "i8"):
        rows = suite.measure(comm, machine, [NAMED["copy"], wrong, RIGHT], case(dtype, n=n), 11)
        assert [row.status for row in rows] == ["timed", "wrong", "timed"], rows
        assert rows[1].message
        assert rows[1].wall_us is None


def test_wrong_on_one_rank_is_wrong(comm, machine, case):
    def spoil(x, out):
        if comm.rank == comm.size - 1:
            out[5] = 99

    wrong = Contender("wrong", partial(numpy_only, spoil=spoil), lambda: "1")
    (row,) = suite.measure(comm, machine, [wrong], case(), 11)
    assert row.status == "wrong"
    assert "element 5 is 99" in row.message


@pytest.mark.parametrize("when", [0, 1, 20])
def test_an_error_on_one_rank_skips_on_all(when, comm, machine, case):
    """While it is prepared, checked or timed."""

    def prepare(task):
        calls = numpy_only(task)
        made = 0

        def call():
            nonlocal made
            made += 1
            calls[0]()
            if made >= when and comm.rank == comm.size - 1:
                raise OSError("no more")

        if when == 0 and comm.rank == comm.size - 1:
            raise OSError("no more")
        return [call]

    faulty = Contender("faulty", prepare, lambda: "1")
    rows = suite.measure(comm, machine, [faulty, RIGHT], case(), 30)
    assert [row.status for row in rows] == ["error", "timed"]
    assert "no more" in rows[0].message
    assert rows[0].wall_us is None


def test_rehearsal_fails_on_one_rank(comm, machine, case):
    """Before the exchange, in which the others would wait."""

    def rehearse(task):
        if comm.rank == 0:
            raise MemoryError("full")

    (row,) = suite.measure(comm, machine, [replace(RIGHT, rehearse=rehearse)], case(), 11)
    assert (row.status, "full" in row.message) == ("error", True)


def test_missing_on_one_rank_is_missing(comm):
    def version():
        if comm.rank == comm.size - 1:
            raise ImportError("not installed")
        return "1"

    able, versions, missing = suite.present(
        comm, [RIGHT, replace(RIGHT, name="x", version=version)]
    )
    assert able == [RIGHT]
    assert versions == {"right": "1"}
    assert missing == {"x": "not installed"}
    with pytest.raises(ImportError, match="not installed"):
        contenders.version("no_such_library")()


def test_what_does_not_fit_is_skipped(comm, machine, case):
    rows = suite.measure(comm, machine, [RIGHT], case("f8", n=1 << 45), 11)
    assert rows[0].status == "skipped"
    assert "GiB" in rows[0].message


@pytest.mark.parametrize("op", ["sum", "prod", "max", "min"])
def test_data(op, comm, machine, case):
    """Shards differ, results change all along, floats are exact."""
    data = Data(machine, case("f4", n=1 << 16, op=op), comm.rank)
    data.exchange(comm)
    x = np.concatenate(comm.allgather(data.pairs[0][0]))
    ufunc = BUILTIN[op].numpy
    y = ufunc.accumulate(x)
    np.testing.assert_array_equal(y, ufunc.accumulate(x.astype("f8")))
    for part in np.split(y, 16):
        assert len(np.unique(part)) > 1
    assert (data.offset is None) == (comm.rank == 0)
    if data.offset is not None:
        assert data.offset == y[comm.rank * (1 << 16) - 1]


def test_traffic(case):
    """Bytes per element, for n bytes in and n out: copy 2n, scan-add 4n, reduce-scan 3n."""
    assert {
        name: contender.moved(case("f4")) for name, contender in NAMED.items() if contender.moved
    } == {
        "copy": 8, "single-pass": 8, "reduce-scan": 12, "scan-add": 16, "numpy": 8, "cub": 8,
        "cub-run-to-run": 8, "torch": 8, "by-hand-expert": 12, "heat": 16,
    }  # fmt: skip
    mixed = case("i1", "i8")
    assert mixed.bytes == 9 * mixed.n
    assert NAMED["reduce-scan"].moved(mixed) == 10
    assert NAMED["scan-add"].moved(mixed) == 25


def test_buffers_outgrow_the_cache(machine):
    assert machine.pairs(1 << 10) == 16
    assert machine.pairs(1 << 30) == 1
    gpu = object.__new__(Gpu)
    assert [gpu.pairs(1 << power) for power in (10, 24, 27, 28, 33)] == [32, 16, 2, 1, 1]


class Pretended(Gpu):
    """NumPy behind the GPU's calls: what is timed, in which order."""

    def __init__(self):
        Host.__init__(self, "a chip")
        self.flushed, self.cache, self._scratch = 0, 1 << 10, None

    free, synchronize, release = Host.free, Host.synchronize, Host.release
    occupy = Host.occupy

    def flush(self):
        super().flush()
        self.flushed += 1

    def elapsed(self, work):
        work()
        return 1.0


def test_device_time(comm, case):
    """Of a batch, each call on buffers of its own; the wall clock of one call."""
    seen = []

    def prepare(task):
        calls = numpy_only(task)
        return [partial(lambda i: (seen.append(i), calls[i]()), i) for i in range(len(calls))]

    machine = Pretended()
    rows = suite.measure(comm, machine, [replace(RIGHT, prepare=prepare)], case(), 11)
    assert rows[0].message == ""
    assert rows[0].batch == 32
    assert rows[0].device_us == Stats(1e6 / 32, 1e6 / 32, 1e6 / 32, 11)
    batch, turns = list(range(32)), 11 + 3
    expected = []
    for turn in range(turns):
        before = (turn - 1) % 32  # each sample is taken behind its like
        expected += [before, *batch, before, turn]
    assert seen == batch + expected
    assert machine.flushed == 2 * turns


@pytest.mark.one_rank
def test_queued_device_time():
    """What comes before a batch, then the batch: as often as there are samples and warm-ups."""
    seen, machine = [], Pretended()
    calls = [partial(seen.append, i) for i in range(4)]
    machine.occupy = partial(seen.append, "occupy")
    found = timing.queued(machine, calls, partial(seen.append, "before"), repeat=5)
    assert found == Stats(250_000, 250_000, 250_000, 5)
    assert seen == ["before", "occupy", 0, 1, 2, 3] * (5 + timing.WARM_UPS)
    with pytest.raises(NotImplementedError):
        timing.queued(Host("a chip"), calls)


@pytest.mark.one_rank
def test_a_gpu_is_occupied_by_copies():
    """Onto each of two buffers in turn, which are made once."""
    seen = []

    class Memory:
        def __init__(self, *_):
            self.data = self

        def copy_from_device_async(self, source, size):
            seen.append((self, source, size))

    machine = object.__new__(Gpu)
    machine._ballast, machine.xp = None, SimpleNamespace(empty=Memory)
    machine.occupy()
    machine.occupy()
    (a, b, size), (c, d, _), *again = seen
    assert (a, b) == (d, c)
    assert a is not b
    assert size == 1 << 30
    assert again == seen[:2]
