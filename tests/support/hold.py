"""A kernel that keeps a stream, or whole multiprocessors, busy until it is let go."""

import functools

import numpy as np

SOURCE = r"""
extern "C" __global__ void hold(volatile int* go, long long nanoseconds) {
  extern __shared__ int whole[];  // no other block beside it
  long long begin, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  do {
    __nanosleep(1000);
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (!*go && now - begin < nanoseconds);
}
"""


@functools.cache
def kernel():
    """Compile and load it, which could not be done while it runs."""
    import cupy

    return cupy.RawKernel(SOURCE, "hold")


class Held:
    """So many blocks on a stream, until ``release``, or for no longer than ``seconds``."""

    def __init__(self, stream, blocks=1, shared=0, seconds=3):
        import cupy

        self._memory = cupy.cuda.alloc_pinned_memory(4)
        self._go = np.frombuffer(self._memory, np.int32, 1)
        self._go[0] = 0
        if shared:
            kernel().max_dynamic_shared_size_bytes = shared
        arguments = np.uint64(self._memory.ptr), np.int64(seconds * 1e9)
        with stream:
            kernel()((blocks,), (1,), arguments, shared_mem=shared)

    def release(self):
        self._go[0] = 1


def warm(cupy):
    """Load the kernel."""
    Held(cupy.cuda.Stream(non_blocking=True)).release()
    cupy.cuda.Device().synchronize()
