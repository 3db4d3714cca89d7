"""``launch/tools/fsum_bits.py``: lines for kinds of data and numbers of ranks, and a verdict."""

import fsum_bits
import numpy as np
import pytest

import distscan
from support.together import everywhere

SMALL = ("--size", "8", "--cuts", "3", "--backend", "cpu")


def test_one_digest(comm, capsys):
    assert fsum_bits.main(SMALL) == 0
    out = capsys.readouterr().out
    lines = [line.split() for line in out.splitlines()[1:-1]]
    assert len(lines) == (6 * comm.size if comm.rank == 0 else 0)
    assert all(len(line) == 6 for line in lines)  # one digest each
    assert len({line[5] for line in lines}) == (6 if comm.rank == 0 else 0)


def test_one_rank_fails(comm, monkeypatch):
    """Then all ranks raise what it does, also those that do not scan."""

    def fails(*_, **__):
        raise ArithmeticError("as it is")

    monkeypatch.setattr(distscan, "scan", fails)
    everywhere(comm, ArithmeticError, "as it is", lambda: fsum_bits.main(SMALL))


@pytest.mark.one_rank
def test_plain_sums_differ(monkeypatch, capsys):
    """Another algorithm has another digest for each direction."""

    def plain(x, op, *, reverse, **given):
        y = np.cumsum(x[::-1] if reverse else x)
        return y[::-1] * (1 + reverse)

    monkeypatch.setattr(distscan, "scan", plain)
    with np.errstate(all="ignore"):
        assert fsum_bits.main(SMALL) == 1
    assert "the digests differ" in capsys.readouterr().out
