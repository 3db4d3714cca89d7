"""What a process that a rank has forked may do: scan on its own, and speak for nobody."""

import functools
import importlib
import pkgutil
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext, suppress

import numpy as np
import pytest
from mpi4py import MPI

import distscan
from distscan.cpu import library
from distscan.engine import cache
from support.forked import ended, forked


def in_a_fork(work):
    """Run ``work`` in a forked process; return whether it ended as it should."""
    return ended(forked(work)) == 0


def test_its_own_scan_is_right(comm):
    def work():
        y = distscan.scan(np.arange(5), comm=MPI.COMM_SELF)
        assert (y == [0, 1, 3, 6, 10]).all()

    distscan.scan(np.arange(5), comm=MPI.COMM_SELF)
    assert in_a_fork(work)


def test_it_is_no_rank(comm):
    def work():
        refused = pytest.raises(RuntimeError, match="forked") if comm.size > 1 else nullcontext()
        with refused:
            distscan.scan(np.arange(5), comm=comm)

    assert in_a_fork(work)
    distscan.scan(np.arange(5), comm=comm)


@pytest.mark.gpu
@pytest.mark.one_rank
def test_it_has_no_gpu(cp):
    """CUDA refuses what the forked process uses of its parent's; new plans are refused by name."""
    x = cp.arange(1000)
    plan = distscan.Plan(MPI.COMM_SELF, x.shape, x.dtype, backend="cuda")

    refused = r"forked|initialization"

    def work():
        with pytest.raises(RuntimeError, match=refused):
            plan(x)
        with pytest.raises(RuntimeError, match=refused):
            distscan.scan(x, comm=MPI.COMM_SELF)
        with pytest.raises(RuntimeError, match=refused):
            distscan.scan(x[:500], comm=MPI.COMM_SELF)
        y = distscan.scan(np.arange(5), comm=MPI.COMM_SELF)
        assert (y == [0, 1, 3, 6, 10]).all()

    for call in (plan, lambda x: distscan.scan(x, comm=MPI.COMM_SELF)):
        np.testing.assert_array_equal(call(x).get(), np.cumsum(np.arange(1000)))
    assert in_a_fork(work)
    np.testing.assert_array_equal(plan(x).get(), np.cumsum(np.arange(1000)))


def locks():
    """The locks of distscan's modules and of their objects, as (owner, name), by name."""
    for each in pkgutil.walk_packages(distscan.__path__, "distscan."):
        with suppress(ImportError):  # of packages that are not installed
            if not each.name.endswith("__main__"):
                importlib.import_module(each.name)
    modules = [each for name, each in sys.modules.items() if name.partition(".")[0] == "distscan"]
    owners = {module.__name__: module for module in modules}
    for module in modules:
        for name, each in vars(module).items():
            if type(each).__module__.partition(".")[0] == "distscan" and hasattr(each, "__dict__"):
                owners[f"{module.__name__}.{name}"] = each
            if isinstance(each, type) and each.__module__ == module.__name__:
                for field, value in vars(each).items():
                    if isinstance(value, functools.cached_property):
                        owners[f"{module.__name__}.{name}.{field}"] = value
    kinds = type(threading.Lock()), type(threading.RLock())
    return {
        f"{path}.{name}": (owner, name)
        for path, owner in owners.items()
        for name, value in vars(owner).items()
        if isinstance(value, kinds)
    }


@pytest.mark.one_rank
def test_no_lock_of_another_thread():
    """A process that is forked while another thread holds all locks."""
    names = locks()
    modules = {f"{module.__name__}._lock" for module in (library, cache)}
    assert {
        "distscan.job.formats.npy._PARSING",
        "distscan.cpu.threads._workers._lock",
        *modules,
    } < {*names}
    held, done = threading.Event(), threading.Event()

    def hold():
        with ExitStack() as every:
            for owner, name in names.values():
                every.enter_context(getattr(owner, name))
            held.set()
            done.wait(60)

    def work():
        for path, (owner, name) in names.items():
            assert getattr(owner, name).acquire(timeout=5), path
            getattr(owner, name).release()
        y = distscan.scan(np.arange(5))
        assert (y == [0, 1, 3, 6, 10]).all()

    threading.Thread(target=hold).start()
    assert held.wait(60)
    try:
        assert in_a_fork(work)
    finally:
        done.set()


def test_plans_of_another_thread():
    """A plan in use is lost to the child; the others, and the parent's, can be used."""
    inside, done, x = threading.Event(), threading.Event(), np.arange(5)

    def combine(a, b):
        inside.set()
        done.wait(60)
        return a + b

    slow = distscan.Operator("slow", combine)
    used = distscan.Plan(MPI.COMM_SELF, 5, "l", slow, backend="cpu")
    other = distscan.Plan(MPI.COMM_SELF, 5, "l", backend="cpu")

    def work():
        with pytest.raises(RuntimeError, match="when the process was forked: make a new one"):
            used(x)
        assert (other(x) == [0, 1, 3, 6, 10]).all()

    with ThreadPoolExecutor(1) as pool:
        y = pool.submit(used, x)
        assert inside.wait(60)
        try:
            assert in_a_fork(work)
        finally:
            done.set()
        np.testing.assert_array_equal(y.result(), np.cumsum(x))
    np.testing.assert_array_equal(used(x), np.cumsum(x))
