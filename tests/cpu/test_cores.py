"""The cores that a rank uses: its own, its share of the node's, or as many as it is told."""

import os

import numpy as np
import pytest

from distscan import binding
from distscan.cpu import library, threads
from distscan.mpi import launcher
from support import fresh
from support.together import everywhere

LAUNCHERS = (*launcher._LOCAL_RANKS, *launcher._LAUNCHED_RANKS, "SLURM_STEP_TASKS_PER_NODE")


@pytest.fixture
def launched(monkeypatch):
    """Set the variables of a launcher, and no others."""

    def launched(variables):
        for name in LAUNCHERS:
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        return launcher.local_ranks()

    return launched


@pytest.mark.one_rank
@pytest.mark.parametrize(
    ("variables", "ranks"),
    [
        ({}, 1),
        ({"MPI_LOCALNRANKS": "4", "PMI_SIZE": "8"}, 4),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_COMM_WORLD_SIZE": "8"}, 2),
        ({"MV2_COMM_WORLD_LOCAL_SIZE": "3"}, 3),
        ({"PMI_LOCAL_SIZE": "16", "PALS_NRANKS": "32"}, 16),
        ({"SLURM_STEP_TASKS_PER_NODE": "5", "SLURM_STEP_NUM_TASKS": "5"}, 5),
        ({"SLURM_STEP_TASKS_PER_NODE": "4(x2),3"}, 4),
        ({"SLURM_STEP_TASKS_PER_NODE": "1,12(x20)"}, 12),
        # mpirun in an allocation: Slurm's describe the daemons of mpirun.
        ({"SLURM_STEP_TASKS_PER_NODE": "1(x2)", "MPI_LOCALNRANKS": "64"}, 64),
        ({"PMI_SIZE": "8"}, 8),  # all ranks may be on this node
        ({"MPI_LOCALNRANKS": "many", "PMI_SIZE": "8"}, 8),
        ({"MPI_LOCALNRANKS": "", "SLURM_STEP_TASKS_PER_NODE": "x2"}, 1),
        ({"MPI_LOCALNRANKS": "0"}, 1),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "-3", "PMI_LOCAL_SIZE": "2.5"}, 1),
    ],
)
def test_ranks_of_the_node(variables, ranks, launched):
    assert launched(variables) == ranks


def test_the_launcher_of_this_run(comm):
    """It runs on one node."""
    assert launcher.local_ranks() == comm.size


@pytest.mark.one_rank
@pytest.mark.parametrize(
    ("allowed", "of_node", "ranks", "number"),
    [
        (64, 64, 1, 64),  # no mpirun: the machine
        (1, 64, 64, 1),  # bound to a core each
        (16, 64, 4, 16),  # hybrid
        (64, 64, 4, 16),  # not bound: a share
        (32, 64, 8, 8),  # bound to sockets, which ranks share
        (2, 64, 1, 2),  # as by taskset
        (64, 64, 65, 1),  # more ranks than cores
        (8, 8, 4, 2),  # in a container of 8 cores
    ],
)
def test_usable(allowed, of_node, ranks, number, monkeypatch):
    monkeypatch.delenv("DISTSCAN_THREADS", raising=False)
    monkeypatch.setattr(threads, "allowed", lambda: allowed)
    monkeypatch.setattr(threads, "of_node", lambda: of_node)
    assert threads.usable(ranks) == number
    monkeypatch.setenv("DISTSCAN_THREADS", "5")
    assert threads.usable(ranks) == 5
    monkeypatch.setenv("DISTSCAN_THREADS", "")
    assert threads.usable(ranks) == number


@pytest.mark.one_rank
def test_the_affinity_mask():
    program = """
import os
from distscan import binding
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
print(binding.threads(None))
"""
    done = fresh.python(program)
    assert (done.stdout, done.stderr) == ("1\n", "")


@pytest.mark.one_rank
@pytest.mark.parametrize(
    ("group", "files", "number"),
    [
        ("0::/\n", {}, 64),
        ("0::/\n", {"cpu.max": "max 100000"}, 64),
        ("0::/\n", {"cpu.max": "400000 100000"}, 4),
        ("0::/\n", {"cpu.max": "250000 100000"}, 3),
        ("0::/\n", {"cpu.max": "1000 100000"}, 1),
        ("0::/\n", {"cpu.max": "9900000 100000"}, 64),
        ("0::/\n", {"cpu.max": "what", "cpuset.cpus.effective": "what"}, 64),
        ("0::/\n", {"cpuset.cpus.effective": "0-3,8,16-17"}, 7),
        ("0::/\n", {"cpuset.cpus.effective": "0-3", "cpu.max": "200000 100000"}, 2),
        ("0::/jobs/7\n", {"jobs/7/cpu.max": "500000 100000"}, 5),
        ("0::/jobs/7\n", {"jobs/cpu.max": "500000 100000", "jobs/7/cpu.max": "max 100000"}, 5),
        ("0::/jobs/7\n", {"jobs/7/cpuset.cpus.effective": "3-5"}, 3),
        ("3:cpuset:/\n1:cpu:/\n0::/\n", {"cpu.max": "200000 100000"}, 2),
        ("3:cpuset:/jobs\n", {}, 64),  # version 1
        (None, {}, 64),
    ],
)
def test_control_groups(group, files, number, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    groups, own = tmp_path / "groups", tmp_path / "own"
    if group is not None:
        own.write_text(group)
    for name, text in files.items():
        (groups / name).parent.mkdir(parents=True, exist_ok=True)
        (groups / name).write_text(f"{text}\n")
    assert threads.of_node(str(groups), str(own)) == number


# ---- what a report says --------------------------------------------------------------------


@pytest.mark.parametrize("number", [1, 2])
def test_the_report_names_instructions_and_threads(number, comm, run, save):
    found = library.load()
    machine = os.uname().machine
    text = f"{machine}, NumPy"
    if found is not None:
        text = f"{machine}, {found.name}, {number} thread{'' if number == 1 else 's'}"
    assert binding.bind(comm, "cpu", pytest.fail, number).device == text
    save("x.npy", np.arange(5.0))
    status, out, _ = run("x.npy", "--backend", "cpu", "--threads", str(number))
    assert status == 0
    assert f"backend cpu ({text})" in out


def test_the_report_without_compiled_kernels(comm, monkeypatch):
    monkeypatch.setenv("DISTSCAN_CPU", "numpy")
    assert binding.bind(comm, "cpu", pytest.fail).device == f"{os.uname().machine}, NumPy"


def test_a_bad_library_on_one_rank(comm, monkeypatch):
    if comm.rank == comm.size - 1:
        monkeypatch.setenv("DISTSCAN_CPU", "none")
    who = "" if comm.size == 1 else f"rank {comm.size - 1}: "
    everywhere(
        comm, ValueError, f"{who}DISTSCAN_CPU=none", lambda: binding.bind(comm, "cpu", print)
    )
