"""A job on CPUs imports no module that it does not use: that would take longer than a scan."""

import numpy as np
import pytest

import distscan
from support import processes

pytestmark = pytest.mark.one_rank

# What NumPy and mpi4py import differs from version to version, so it does not count.
IMPORTED = """
import sys

import numpy as np
from mpi4py import MPI

before = set(sys.modules)
{job}
print(*sorted(set(sys.modules) - before))
"""

SCANS = """
import distscan

distscan.scan(np.arange(5))
distscan.scan(np.ones((2, 3)), "max", axis=1, exclusive=True, reverse=True, initial=0)
distscan.scan(np.arange(3), segments=[7, 7, 8])
distscan.cumsum([1.5, 2.5])
"""

FILE_JOB = """
from distscan.cli import main

assert main([sys.argv[1], "--backend", "cpu", "--quiet"]) == 0
"""

HELP = """
from distscan.cli import main

assert main(["--help"]) == 0
"""

NEVER = {
    *("cupy", "cupy_backends", "cupyx", "ml_dtypes", "distscan.cuda", "distscan.bench"),
    *("asyncio", "concurrent.futures", "doctest", "importlib.metadata", "json", "logging"),
    *("multiprocessing", "random", "secrets", "socket", "subprocess", "tempfile", "unittest"),
    *("uuid", "numpy.random", "numpy.testing", "hashlib", "distscan.job.check"),
}
NEVER_BY_SCANS = {"argparse", "distscan.cli", "distscan.job", "pathlib", "shutil"}


def imported(job, *arguments):
    """Return the modules that a job imports beside those of NumPy and mpi4py."""
    run = processes.python(IMPORTED.format(job=job), *arguments)
    assert (run.returncode, run.stderr) == (0, "")
    modules = run.stdout.splitlines()[-1].split()
    assert "distscan.scan" in modules
    return set(modules)


def test_scans():
    assert imported(SCANS) & (NEVER | NEVER_BY_SCANS) == set()


def test_a_file_job(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(5))
    assert imported(FILE_JOB, tmp_path / "x.npy") & NEVER == set()
    assert (tmp_path / "x.scan.npy").exists()


def test_help():
    assert imported(HELP) & NEVER == set()


def test_names():
    """No module of the package is among them, though each is its attribute."""
    names = [name for name in dir(distscan) if not name.startswith("__")]
    assert names == sorted(distscan.__all__)
    assert all(hasattr(distscan, name) for name in dir(distscan))
    assert {"__all__", "__doc__", "__version__"} < set(dir(distscan))
