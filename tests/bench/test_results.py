"""The benchmark times no wrong result; a fault of one rank leaves no other waiting."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from distscan.bench import contenders, suite, uses
from distscan.bench.case import Case, form_cases
from distscan.bench.contenders import CONTENDERS, Contender
from distscan.bench.timing import Host
from distscan.core.operators import BUILTIN
from distscan.mpi.communicators import MPI

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


@pytest.mark.one_rank
@pytest.mark.parametrize("case", form_cases(1, 1, 2), ids=lambda case: case.type)
def test_a_wrong_form_is_never_timed(case, comm, machine):
    """Of one element, somewhere."""
    right = NAMED["single-pass"]

    def prepare(task):
        def spoilt(call, out):
            made = call()
            (made if case.new else out).reshape(-1)[case.n // 2] += 1
            return made

        calls = right.prepare(task)
        return [lambda call=call, out=out: spoilt(call, out)
                for call, (_, out) in zip(calls, task.pairs, strict=True)]  # fmt: skip

    wrong = suite.Contender("wrong", prepare, right.version, ops=right.ops, takes=right.takes)
    (row,) = suite.measure(comm, machine, [wrong], case, 11)
    assert (row.status, "element" in row.message) == ("wrong", True), row


# ---- uses ----------------------------------------------------------------------------------------

EACH = pytest.mark.parametrize("use", uses.all_uses("cpu", 8), ids=lambda use: use.title)


def time(comm, machine, use):
    return uses.run(comm, machine, (), [use], repeat=11, progress=lambda *_: None)


def spoil_use(result):
    """Change one value of a result."""
    if isinstance(result, tuple) and not isinstance(result[0], np.ndarray):
        return result[0], result[1] + 1
    first = result[0] if isinstance(result, tuple) else result
    first.reshape(-1)[first.size // 2] += 2
    return result


def instead(use, change):
    """The use with another way in distscan's place: ``change(call, place)``."""

    def draw(place):
        drawn = use.draw(place)
        return drawn._replace(call=change(drawn.call, place))

    return replace(use, draw=draw)


@EACH
def test_a_wrong_use_is_never_timed(use, comm, machine):
    """On one rank."""

    def change(call, place):
        wrong = comm.rank == comm.size - 1
        return lambda *arrays: spoil_use(call(*arrays)) if wrong else call(*arrays)

    (row,) = [row for row in time(comm, machine, instead(use, change))
              if row.contender == "distscan"]  # fmt: skip
    assert (row.status, row.wall_us, row.share) == ("wrong", None, None)
    assert "not" in row.message


@EACH
def test_a_use_of_one_rank_alone_is_wrong(use, comm, machine):
    def change(call, place):
        return use.draw(place._replace(comm=MPI.COMM_SELF)).call

    row = time(comm, machine, instead(use, change))[-1]
    assert row.status == ("timed" if comm.size == 1 else "wrong")
