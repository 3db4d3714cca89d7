"""The memory that a file job takes, as the system counts it: ``--memory`` and 10 % at most."""

import threading
import time

import numpy as np
import pytest

import distscan

pytestmark = pytest.mark.one_rank

MIB = 1 << 20
SIZE = 96 * MIB


def anonymous():
    """Bytes of anonymous and shared memory of this process; mapped pages are not counted."""
    with open("/proc/self/status") as file:
        found = dict(line.split(":") for line in file.read().splitlines())
    return int(found["RssAnon"].split()[0]) << 10


def highest(work):
    """Run a job, and return the most memory at a time that it added."""
    before, seen, ended = anonymous(), [0], threading.Event()

    def watch():
        while not ended.is_set():
            seen.append(anonymous())
            time.sleep(0.0005)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        work()
    finally:
        ended.set()
        thread.join()
    assert len(seen) > 20
    return max(seen) - before


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A file much larger than what its scans may take."""
    path = tmp_path_factory.mktemp("memory") / "x.npy"
    x = np.lib.format.open_memmap(path, "w+", "i4", (SIZE // 4,))
    x[...] = np.arange(x.size) % 1009
    del x
    return path


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    ("memory", "options"),
    [(16, {}), (32, {"dtype": "f8"}), (16, {"reverse": True, "op": "max"}), (24, {"raw": "f4"})],
    ids=["in_place", "wider", "reverse", "raw"],
)
def test_as_asked_for(memory, options, threads, source, tmp_path):
    def work():
        distscan.scan_file(source, tmp_path / "y.npy", memory=memory * MIB, threads=threads,
                           backend="cpu", force=True, **options)  # fmt: skip

    work()  # what is imported, and threads' stacks, are not the job's
    assert highest(work) <= 1.1 * memory * MIB + MIB


def test_found_otherwise(source, tmp_path):
    """One rank needs no shard in memory, however much of it is free."""

    def work():
        distscan.scan_file(source, tmp_path / "y.npy", threads=2, backend="cpu", force=True)

    work()
    assert highest(work) < SIZE / 2
