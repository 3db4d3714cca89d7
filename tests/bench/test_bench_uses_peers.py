"""The peers of ``bench --uses`` that may be missing, with NumPy in their place."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from distscan.bench import uses
from distscan.bench.timing import Host
from distscan.bench.uses import all_uses
from distscan.bench.uses_peers import suited

pytestmark = pytest.mark.one_rank


class Tensor(np.ndarray):
    """NumPy's array behind torch's methods."""

    device = "cpu"

    def cpu(self):
        return self

    def numpy(self):
        return np.asarray(self)


class Torch:
    """NumPy behind torch's calls."""

    bool, float64 = np.bool_, np.float64
    empty_like = staticmethod(np.empty_like)
    from_dlpack = staticmethod(lambda x: x.view(Tensor))
    set_num_threads = staticmethod(lambda count: None)
    masked_select = staticmethod(lambda x, mask: x[mask])
    cumsum = staticmethod(np.cumsum)
    searchsorted = staticmethod(lambda ends, x: np.searchsorted(ends, x).view(Tensor))

    @staticmethod
    def arange(low, high, dtype, device):
        return np.arange(low, high, dtype=dtype)

    @staticmethod
    def nan_to_num(x, *, nan, posinf, neginf, out):
        out[...] = np.nan_to_num(x, nan=nan, posinf=posinf, neginf=neginf)

    @staticmethod
    def logcumsumexp(x, axis, out):
        return np.logaddexp.accumulate(x, axis, dtype="f8", out=out)


def lfilter(b, a, x):
    out = np.empty_like(x)
    for i, value in enumerate(x):
        out[i] = b[0] * value - (a[1] * out[i - 1] if i else 0)
    return out


def test_peers_that_may_be_missing(comm, monkeypatch):
    machine = Host("a chip")
    machine.cache = 1 << 12
    monkeypatch.setitem(sys.modules, "torch", Torch())
    scipy = SimpleNamespace(signal=SimpleNamespace(lfilter=lfilter))
    monkeypatch.setitem(sys.modules, "scipy", scipy)
    peers = [peer for peer in suited("cpu", 1) if peer.name in ("torch", "scipy")]
    used = all_uses("cpu", 8)
    rows = uses.run(comm, machine, peers, used, repeat=11, progress=lambda *_: None)
    assert [row.status for row in rows] == ["timed"] * len(rows), rows
    assert sum(row.contender in ("torch", "scipy") for row in rows) == len(peers) == 5
