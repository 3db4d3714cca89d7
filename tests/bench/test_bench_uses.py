"""``bench --uses``: each use beside a copy and its peers. On the CPU, at any ranks."""

import json
from dataclasses import replace

import numpy as np
import pytest

from distscan.bench import __main__ as command
from distscan.bench import uses
from distscan.bench.contenders import copy_pieces
from distscan.bench.suite import Row
from distscan.bench.timing import Gpu, Host, Stats
from distscan.bench.uses import Peer, all_uses
from distscan.bench.uses_peers import PEERS, suited
from distscan.mpi.communicators import MPI
from support.cuts import few_ranks

USES = all_uses("cpu", 8)
EACH = pytest.mark.parametrize("use", USES, ids=lambda use: use.title)


@pytest.fixture
def machine():
    """A CPU with so small a cache that few buffers are made."""
    host = Host("a chip")
    host.cache = 1 << 12
    return host


def measured(comm, machine, use, peers=()):
    return uses.run(comm, machine, peers, [use], repeat=11, progress=lambda *_: None)


def test_uses():
    """Sizes are bounded; each use is there once; those of a GPU are the ones to be shown."""
    for most in (4, 8, 20, 28):
        titles = [use.title for use in all_uses("cuda", most)]
        assert len(set(titles)) == len(titles)
        assert all(use.n <= 1 << most and use.bytes <= 12 << most for use in all_uses("cpu", most))
    assert [title.partition(", ")[2] for title in titles if "recurrence" in title] == [
        "2^26", "[2^20, 64]", "[2^14, 2^12]"
    ]  # fmt: skip
    assert [title for title in titles if "keys" in title][-1].endswith("2^22")
    assert {peer.kind for peer in PEERS} | {"recurrence"} == {use.kind for use in USES}


@EACH
def test_each_use_is_right(use, comm, machine):
    """By distscan, by the peers that are always there, and by their checks."""
    peers = [peer for peer in suited("cpu", comm.size) if peer.name in ("numpy", "by-hand")]
    rows = measured(comm, machine, use, peers)
    assert [row.status for row in rows] == ["timed"] * len(rows), rows
    names = [row.contender for row in rows]
    assert names[: -1 - names[::-1].index("distscan")] == ["copy"] * (use.bytes > 0)
    for row in rows:
        assert (row.type, row.n, row.device_us) == (use.title, use.n, None)
        assert 0 < row.wall_us.q1 <= row.wall_us.q3
        assert (row.share is None) == (use.bytes == 0)


def spoil(result, n):
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
def test_a_wrong_result_is_never_timed(use, comm, machine):
    """On one rank."""

    def change(call, place):
        wrong = comm.rank == comm.size - 1
        return lambda *arrays: spoil(call(*arrays), use.n) if wrong else call(*arrays)

    (row,) = [row for row in measured(comm, machine, instead(use, change))
              if row.contender == "distscan"]  # fmt: skip
    assert (row.status, row.wall_us, row.share) == ("wrong", None, None)
    assert "not" in row.message


@EACH
def test_a_rank_alone_is_wrong(use, comm, machine):
    def change(call, place):
        return use.draw(place._replace(comm=MPI.COMM_SELF)).call

    row = measured(comm, machine, instead(use, change))[-1]
    assert row.status == ("timed" if comm.size == 1 else "wrong")


def test_what_does_not_fit_is_skipped(comm, machine):
    use = replace(USES[0], bytes=1 << 60)
    rows = measured(comm, machine, use)
    assert {row.status for row in rows} == {"skipped"}
    assert "GiB" in rows[0].message


@pytest.mark.parametrize("when", ["prepare", "call", "later"])
def test_a_peer_that_fails_on_one_rank(when, comm, machine):
    calls = []

    def fail(now):
        if now == when and comm.rank == comm.size - 1:
            raise OSError("no more")

    def prepare(place, count):
        def call():
            calls.append(0)
            result = USES[-1].draw(place).call(count)
            fail("call" if len(calls) == 1 else "later")
            return result

        fail("prepare")
        return call

    faulty = Peer("faulty", "offsets", prepare, lambda: "1", any_ranks=True)
    ours, row = measured(comm, machine, replace(USES[-1], loops=1), [faulty])
    assert (ours.status, row.status) == ("timed", "error")
    assert "no more" in row.message


# ---- the clocks ----------------------------------------------------------------------------


