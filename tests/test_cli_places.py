"""The command line where ranks see different files, and where files cannot be read or written."""

import os

import numpy as np
import pytest


def each_its_own(comm, monkeypatch, tmp_path):
    """Every rank works in a folder of its own, as on disks of its node."""
    monkeypatch.chdir(tmp_path)
    comm.Barrier()


@pytest.mark.parametrize("what", ["size", "content", "mtime_ns", "missing"])
def test_inputs_that_differ(what, run, comm, tmp_path, monkeypatch):
    """Under one path the last rank has another file than the others, or none."""
    each_its_own(comm, monkeypatch, tmp_path)
    odd = comm.rank == comm.size - 1
    x = np.arange(100_000.0)
    if odd and what == "size":
        x = x[:-1]
    if odd and what == "content":
        x[-1] = 7
    if not odd or what != "missing":
        np.save("x.npy", x)
        os.utime("x.npy", ns=(0, 10**18 + (odd and what == "mtime_ns")))
    status, out, err = run("x.npy", "--quiet")
    if comm.size == 1 and what != "missing":
        assert (status, out, err) == (0, "", "")
        return
    assert (status, out) == (2, "")
    if what == "missing":
        assert "No such file" in err
    else:
        assert f"the ranks disagree on the {what} of x.npy, which must be on a file system" in err
    if comm.size > 1:
        assert f"rank {comm.size - 1}: " in err
    assert os.listdir() == (["x.npy"] if not odd or what != "missing" else [])
