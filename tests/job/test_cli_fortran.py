"""Jobs that flatten files in Fortran order: they are read through windows, and not mapped."""

import itertools
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import distscan
from distscan.job import plan
from support.pairs import pairs

SHAPES = [(500,), (1, 40), (40, 1), (30, 40), (3, 700), (700, 3), (1, 7, 1, 90), (13, 11, 9),
          (5, 4, 6, 7), (2, 3, 2, 80), (100, 2, 3, 2)]  # fmt: skip
CODES = ["i8", ">i8", "u1", ">i2"]


def added(a, b):
    """Both fields of structures."""
    made = np.zeros_like(b)
    made["m"], made["c"] = a["m"] + b["m"], a["c"] + b["c"]
    return made


ADDED = distscan.Operator("added", numpy=added)


@pairs(shape=SHAPES, memory=[700, 9000, None], threads=[1, 2], reverse=[False, True])
def test_shapes(shape, memory, reverse, threads, save, folder, comm, rng):
    """In windows of a part of a row, of some rows, and of all."""
    x = np.asfortranarray(rng.integers(0, 99, shape).astype(rng.choice(CODES)))
    save("x.npy", x)
    given = {"memory": memory, "threads": threads, "reverse": reverse, "check": True}
    distscan.scan_file(folder / "x.npy", folder / "y.npy", comm=comm, backend="cpu", force=True,
                       dtype="i8", **given)  # fmt: skip
    flat = x.ravel().astype("i8")
    want = np.cumsum(flat[::-1])[::-1] if reverse else np.cumsum(flat)
    np.testing.assert_array_equal(np.load(folder / "y.npy"), want)


@pytest.mark.parametrize("memory", [1, 2000, None])
@pytest.mark.parametrize("shape", [(9, 40), (40, 9), (6, 7, 8)])
def test_structures(shape, memory, save, folder, comm, rng):
    """With bytes between their fields, which are not read, and fields of two byte orders."""
    dtype = np.dtype({"names": ["m", "c"], "formats": [">u8", "<u8"], "offsets": [3, 16],
                      "itemsize": 29})  # fmt: skip
    x = np.ndarray(shape, dtype, rng.bytes(29 * math.prod(shape)), order="F")
    save("x.npy", x)
    distscan.scan_file(folder / "x.npy", folder / "y.npy", comm=comm, memory=memory, op=ADDED)
    y = np.load(folder / "y.npy").ravel()
    for name in dtype.names:
        np.testing.assert_array_equal(y[name], np.cumsum(x[name].ravel().astype("u8")))
    bare = np.frombuffer(y.tobytes(), np.uint8).reshape(y.size, -1).copy()
    fields = np.ndarray(y.shape, y.dtype, bare)
    fields["m"] = fields["c"] = 0
    assert not bare.any()


def test_threads_that_share_windows(save, folder, comm, rng, monkeypatch):
    """Chunks are small, and several threads wait for the same window, or for the next one."""
    monkeypatch.setattr(plan, "CPU_CHUNK", 1 << 14)
    x = np.asfortranarray(rng.integers(-99, 99, (300, 20, 70)))
    save("x.npy", x)
    for memory, reverse in itertools.product((1 << 18, 1 << 21), (False, True)):
        distscan.scan_file(folder / "x.npy", folder / "y.npy", comm=comm, backend="cpu", threads=4,
                           memory=memory, reverse=reverse, op="max", force=True)  # fmt: skip
        flat = x.ravel()
        want = np.maximum.accumulate(flat[::-1])[::-1] if reverse else np.maximum.accumulate(flat)
        np.testing.assert_array_equal(np.load(folder / "y.npy"), want)


# A job whose input becomes shorter behind the check that begins each read of elements.
SHORTER = """
import os, sys
from distscan import cli
look, path, reads = os.fstat, sys.argv[1], []

def shorten(descriptor):
    found = look(descriptor)
    if os.path.samestat(found, os.stat(path)) and sys._getframe(1).f_code.co_name == "fill":
        reads.append(found)
        if len(reads) == int(sys.argv[2]):
            os.truncate(path, 5000)
    return found

os.fstat = shorten
sys.exit(cli.main([path, *sys.argv[3:]]))
"""


@pytest.mark.one_rank
@pairs(ranks=[1, 2], threads=["1", "2"], turn=[1, 2])
def test_becomes_shorter(turn, threads, ranks, tmp_path):
    """While it is read: the job ends with a message, no rank by a signal, and leaves nothing."""
    if ranks > 1 and shutil.which("mpirun") is None:
        pytest.skip("no mpirun")
    np.save(tmp_path / "x.npy", np.asfortranarray(np.ones((1000, 3000))))
    script = Path(__file__).parents[2] / "launch" / "mpirun.sh"
    launcher = [] if ranks == 1 else ["bash", script, ranks]
    options = ["--quiet", "--backend", "cpu", "--threads", threads, "--memory", "2M"]
    command = [*launcher, sys.executable, "-c", SHORTER, tmp_path / "x.npy", turn, *options]
    prefixes = ("PMI", "OMPI", "PRTE", "HYDRA", "MPI")
    alone = {k: v for k, v in os.environ.items() if not k.startswith(prefixes)}
    run = subprocess.run([*map(str, command)], check=False, env=alone, capture_output=True,
                         text=True, timeout=60)  # fmt: skip
    assert run.returncode == 2, run.stderr
    assert f"{tmp_path / 'x.npy'} became shorter while it was read" in run.stderr
    assert os.listdir(tmp_path) == ["x.npy"]
