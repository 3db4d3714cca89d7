"""The cores, the memory and the GPUs of a rank, on machines that are made up here."""

import os
import sys

import numpy as np
import pytest

import distscan.cuda
from distscan import binding
from distscan.core.errors import BackendError
from distscan.cpu import library, threads
from distscan.cpu.memory import free_memory
from distscan.mpi import launcher
from support import gpu, processes
from support.processes import everywhere

# ---- The cores that a rank uses: its own, its share of the node's, or as many as it is told ------

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
    done = processes.python(program)
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


# ---- the report ----------------------------------------------------------------------------------


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


# ---- The memory that is free, from control groups and machines that are made up here -------------

MIB = 1 << 20


@pytest.fixture
def machine(tmp_path):
    """Write the files of a machine, by their paths; return what is free there."""

    def free(own, groups, memory="MemTotal: 99999999 kB\nMemAvailable: 1048576 kB\n"):
        for name, text in {"own": own, "meminfo": memory, **groups}.items():
            if text is not None:
                path = tmp_path / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
        names = "groups", "own", "meminfo"
        return free_memory(*(str(tmp_path / name) for name in names))

    return free


def numbers(rng):
    """A limit, what is used, what of it is cached, and what of that is shared memory."""
    return (int(rng.integers(low, low + 9)) * MIB for low in (500, 300, 80, 20))


def version_1(folder, limit, used, cache=0, shmem=0):
    where = f"groups/memory{folder}"
    return {
        f"{where}/memory.limit_in_bytes": f"{limit}\n",
        f"{where}/memory.usage_in_bytes": f"{used}\n",
        f"{where}/memory.stat": f"cache 1\nshmem 2\ntotal_cache {cache}\ntotal_shmem {shmem}\n",
    }


def version_2(folder, limit, used, file=0, shmem=0):
    where = f"groups{folder}"
    return {
        f"{where}/memory.max": f"{limit}\n",
        f"{where}/memory.current": f"{used}\n",
        f"{where}/memory.stat": f"anon 5\nfile {file}\nkernel 7\nshmem {shmem}\n",
    }


@pytest.mark.one_rank
def test_no_groups(machine):
    assert machine(None, {}) == 1 << 30
    assert machine("", {}) == 1 << 30
    assert machine("0::/\n", {}) == 1 << 30


@pytest.mark.one_rank
def test_an_unknown_machine(machine):
    """Nothing is known: there is as much as anyone asks for."""
    assert machine(None, {}, None) >= 1 << 60
    assert machine(None, {}, "MemTotal: 5 kB\nMemFree: 3 kB\n") >= 1 << 60


@pytest.mark.one_rank
@pytest.mark.parametrize("own", ["/", "/a", "/a/b", "/a/b c:d"])
def test_version_2(own, machine, rng):
    """What is in the page cache is free, and what is in shared memory is not."""
    limit, used, file, shmem = numbers(rng)
    groups = version_2(own.rstrip("/"), limit, used, file, shmem)
    assert machine(f"0::{own}\n", groups) == limit - used + file - shmem


@pytest.mark.one_rank
@pytest.mark.parametrize("lowest", ["", "/a", "/a/b", "/a/b/c"])
def test_version_2_from_group_to_group(lowest, machine, rng):
    """The least of all that the group is in, wherever the limit is."""
    groups = {}
    for folder in ("", "/a", "/a/b", "/a/b/c"):
        spare = int(rng.integers(200, 300)) * MIB
        groups |= version_2(folder, 10 * MIB + (MIB if folder == lowest else spare), 10 * MIB)
    assert machine("0::/a/b/c\n", groups) == MIB


@pytest.mark.one_rank
def test_version_2_without_limits(machine):
    groups = version_2("/a", "max", 77) | version_2("/a/b", 100 * MIB, 60 * MIB)
    assert machine("0::/a/b\n", groups) == 40 * MIB
    assert machine("0::/a\n", groups) == 1 << 30


@pytest.mark.one_rank
def test_other_groups_do_not_count(machine):
    groups = version_2("/other", 100, 99) | version_2("/a/b", 300 * MIB, 0)
    assert machine("0::/a/b\n", groups) == 300 * MIB
    assert machine("0::/a\n", groups) == 1 << 30


@pytest.mark.one_rank
@pytest.mark.parametrize("own", ["/", "/a", "/a/b"])
@pytest.mark.parametrize("controllers", ["memory", "cpu,memory", "memory,hugetlb"])
def test_version_1(controllers, own, machine, rng):
    limit, used, cache, shmem = numbers(rng)
    groups = version_1(own.rstrip("/"), limit, used, cache, shmem)
    lines = f"12:cpuset:/elsewhere\n7:{controllers}:{own}\n3:name=systemd:/other\n"
    assert machine(lines, groups) == limit - used + cache - shmem


@pytest.mark.one_rank
def test_version_1_without_limits(machine):
    """It has no word for it: the largest number of whole pages stands for it."""
    groups = version_1("", (1 << 63) - 4096, 5) | version_1("/a", (1 << 63) - 4096, 5)
    assert machine("7:memory:/a\n", groups) == 1 << 30
    assert machine("7:memory:/a\n", groups | version_1("/a", 9 * MIB, MIB)) == 8 * MIB


