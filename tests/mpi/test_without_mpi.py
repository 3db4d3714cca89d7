"""Without mpi4py, distscan is imported; what is collective says what to install."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.one_rank

NO_MPI = """
import sys

class NoMpi:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "mpi4py":
            raise ImportError("there is none")

sys.meta_path.insert(0, NoMpi())
"""

LOCAL = """
import pickle
import pydoc
import numpy as np
import distscan

print(distscan.__version__)
print(distscan.segment_flags([0, 2, 2, 4]).tolist())
op = distscan.Operator("plus", numpy=lambda a, b: a + b, identity=0)
print(op.combine(np.int64(3), np.int64(4)))
print(issubclass(distscan.RankError, distscan.DistscanError))
print(pickle.loads(pickle.dumps(distscan.scan)) is distscan.scan)
print(all(name in dir(distscan) for name in distscan.__all__))
print("comm" in pydoc.render_doc(distscan))
"""

COLLECTIVE = [
    "scan([1, 2])",
    "scan([1, 2], comm=None, op='max')",
    "scan([1, 2], comm='anything')",
    "Plan(None, 4, 'd')",
    "cumsum([1, 2])",
    "linear_recurrence([1.0], [1.0])",
    "offsets(3)",
    "compact([1, 2], [True, False])",
    "partition([1, 2], 2)",
]


def python(*arguments):
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def test_what_needs_no_mpi():
    run = python("-c", NO_MPI + LOCAL)
    assert run.stderr == ""
    version, flags, *others = run.stdout.splitlines()
    assert version.count(".") == 2
    assert flags == "[True, False, True, False]"
    assert others == ["7"] + 4 * ["True"]


def test_what_is_collective():
    calls = "".join(
        f"try:\n    distscan.{call}\nexcept ImportError as error:\n    print(error)\n"
        for call in COLLECTIVE
    )
    run = python("-c", f"{NO_MPI}\nimport distscan\n{calls}")
    assert run.stderr == ""
    lines = run.stdout.splitlines()
    assert len(lines) == len(COLLECTIVE)
    for line in lines:
        assert line.startswith("mpi4py cannot load an MPI library (there is none); install one")


def test_the_command_line():
    run = python("-c", f"{NO_MPI}\nfrom distscan.cli import main\nsys.exit(main(['x.npy']))")
    assert run.returncode == 1
    assert run.stdout == ""
    assert run.stderr.startswith("distscan: error: mpi4py cannot load an MPI library")
    assert run.stderr.count("\n") == 1
