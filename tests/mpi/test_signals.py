"""Signals wait until a collective call has ended; processes that a rank has forked."""

import functools
import importlib
import os
import pkgutil
import signal
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
from distscan.mpi import signals
from support.processes import ended, forked

# ---- signals that raise wait until a collective call has ended, and no rank is left behind -------


@pytest.fixture
def handled():
    """SIGUSR1 raises, from a handler that is put in place behind distscan's."""

    def raises(number, frame):
        raise TimeoutError("a signal")

    before = signal.signal(signal.SIGUSR1, raises)
    yield signal.SIGUSR1
    signal.signal(signal.SIGUSR1, before)


def test_a_signal_inside_waits_for_the_end(handled):
    done = []

    @signals.uninterruptible
    def inner():
        os.kill(os.getpid(), handled)
        sum(range(1000))
        done.append("inner")

    @signals.uninterruptible
    def outer():
        signals.defer()
        inner()
        done.append("outer")

    with pytest.raises(TimeoutError):
        outer()
    assert done == ["inner", "outer"]
    with pytest.raises(TimeoutError):  # outside, at once
        os.kill(os.getpid(), handled)
    signals.uninterruptible(lambda: None)()  # nothing waits any more


def test_all_signals_inside_a_call_are_handled_at_its_end(handled):
    """One of each kind, even if the handler of the first raises; none is left for a later call."""
    seen = []
    before = signal.signal(signal.SIGUSR2, lambda number, frame: seen.append(number))
    try:

        @signals.uninterruptible
        def call():
            signals.defer()
            for number in (handled, handled, signal.SIGUSR2, signal.SIGUSR2):
                os.kill(os.getpid(), number)
            assert seen == []

        with pytest.raises(TimeoutError):
            call()
        assert seen == [signal.SIGUSR2]
        signals.uninterruptible(lambda: None)()
        assert seen == [signal.SIGUSR2]
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_a_signal_raises_in_a_step_that_may_be_interrupted(handled):
    """One that came before raises when such a step begins."""
    done = []

    @signals.interruptible
    def step(number):
        done.append(f"step {number}")
        if number == 2:
            os.kill(os.getpid(), handled)
        inner(number)
        done.append("not reached")

    @signals.uninterruptible
    def inner(number):
        if number == 3:
            os.kill(os.getpid(), handled)
        done.append("inner")

    @signals.uninterruptible
    def outer(number):
        signals.defer()
        if number == 1:
            os.kill(os.getpid(), handled)
        done.append("outer")
        try:
            step(number)
        finally:
            done.append("end")

    for number, want in (
        (1, ["outer", "end"]),
        (2, ["outer", "step 2", "end"]),
        (3, ["outer", "step 3", "inner", "end"]),
    ):
        done.clear()
        with pytest.raises(TimeoutError):
            outer(number)
        assert done == want
    signals.uninterruptible(lambda: None)()  # nothing waits any more


def test_another_threads_call_does_not_hold_up_a_signal(handled):
    inside, go_on = threading.Event(), threading.Event()

    @signals.uninterruptible
    def waits():
        inside.set()
        assert go_on.wait(60)

    signals.defer()
    thread = threading.Thread(target=waits)
    thread.start()
    assert inside.wait(60)
    with pytest.raises(TimeoutError):
        os.kill(os.getpid(), handled)
    go_on.set()
    thread.join()


def test_a_new_handler_is_found(handled):
    signals.defer()
    seen = []
    before = signal.signal(signal.SIGUSR1, lambda *_: seen.append("new"))

    @signals.uninterruptible
    def call():
        signals.defer()
        os.kill(os.getpid(), handled)
        sum(range(1000))
        return list(seen)

    assert call() == []
    assert seen == ["new"]
    signal.signal(signal.SIGUSR1, before)


def test_all_signals_that_wait_are_delivered(handled):
    """Each once, in the order in which they came."""
    seen, other = [], signal.SIGUSR2
    before = {each: signal.signal(each, lambda number, _: seen.append(number))
              for each in (handled, other)}  # fmt: skip

    @signals.uninterruptible
    def call():
        signals.defer()
        for each in (other, handled):
            os.kill(os.getpid(), each)
            sum(range(1000))
        return list(seen)

    try:
        assert call() == []
        assert seen == [other, handled]
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def test_another_thread_leaves_new_handlers_alone(handled):
    """Python sets handlers in the main thread; there the next call finds them."""
    faults = []

    def defer():
        try:
            signals.defer()
        except ValueError as error:
            faults.append(error)

    thread = threading.Thread(target=defer)
    thread.start()
    thread.join()
    assert not faults

    @signals.uninterruptible
    def call():
        signals.defer()
        os.kill(os.getpid(), handled)
        sum(range(1000))
        faults.append("the end")

    with pytest.raises(TimeoutError):
        call()
    assert faults == ["the end"]


@pytest.mark.timeout(300)
def test_interrupted_ranks_stay_in_step(comm, rng):
    """At any moment of any call; each rank compares notes with the others behind it."""
    if comm.size == 1:
        pytest.skip("one rank cannot be out of step")
    own = np.random.default_rng(comm.rank)

    def interrupt(number, frame):
        while frame is not None:  # nothing else of the test is interrupted
            if frame.f_code.co_filename.startswith(os.path.dirname(distscan.__file__)):
                raise KeyboardInterrupt
            frame = frame.f_back

    before = signal.signal(signal.SIGINT, interrupt)
    distscan.scan(np.zeros(3))
    interrupted = 0
    try:
        for turn in range(300):
            timer = None
            if turn % 10 == 0 and comm.rank == turn // 10 % comm.size:
                timer = threading.Timer(own.random() * 2e-3, os.kill, (os.getpid(), signal.SIGINT))
                timer.start()
            said, y = "finished", None
            try:
                y = distscan.scan(np.full(3, comm.rank + turn), ("sum", "max")[turn % 2])
            except KeyboardInterrupt:
                said = "interrupted"
                interrupted += 1
            if y is not None and turn % 2 == 0:
                assert y[0] == sum(3 * (r + turn) for r in range(comm.rank)) + comm.rank + turn
            everyone = comm.allgather((turn, said))
            assert {number for number, _ in everyone} == {turn}
            if timer is not None:
                timer.join()
    finally:
        signal.signal(signal.SIGINT, before)


# ---- what a process that a rank has forked may do: scan on its own, and speak for nobody ---------


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
