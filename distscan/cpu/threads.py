"""The threads of a rank, which run the compiled kernels side by side: their number, their calls."""

import functools
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from operator import index
from queue import SimpleQueue
from typing import Any

# ---- the cores of a rank ---------------------------------------------------------------------


def allowed() -> int:
    """Return the number of cores in this process's affinity mask, which launchers set."""
    return len(os.sched_getaffinity(0))


def unbind() -> None:
    """Let this thread run on every core that the control group allows, whatever its mask is.

    Launchers bind a rank to one core: Open MPI does by default. That is right for a rank that
    computes on it, but not for threads that only copy on behalf of a GPU.
    """
    with suppress(OSError):  # a system that allows no change
        os.sched_setaffinity(0, range(os.cpu_count() or 1))


@functools.cache
def of_node(groups: str = "/sys/fs/cgroup", process: str = "/proc/self/cgroup") -> int:
    """Return the number of cores that the ranks of this node share.

    The control group of a container or a batch job (version 2) may have fewer than the machine: a
    set of cores, or a quota of processor time, which is rounded up to cores.
    """
    cores = os.cpu_count() or 1
    group = _read(process).rpartition("0::")[2].strip()  # such as /system.slice/job.scope
    with suppress(ValueError):  # no file: all cores
        cores = min(cores, _length(_read(f"{groups}{group}/cpuset.cpus.effective")))
    while True:
        quota, _, period = _read(f"{groups}{group}/cpu.max").partition(" ")
        with suppress(ValueError):  # no file, or "max 100000": no quota
            cores = min(cores, -(-int(quota) // int(period)))
        if not group.strip("/"):
            return max(1, cores)
        group = os.path.dirname(group)  # its quota counts, too


def _length(cpus: str) -> int:
    """Return the length of a list of cores.

    >>> _length("0-3,8")
    5
    """
    ranges = [part.partition("-") for part in cpus.split(",")]
    return sum(int(last or first) - int(first) + 1 for first, _, last in ranges)


def _read(path: str) -> str:
    """Return the text of a file; nothing if there is no such file."""
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""


# ---- the calls of a function in several threads ----------------------------------------------


def usable(ranks: int) -> int:
    """Return the number of cores that this rank may use for itself; ``ranks`` share its node.

    ``DISTSCAN_THREADS`` sets the number.
    """
    if setting := os.environ.get("DISTSCAN_THREADS"):
        return parse_threads(int(setting) if setting.isdecimal() else setting, "DISTSCAN_THREADS")
    return max(1, min(allowed(), of_node() // ranks))


def parse_threads(threads: Any, name: str = "threads") -> int:
    """Return a number of threads as an integer; raise ValueError if it is not at least 1.

    >>> parse_threads(4)
    4
    """
    number = 0
    with suppress(TypeError):
        number = 0 if isinstance(threads, bool) else index(threads)
    if number < 1:
        raise ValueError(f"{name} must be an integer of at least 1, not {threads!r}")
    return number


def run(
    function: Callable[[], object], threads: int, stop: Callable[[], None] = lambda: None
) -> None:
    """Call a function in up to ``threads`` threads, this one among them, until all have returned.

    The function divides its work among the threads that call it. So the caller waits only for
    threads that have begun. An exception, also Ctrl-C, is raised when all threads have returned,
    because they use the arrays of this call. ``stop`` is called before that, perhaps several times.
    After it, no thread waits for the one that failed.
    """
    call, fault, returned = _Call(function, stop), None, False
    try:
        _workers.invite(call, threads - 1)
        function()
        returned = True
    finally:
        while call.invited:
            try:
                if not returned:
                    stop()
                call.end()
                _workers.dismiss(call)
            except BaseException as interrupt:
                fault = interrupt
    if fault := fault or call.fault:
        raise fault


class _Call:
    """A call of a function in several threads; a thread that comes after its end does nothing.

    A signal's handler may raise in the caller's thread at any moment, and leaves the locks free:
    ``with`` of a plain lock is safe, but a condition's is not.
    """

    def __init__(self, function: Callable[[], object], stop: Callable[[], None]) -> None:
        self.fault: BaseException | None = None
        self.invited = 0  # how many other threads may join
        self._function, self._stop, self._lock = function, stop, threading.Lock()
        self._open, self._inside = True, 0  # whether threads may join; how many are in the function
        self._leaves: SimpleQueue[None] = SimpleQueue()  # wakes the caller

    def join(self) -> None:
        """Take part in the call; for the other threads."""
        with self._lock:
            if not self._open:
                return
            self._inside += 1
        try:
            self._function()
        except BaseException as fault:
            self.fault = fault
            self._stop()
        with self._lock:
            self._inside -= 1
        self._leaves.put(None)

    def end(self) -> None:
        """Let no further thread join, and wait for those that have; for the caller."""
        with self._lock:
            self._open = False
        while self._inside:
            self._leaves.get()


class _Workers:
    """The threads of this process that wait for calls. They are daemons, so Python may exit."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin without threads: no thread survives a fork."""
        self._calls: SimpleQueue[_Call] = SimpleQueue()
        self._lock = threading.RLock()  # a signal's handler may scan, too
        self._number, self._invited = 0, 0  # of threads; of invitations to calls in flight

    def invite(self, call: _Call, number: int) -> None:
        """Let ``number`` threads join a call as soon as they are free; start missing threads."""
        with self._lock:
            call.invited = number
            self._invited += number
            # Callers in several Python threads share as many workers as the machine has cores.
            target = min(self._invited, max(number, os.cpu_count() or 1))
            with suppress(RuntimeError):  # the system starts no more threads: fewer do the work
                while self._number < target:
                    threading.Thread(target=self._work, name="distscan", daemon=True).start()
                    self._number += 1
        for _ in range(number):
            self._calls.put(call)

    def dismiss(self, call: _Call) -> None:
        """Count the threads that were invited to a call as free."""
        with self._lock:
            self._invited = max(0, self._invited - call.invited)
            call.invited = 0

    def _work(self) -> None:
        calls = self._calls
        while True:
            calls.get().join()


_workers = _Workers()
os.register_at_fork(after_in_child=_workers.forget)
