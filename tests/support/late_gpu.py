"""A CuPy of memory and copies alone, whose queue is worked off as late as can be."""

import ctypes
from types import SimpleNamespace


class Pointer:
    """Memory on the GPU, as ``cupy.cuda.MemoryPointer``."""

    def __init__(self, queue, ptr):
        self.queue, self.ptr = queue, ptr

    def __add__(self, offset):
        return Pointer(self.queue, self.ptr + offset)

    def copy_to_host_async(self, host, size):
        self.queue.append(lambda: ctypes.memmove(host, self.ptr, size))

    def copy_from_host_async(self, host, size):
        self.queue.append(lambda: ctypes.memmove(self.ptr, host, size))


class Event:
    def __init__(self, queue):
        self.queue, self.at = queue, 0

    def record(self):
        self.at = len(self.queue)

    def synchronize(self):
        work_off(self.queue, self.at)


def work_off(queue, end):
    """Do what is queued before ``end``, in order; what is done stays in place, as nothing."""
    for at in range(end):
        queue[at]()
        queue[at] = lambda: None


def make():
    """Return what stands for CuPy, and its queue."""
    queue = []

    def pinned(size):
        memory = type("Pinned", (ctypes.c_char * size,), {})()
        memory.ptr = ctypes.addressof(memory)
        return memory

    def empty(size, dtype):
        memory = pinned(size)
        return SimpleNamespace(data=Pointer(queue, memory.ptr), nbytes=size, memory=memory)

    stream = SimpleNamespace(synchronize=lambda: work_off(queue, len(queue)))
    cuda = SimpleNamespace(
        alloc_pinned_memory=pinned,
        Event=lambda **_: Event(queue),
        get_current_stream=lambda: stream,
        runtime=SimpleNamespace(CUDARuntimeError=RuntimeError),
    )
    return SimpleNamespace(empty=empty, cuda=cuda), queue
