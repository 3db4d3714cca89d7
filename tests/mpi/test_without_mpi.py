"""Without an MPI library, one process scans alone; one of several says what to install."""

import subprocess
import sys

import numpy as np
import pytest

from support.processes import NO_MPI, environment

pytestmark = pytest.mark.one_rank

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

COLLECTIVE = {
    "scan([1, 2]).tolist()": "[1, 3]",
    "scan([1, 2], comm=None, op='max', reverse=True).tolist()": "[2, 2]",
    "scan([1.5, 2], op='fsum').tolist()": "[1.5, 3.5]",
    "Plan(None, 2, 'd')(np.ones(2)).tolist()": "[1.0, 2.0]",
    "cumsum([[1, 2], [3, 4]], axis=0).tolist()": "[[1, 2], [4, 6]]",
    "linear_recurrence([1.0, 0.5], [1.0, 2.0]).tolist()": "[1.0, 2.5]",
    "offsets(3)": "(0, 3)",
    "compact([1, 2], [True, False])[0].tolist()": "[1]",
    "partition([1, 2], 2).tolist()": "[0, 1, 2]",
}


def python(*arguments, **variables):
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment(**variables),
    )


def test_what_needs_no_mpi():
    run = python("-c", NO_MPI + LOCAL)
    assert run.stderr == ""
    version, flags, *others = run.stdout.splitlines()
    assert version.count(".") == 2
    assert flags == "[True, False, True, False]"
    assert others == ["7"] + 4 * ["True"]


def test_what_is_collective():
    """The process is the only rank."""
    calls = "".join(f"print(distscan.{call})\n" for call in COLLECTIVE)
    run = python("-c", f"{NO_MPI}\nimport numpy as np\nimport distscan\n{calls}")
    assert run.stderr == ""
    assert run.stdout.splitlines() == [*COLLECTIVE.values()]


@pytest.mark.parametrize("variable", ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "WORLD_SIZE"])
@pytest.mark.parametrize("call", ["scan([1, 2])", "Plan(None, 2, 'd')", "offsets(3)"])
def test_one_of_several_processes(call, variable):
    """Never one shard in silence."""
    program = f"{NO_MPI}\nimport distscan\ndistscan.{call}"
    run = python("-c", program, **{variable: "2"})
    assert run.returncode == 1
    assert run.stdout == ""
    assert "LaunchError: the launcher started 2 ranks, and mpi4py cannot load" in run.stderr
    assert "pip install '.[mpich]'" in run.stderr


@pytest.mark.parametrize("outer", ["SLURM_STEP_NUM_TASKS", "PMI_SIZE"])
def test_one_of_several_processes_of_torchrun(outer):
    """What has started torchrun itself, once on each node, does not count."""
    variables = {outer: "1", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"}
    run = python("-c", "import distscan\ndistscan.scan([1, 2])", **variables)
    assert run.returncode == 1
    assert run.stdout == ""
    assert "LaunchError: torchrun, or what started it, started 2 ranks" in run.stderr
    variables |= {outer: "2", "WORLD_SIZE": "1"}  # an mpirun inside of torchrun, or around several
    run = python("-c", "import distscan\ndistscan.scan([1, 2])", **variables)
    assert "LaunchError: torchrun, or what started it, started 2 ranks" in run.stderr


def test_the_command_line(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(5))
    main = f"{NO_MPI}\nfrom distscan.cli import main\nsys.exit(main(sys.argv[1:]))"
    run = python("-c", main, str(tmp_path / "x.npy"), "--backend", "cpu", "--check", "--json")
    assert run.returncode == 0, run.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "x.scan.npy"), [0, 1, 3, 6, 10])
    run = python("-c", main, str(tmp_path / "x.npy"), PMI_SIZE="2")
    assert run.returncode == 1
    assert run.stdout == ""
    assert run.stderr.startswith("distscan: error: the launcher started 2 ranks, and mpi4py cannot")
    assert run.stderr.count("\n") == 1
