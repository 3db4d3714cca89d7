"""Arithmetic of the benchmark: medians, shares of a copy's speed, what falls. At any ranks."""

import json
from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from distscan.bench import __main__ as command
from distscan.bench import suite, timing
from distscan.bench.__main__ import Key
from distscan.bench.case import Case
from distscan.bench.contenders import CONTENDERS, copy_pieces
from distscan.bench.report import Report
from distscan.bench.suite import Row, Timed
from distscan.bench.timing import Host, Samples, Stats
from distscan.core.operators import BUILTIN

FLOATS = np.dtype("f4")


@pytest.fixture
def case(comm):
    return Case(BUILTIN["sum"], FLOATS, FLOATS, 1 << 10, comm.size)


def test_stats(comm):
    assert timing.stats([5.0, 1.0, 2.0, 4.0, 3.0]) == Stats(3, 2, 4, 5)
    samples = [float(comm.rank == i % comm.size) for i in range(11)]  # each rank is slow in turn
    assert timing.of_all_ranks(comm, samples) == Stats(1, 1, 1, 11)
    assert timing.of_all_ranks(comm, []) is None


def timed(name, own, copies):
    """A contender with 3 samples, and a copy before and after each."""
    return Timed(Row(name, "float32", 8), [], own, copies)


def test_shares(comm, case):
    """A quarter of the copy's speed; by the device's clock on one rank, else by the wall's."""
    device, wall = [10.0] * 3, [20.0, 40.0, 60.0]
    copies = Samples([10.0] * 6, [20.0, 20.0, 40.0, 40.0, 50.0, 70.0])  # the machine gets slow
    for ranks in (1, 2):
        live = [
            timed("copy", Samples(device, wall), copies),
            timed("x", Samples([40.0] * 3, [80.0, 160.0, 240.0]), copies),
            timed("numpy" if ranks == 1 else "by-hand",
                  Samples([80.0] * 3, [160.0, 320.0, 480.0]), copies),
        ]  # fmt: skip
        for entry in live:
            entry.row.device_us = timing.stats(entry.samples.device)
        suite.compare(comm, live, replace(case, ranks=ranks))
        assert [entry.row.share for entry in live] == [1, 0.25, 0.125]
        assert [entry.row.times for entry in live] == [8, 2, 1]
        assert [entry.row.spread for entry in live] == [0, 0, 0]
    for entry in live:
        entry.row.device_us = None
    suite.compare(comm, live, replace(case, ranks=1))
    assert [entry.row.share for entry in live] == [1, 0.25, 0.125]


def test_device_and_wall_differ(comm, case):
    copies = Samples([10.0] * 6, [10.0] * 6)
    for ranks, share in ((1, 0.5), (2, 0.1)):
        live = [timed("x", Samples([20.0] * 3, [100.0] * 3), copies)]
        live[0].row.device_us = Stats(20, 20, 20, 3)
        suite.compare(comm, live, replace(case, ranks=ranks))
        assert live[0].row.share == share
        assert live[0].row.times is None


def test_a_sample_stands_between_copies(comm, case, monkeypatch):
    """A machine that is 8 times as slow half of the time changes no share."""
    turn = count()

    def sample(comm, machine, calls, which, into):
        slow = 8.0 if next(turn) // 100 % 2 else 1.0
        into.wall.append((10 if calls[0].func is copy_pieces else 20) * slow)

    monkeypatch.setattr(suite, "sample", sample)
    host = Host("a chip")
    host.cache = 1 << 12
    named = {contender.name: contender for contender in CONTENDERS}
    pair = [named["copy"], named["distscan.scan"]]
    copy, scan = suite.measure(comm, host, pair, case, 200)
    assert scan.wall_us.q3 == 8 * scan.wall_us.q1
    assert (copy.share, scan.share) == (1, 0.5)


def test_traffic(comm):
    """Bytes per element, for n bytes in and n out: copy 2n, scan-add 4n, reduce-scan 3n."""
    named = {contender.name: contender for contender in CONTENDERS if contender.moved}
    plain, mixed = (
        Case(BUILTIN["sum"], np.dtype(x), np.dtype(out), 1 << 10, comm.size)
        for x, out in (("f4", "f4"), ("i1", "i8"))
    )
    moved = {name: (each.moved(plain), each.moved(mixed)) for name, each in named.items()}
    assert moved["copy"][0] == moved["single-pass"][0] == 8
    assert moved["reduce-scan"] == (12, 10)
    assert moved["scan-add"] == (16, 25)
    assert mixed.bytes == 9 * mixed.n


