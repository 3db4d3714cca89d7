"""The memory that is free, from control groups and machines that are made up here."""

import pytest

from distscan.cpu.memory import free_memory

pytestmark = pytest.mark.one_rank
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


def test_no_groups(machine):
    assert machine(None, {}) == 1 << 30
    assert machine("", {}) == 1 << 30
    assert machine("0::/\n", {}) == 1 << 30


def test_an_unknown_machine(machine):
    """Nothing is known: there is as much as anyone asks for."""
    assert machine(None, {}, None) >= 1 << 60
    assert machine(None, {}, "MemTotal: 5 kB\nMemFree: 3 kB\n") >= 1 << 60


@pytest.mark.parametrize("own", ["/", "/a", "/a/b", "/a/b c:d"])
def test_version_2(own, machine, rng):
    """What is in the page cache is free, and what is in shared memory is not."""
    limit, used, file, shmem = numbers(rng)
    groups = version_2(own.rstrip("/"), limit, used, file, shmem)
    assert machine(f"0::{own}\n", groups) == limit - used + file - shmem


@pytest.mark.parametrize("lowest", ["", "/a", "/a/b", "/a/b/c"])
def test_version_2_from_group_to_group(lowest, machine, rng):
    """The least of all that the group is in, wherever the limit is."""
    groups = {}
    for folder in ("", "/a", "/a/b", "/a/b/c"):
        spare = int(rng.integers(200, 300)) * MIB
        groups |= version_2(folder, 10 * MIB + (MIB if folder == lowest else spare), 10 * MIB)
    assert machine("0::/a/b/c\n", groups) == MIB


def test_version_2_without_limits(machine):
    groups = version_2("/a", "max", 77) | version_2("/a/b", 100 * MIB, 60 * MIB)
    assert machine("0::/a/b\n", groups) == 40 * MIB
    assert machine("0::/a\n", groups) == 1 << 30


def test_other_groups_do_not_count(machine):
    groups = version_2("/other", 100, 99) | version_2("/a/b", 300 * MIB, 0)
    assert machine("0::/a/b\n", groups) == 300 * MIB
    assert machine("0::/a\n", groups) == 1 << 30


@pytest.mark.parametrize("own", ["/", "/a", "/a/b"])
@pytest.mark.parametrize("controllers", ["memory", "cpu,memory", "memory,hugetlb"])
def test_version_1(controllers, own, machine, rng):
    limit, used, cache, shmem = numbers(rng)
    groups = version_1(own.rstrip("/"), limit, used, cache, shmem)
    lines = f"12:cpuset:/elsewhere\n7:{controllers}:{own}\n3:name=systemd:/other\n"
    assert machine(lines, groups) == limit - used + cache - shmem


def test_version_1_without_limits(machine):
    """It has no word for it: the largest number of whole pages stands for it."""
    groups = version_1("", (1 << 63) - 4096, 5) | version_1("/a", (1 << 63) - 4096, 5)
    assert machine("7:memory:/a\n", groups) == 1 << 30
    assert machine("7:memory:/a\n", groups | version_1("/a", 9 * MIB, MIB)) == 8 * MIB


def test_a_container_sees_itself_at_the_top(machine):
    """The group's name is the host's, and the folder of that name is not there."""
    own, top = "7:memory:/docker/0123\n0::/docker/0123\n", version_1("", 64 * MIB, 24 * MIB)
    assert machine(own, top) == 40 * MIB
    assert machine(own, version_2("", 48 * MIB, 24 * MIB)) == 24 * MIB


def test_both_versions(machine):
    """The memory is in one of them; the other has no such files."""
    own = "7:memory:/a\n0::/b\n"
    assert machine(own, version_1("/a", 50 * MIB, 0)) == 50 * MIB
    assert machine(own, version_2("/b", 30 * MIB, 0)) == 30 * MIB


def test_controllers_are_whole_words(machine):
    assert machine("7:memory_other:/a\n", version_1("/a", 1, 0)) == 1 << 30


def test_a_group_above_its_limit(machine):
    """A limit may be set below what is in use."""
    assert machine("0::/a\n", version_2("/a", 10 * MIB, 11 * MIB)) == 0
    assert machine("0::/a\n", version_2("/a", 10 * MIB, 11 * MIB, 3 * MIB, MIB)) == MIB


@pytest.mark.parametrize("text", ["", "\n", "nothing\n", "-1\n", "1.5\n"])
def test_files_of_another_form(text, machine):
    """They count as no limit; the machine's own memory does."""
    broken = {"groups/a/memory.max": text, "groups/a/memory.current": "5\n"}
    assert machine("0::/a\n", broken) == 1 << 30
    broken = {"groups/a/memory.max": "5\n", "groups/a/memory.current": text}
    assert machine("0::/a\n", broken) == 1 << 30


@pytest.mark.parametrize("lines", ["garbage\n", ":::\n", "1:2\n", "\n\n", "0::\n"])
def test_lines_of_another_form(lines, machine):
    assert machine(lines, {}) == 1 << 30


def test_without_statistics(machine):
    groups = version_2("/a", 10 * MIB, 4 * MIB)
    del groups["groups/a/memory.stat"]
    assert machine("0::/a\n", groups) == 6 * MIB


def test_the_machine_has_less(machine):
    memory = "MemFree:    5 kB\nMemAvailable:   2048 kB\nCached: 7 kB\nHugePages_Total:       0\n"
    assert machine("0::/a\n", version_2("/a", 10 * MIB, 0), memory) == 2 * MIB


def test_here():
    assert 0 < free_memory() < 1 << 50
