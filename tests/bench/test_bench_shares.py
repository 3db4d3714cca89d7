"""The benchmark's shares of a copy's speed: samples, medians, brackets. At any ranks."""

from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from distscan.bench import suite, timing
from distscan.bench.case import Case
from distscan.bench.contenders import CONTENDERS, copy_pieces
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