class Pretended(Gpu):
    """NumPy behind the GPU's calls; the device's clock says that every batch takes a second."""

    def __init__(self):
        Host.__init__(self, "a chip")
        self.cache = 1 << 10

    free, synchronize, release, flush = Host.free, Host.synchronize, Host.release, Host.flush

    def elapsed(self, work):
        work()
        return 1.0


def test_clocks(comm, monkeypatch):
    """The device's on one rank; the host's if it waits. The copy's is the device's."""

    def copies(machine, pairs, most):
        return [lambda x=x, out=out: copy_pieces([x], [out]) for x, out in pairs]

    monkeypatch.setattr(uses, "copies", copies)
    for kind in ("keys", "compact", "offsets"):
        (use,) = [use for use in USES if use.kind == kind]
        rows = measured(comm, Pretended(), use)
        ours, batch = rows[-1], 32 if use.bytes else 1
        assert (ours.status, ours.batch) == ("timed", batch), ours
        assert ours.device_us.median == pytest.approx(1e6 / batch / use.loops)
        which = uses.clock(use, "cuda", comm.size)
        assert which == ("device_us" if (kind, comm.size) == ("keys", 1) else "wall_us")
        if use.bytes:
            time = getattr(ours, which).median
            assert ours.share == pytest.approx(1e6 / batch / time, rel=0.5)
            assert rows[0].share == 1


# ---- the table -----------------------------------------------------------------------------


@pytest.mark.one_rank
def test_lines():
    def row(name, title, **known):
        return Row(name, title, 8, **known)

    def time(us):
        return Stats(us, us, us, 11)

    rows = [
        row("copy", "a", device_us=time(763), wall_us=time(9), moved=96, share=1.0),
        row("distscan", "a", device_us=time(830.04), wall_us=time(9), share=0.92),
        row("torch", "a", device_us=time(2000), wall_us=time(9), share=0.4),
        row("cub", "a", device_us=time(1065), wall_us=time(9), share=0.7),
        row("cupy", "a", status="error", message="no more"),
        row("distscan", "b", wall_us=time(12345.6)),
        row("distscan", "c", status="wrong", message="element 3 is 4, not 5"),
    ]
    clocks = {"a": "device_us", "b": "wall_us", "c": "wall_us"}
    table = [" ".join(line.split()) for line in uses.lines(rows, clocks)]
    assert "a 763.0 cub 1065.0 830.0 0.92 device torch 2000.0" in table
    assert "b - 12346 wall" in table
    assert "c - wrong wall" in table
    assert table[-2:] == ["cupy, a: error: no more", "distscan, c: wrong: element 3 is 4, not 5"]


# ---- the command line ----------------------------------------------------------------------


@pytest.fixture
def run(comm, capfd):
    """Run the command line; return rank 0's (status, stdout, stderr) on every rank."""

    def call(*arguments):
        comm.Barrier()
        capfd.readouterr()
        status = command.main(["--backend", "cpu", "--uses", *map(str, arguments)])
        comm.Barrier()
        out, err = capfd.readouterr()
        return comm.bcast((status, out, err))

    return call


@few_ranks
@pytest.mark.timeout(300)
def test_command(run, comm, folder):
    """One line for each use; the report, and a run against itself."""
    path = folder / "uses.json"
    status, out, err = run("--sizes", 8, "--json", path)
    assert status == 0, err
    assert f"ranks    {comm.size}" in out
    lines = out.splitlines()
    assert all(sum(line.startswith(use.title + " ") for line in lines) == 1 for use in USES)
    found = json.loads(path.read_text())
    assert (found["op"], found["ranks"]) == ("uses", comm.size)
    assert found["clocks"] == {use.title: "wall_us" for use in USES}
    assert {row["type"] for row in found["results"]} == set(found["clocks"])
    assert all(row["status"] == "timed" for row in found["results"]), found["results"]
    status, out, err = run("--sizes", "4,8", "--against", path, "--limit", 100)
    assert status == 0, err
    only = [line for line in out.splitlines() if line.startswith("only in")]
    assert all("offsets" in line for line in only), only  # they have no copy to be compared with
    status, _, err = run("--sizes", 6, "--against", path)
    assert status == 2
    assert "nothing that this run measures" in err


@pytest.mark.parametrize(
    "given",
    [["--forms"], ["--op", "max"], ["--types", "int8"], ["--plot", "x.svg"], ["--block-scans"],
     ["--levels"], ["--contenders", "copy"], ["--limit", "5"]],
    ids="".join,
)  # fmt: skip
def test_refused_arguments(given, run):
    status, out, err = run(*given)
    assert (status, out) == (2, ""), err