# ---- a run against an earlier one ----------------------------------------------------------------

PLAN = Key("float32", "single-pass", 1 << 20)


def report(*rows, backend="cpu", ranks=1, op="sum"):
    results = [Row("copy", "float32", 1 << 20, share=1.0)]
    results += [Row(key.contender, key.type, key.n, **known) for key, known in rows]
    return Report("python -m distscan.bench --sizes 20", "2026-11-22", "a chip", backend, ranks, 1,
                  "MPI", {}, {}, op, 11, 1 << 20, None, results)  # fmt: skip


@pytest.fixture
def baseline(tmp_path):
    """Write a report, and read it as a baseline for a run of ``planned``."""

    def make(*rows, planned=(PLAN,), **known):
        path = tmp_path / "baseline.json"
        path.write_text(json.dumps(report(*rows, **known).plain()))
        return command.read_baseline(path, command.setting_of("cpu", 1, "sum"), planned)

    return make


@pytest.mark.one_rank
@pytest.mark.parametrize(
    ("new", "limit", "fell"),
    [(0.5, 5, False), (0.9, 5, False), (0.48, 5, False), (0.47, 5, True), (0.41, 20, False),
     (0.39, 20, True), (0.5, 0, False), (0.49, 0, True)],
)  # fmt: skip
def test_worse_falls_and_better_does_not(new, limit, fell, baseline):
    known = baseline((PLAN, {"share": 0.5}))
    lines, found = command.compare(known, report((PLAN, {"share": new})), limit)
    assert found == fell
    (line,) = [line for line in lines if line.startswith("single-pass")]
    assert line.split()[:5] == ["single-pass", "float32", "2^20", "0.50", f"{new:.2f}"]
    assert line.endswith("fell") == fell
    assert lines[-1] == f"{int(fell)} of 1 shares of distscan fell by more than {limit} %"


@pytest.mark.one_rank
def test_peers_may_fall(baseline):
    peer = PLAN._replace(contender="numpy")
    rows = (PLAN, {"share": 0.5}), (peer, {"share": 0.5})
    lines, fell = command.compare(baseline(*rows), report(rows[0], (peer, {"share": 0.1})), limit=5)
    assert not fell
    assert any(line.startswith("numpy") and "-80%" in line for line in lines)


@pytest.mark.one_rank
@pytest.mark.parametrize("status", ["wrong", "error"])
def test_what_fails_now_falls(status, baseline):
    lines, fell = command.compare(
        baseline((PLAN, {"share": 0.5})), report((PLAN, {"status": status})), limit=20
    )
    assert fell
    assert any(status in line and line.endswith("fell") for line in lines)


@pytest.mark.one_rank
def test_rows_of_one_side_are_named(baseline):
    """Another size, type or contender, and what was not timed."""
    more = [PLAN._replace(n=1 << 24), PLAN._replace(n=1 << 26), PLAN._replace(type="int8:int64"),
            PLAN._replace(contender="torch")]  # fmt: skip
    known = baseline((PLAN, {"share": 0.5}), *((key, {"share": 0.5}) for key in more[:2]),
                     (more[3], {"status": "error"}))  # fmt: skip
    skipped = {"status": "skipped"}
    run = report((PLAN, {"share": 0.5}), (more[0], skipped), (more[2], {"share": 0.5}),
                 (more[3], {"share": 0.5}))  # fmt: skip
    lines, fell = command.compare(known, run, limit=5)
    assert not fell
    assert "only in the baseline: single-pass float32 2^24, 2^26" in lines
    assert "only in this run: single-pass int8:int64 2^20" in lines
    assert "only in this run: torch float32 2^20" in lines


@pytest.mark.one_rank
def test_nothing_compared_is_no_success(baseline):
    lines, failed = command.compare(
        baseline((PLAN, {"share": 0.5})), report((PLAN, {"status": "skipped"})), limit=5
    )
    assert failed
    assert lines[-1].startswith("0 of 0")


@pytest.mark.one_rank
@pytest.mark.parametrize(
    ("known", "said"),
    [({"backend": "cuda"}, "has backend cuda, this run cpu"),
     ({"ranks": 4}, "has ranks 4, this run 1"),
     ({"op": "max"}, "has op max, this run sum"),
     ({"planned": [PLAN._replace(n=8)]}, "has nothing that this run measures; it was made by: py")],
)  # fmt: skip
def test_another_run_is_refused(known, said, baseline):
    with pytest.raises(ValueError, match=said):
        baseline((PLAN, {"share": 0.5}), **known)