@pytest.mark.one_rank
def test_a_container_sees_itself_at_the_top(machine):
    """The group's name is the host's, and the folder of that name is not there."""
    own, top = "7:memory:/docker/0123\n0::/docker/0123\n", version_1("", 64 * MIB, 24 * MIB)
    assert machine(own, top) == 40 * MIB
    assert machine(own, version_2("", 48 * MIB, 24 * MIB)) == 24 * MIB


@pytest.mark.one_rank
def test_both_versions(machine):
    """The memory is in one of them; the other has no such files."""
    own = "7:memory:/a\n0::/b\n"
    assert machine(own, version_1("/a", 50 * MIB, 0)) == 50 * MIB
    assert machine(own, version_2("/b", 30 * MIB, 0)) == 30 * MIB


@pytest.mark.one_rank
def test_controllers_are_whole_words(machine):
    assert machine("7:memory_other:/a\n", version_1("/a", 1, 0)) == 1 << 30


@pytest.mark.one_rank
def test_a_group_above_its_limit(machine):
    """A limit may be set below what is in use."""
    assert machine("0::/a\n", version_2("/a", 10 * MIB, 11 * MIB)) == 0
    assert machine("0::/a\n", version_2("/a", 10 * MIB, 11 * MIB, 3 * MIB, MIB)) == MIB


@pytest.mark.one_rank
@pytest.mark.parametrize("text", ["", "\n", "nothing\n", "-1\n", "1.5\n"])
def test_files_of_another_form(text, machine):
    """They count as no limit; the machine's own memory does."""
    broken = {"groups/a/memory.max": text, "groups/a/memory.current": "5\n"}
    assert machine("0::/a\n", broken) == 1 << 30
    broken = {"groups/a/memory.max": "5\n", "groups/a/memory.current": text}
    assert machine("0::/a\n", broken) == 1 << 30


@pytest.mark.one_rank
@pytest.mark.parametrize("lines", ["garbage\n", ":::\n", "1:2\n", "\n\n", "0::\n"])
def test_lines_of_another_form(lines, machine):
    assert machine(lines, {}) == 1 << 30


@pytest.mark.one_rank
def test_without_statistics(machine):
    groups = version_2("/a", 10 * MIB, 4 * MIB)
    del groups["groups/a/memory.stat"]
    assert machine("0::/a\n", groups) == 6 * MIB


@pytest.mark.one_rank
def test_the_machine_has_less(machine):
    memory = "MemFree:    5 kB\nMemAvailable:   2048 kB\nCached: 7 kB\nHugePages_Total:       0\n"
    assert machine("0::/a\n", version_2("/a", 10 * MIB, 0), memory) == 2 * MIB


@pytest.mark.one_rank
def test_here():
    assert 0 < free_memory() < 1 << 50


# ---- Which backend and which GPU each rank uses; a stand-in plays the GPUs, on any machine -------


@pytest.fixture
def gpus(comm, monkeypatch):
    """Stand in for the CUDA backend: a node with so many GPUs, and ranks that cannot use them."""

    def install(count, without=()):
        def bind(local_rank):
            if comm.rank in without:
                raise BackendError("no NVIDIA GPU is visible; look at CUDA_VISIBLE_DEVICES")
            return "Some GPU", f"address {local_rank % count}"

        gpu.stand_in_gpus(monkeypatch, bind=bind)

    return install


def refuse(message):
    raise AssertionError(f"warned: {message}")


def test_one_rank_per_gpu(gpus, comm):
    gpus(comm.size)
    bound = binding.bind(comm, "auto", refuse)
    assert (bound.name, bound.device, bound.nodes) == ("cuda", "Some GPU", 1)


def test_shared_gpus_are_warned_of(gpus, comm):
    gpus(1)
    warnings = []
    assert binding.bind(comm, "cuda", warnings.append).name == "cuda"
    assert len(warnings) == (1 if comm.size > 1 else 0)
    assert all(f"{comm.size} ranks share a GPU" in warning for warning in warnings)


def test_auto_uses_the_cpu_where_one_rank_has_no_gpu(gpus, comm):
    """All ranks, not some of them; and the report says why."""
    gpus(8, without=[comm.size - 1])
    bound = binding.bind(comm, "auto", refuse)
    assert bound.name == "cpu"
    assert bound.device.endswith(": no NVIDIA GPU is visible")


def test_cuda_fails_where_one_rank_has_no_gpu(gpus, comm):
    gpus(8, without=[comm.size - 1])
    with pytest.raises(BackendError, match="no NVIDIA GPU is visible; look at CUDA_VISIBLE"):
        binding.bind(comm, "cuda", refuse)


def test_no_cupy(comm, monkeypatch):
    monkeypatch.setitem(sys.modules, "distscan.cuda.memory", None)
    monkeypatch.delattr(distscan.cuda, "memory", raising=False)
    with pytest.raises(BackendError, match=r"pip install '\.\[cuda13\]'"):
        binding.bind(comm, "cuda", refuse)
    assert "CuPy cannot be imported" in binding.bind(comm, "auto", refuse).device


def test_the_cpu_asks_for_no_gpu(gpus, comm):
    gpus(8, without=range(comm.size))
    assert binding.bind(comm, "cpu", refuse).name == "cpu"
