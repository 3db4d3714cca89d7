"""The devices of launch/tools/stress.py: a GPU by CuPy, or the host, with the same methods."""

import os
import random
import select
import subprocess
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

POISON = 0xA5
MOST = 6 << 30  # bytes of GPU memory
RESULTS = 1 << 12  # results that are compared in one step, at most

# The first kernel counts the wrong bytes of a result. The second keeps the GPU busy.
KERNELS = r"""
extern "C" __global__ void differ(const unsigned char* got, const unsigned char* want,
                                  long long n, unsigned int* wrong) {
  unsigned int count = 0;
  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n;
       i += (long long)gridDim.x * blockDim.x) {
    count += got[i] != want[i];
  }
  if (count) atomicAdd(wrong, count);
}

extern "C" __global__ void spin(long long nanoseconds) {
  long long begin, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (now - begin < nanoseconds);
}
"""


class Cpu:
    """Host memory: there are no streams, and results are complete when a call returns."""

    name = "cpu"
    streams = ("host",)
    captures = ()  # streams that can be captured

    def __init__(self) -> None:
        self._wrong = np.zeros((2, RESULTS), np.uint32)

    def here(self) -> AbstractContextManager[Any]:
        """Return the context that a thread enters before it works."""
        return nullcontext()

    def on(self, stream: str) -> AbstractContextManager[Any]:
        """Make a stream current."""
        return nullcontext()

    def put(self, array: Any) -> Any:
        """Return a copy of an array on this device; None for None."""
        return None if array is None else array.copy()

    def empty(self, like: Any) -> Any:
        """Allocate an array like another."""
        return np.empty_like(like)

    def poison(self, array: Any) -> None:
        """Fill an array with bytes that no result has."""
        array.reshape(-1).view(np.uint8)[...] = POISON

    def copy(self, source: Any, target: Any) -> None:
        """Copy ``source`` to ``target``; do nothing for None."""
        if source is not None:
            target[...] = source

    def compare(self, got: Any, want: Any, result: int, late: int = 0) -> None:
        """Compare two arrays; ``wrong`` returns how many bytes of result ``result`` differ."""
        pair = (array.reshape(-1).view(np.uint8) for array in (got, want))
        self._wrong[late, result] += np.count_nonzero(np.not_equal(*pair))

    def settle(self) -> None:
        """Wait for all work."""

    def wrong(self) -> Any:
        """Return the numbers of wrong bytes [at once or late, result]; reset them to 0."""
        counts = self._wrong.copy()
        self._wrong[...] = 0
        return counts

    def host(self, array: Any) -> Any:
        """Return an array that the host can read."""
        return array

    def close(self) -> None:
        """Do nothing: there is no other process."""


class Gpu:
    """CuPy arrays, on streams of every kind."""

    name = "cuda"
    streams = ("null", "ptds", "first", "second", "urgent", "blocking", "passing")
    captures = ("first", "second", "urgent", "passing")

    def __init__(self, local_rank: int, neighbour: bool) -> None:
        import cupy  # noqa: PLC0415 - it may be absent

        self._cupy = cupy
        self.gpu = local_rank % cupy.cuda.runtime.getDeviceCount()
        self.here().use()
        cupy.get_default_memory_pool().set_limit(MOST)
        stream = cupy.cuda.Stream
        self._streams = {
            "null": stream.null,
            "ptds": stream.ptds,
            "first": stream(non_blocking=True),
            "second": stream(non_blocking=True),
            "urgent": stream(non_blocking=True, priority=-1),
            "blocking": stream(),
        }
        self._neighbour: Any = None
        self._differ = cupy.RawKernel(KERNELS, "differ")
        self._wrong = cupy.zeros((2, RESULTS), np.uint32)
        self._counts = [[row[i : i + 1] for i in range(RESULTS)] for row in self._wrong]
        self.compare(self._wrong, self._wrong, 0)  # compiles the kernel
        self.settle()
        if neighbour:  # it runs until this process closes its input, or ends
            command = [sys.executable, __file__, str(self.gpu)]
            self._neighbour = subprocess.Popen(command, stdin=subprocess.PIPE)

    def here(self) -> Any:
        """Return the GPU, which a thread enters before it works."""
        return self._cupy.cuda.Device(self.gpu)

    def on(self, stream: str) -> Any:
        """Make a stream current."""
        return self._streams[stream]

    def put(self, array: Any) -> Any:
        """Return a copy of an array on the GPU; None for None."""
        return None if array is None else self._cupy.array(array)

    def empty(self, like: Any) -> Any:
        """Allocate an array like another."""
        return self._cupy.empty(like.shape, like.dtype)

    def poison(self, array: Any) -> None:
        """Fill an array with bytes that no result has, on the current stream."""
        if array.nbytes > 0:
            array.data.memset_async(POISON, array.nbytes)

    def copy(self, source: Any, target: Any) -> None:
        """Copy ``source`` to ``target`` on the current stream; do nothing for None."""
        if source is not None and source.nbytes > 0:
            target.data.copy_from_device_async(source.data, source.nbytes)

    def compare(self, got: Any, want: Any, result: int, late: int = 0) -> None:
        """Compare two arrays on the current stream; ``wrong`` returns how many bytes differ."""
        if got.nbytes > 0:
            blocks = min(-(-got.nbytes // 256), 1024)
            arguments = got, want, np.int64(got.nbytes), self._counts[late][result]
            self._differ((blocks,), (256,), arguments)

    def settle(self) -> None:
        """Wait for all work; check that the other process runs; free memory; make a new stream."""
        self.here().synchronize()
        if self._neighbour is not None and self._neighbour.poll() is not None:
            raise RuntimeError(f"the neighbour ended with status {self._neighbour.returncode}")
        # Other streams cannot use the pool's memory of streams that no longer exist.
        pool = self._cupy.get_default_memory_pool()
        if pool.total_bytes() > MOST // 2:
            pool.free_all_blocks()
        self._streams["passing"] = self._cupy.cuda.Stream(non_blocking=True)

    def wrong(self) -> Any:
        """Return the numbers of wrong bytes [at once or late, result]; reset them to 0."""
        counts = self._wrong.get()
        self._wrong.fill(0)
        return counts

    def host(self, array: Any) -> Any:
        """Return a copy that the host can read."""
        return array.get()

    def capture(self, call: Any) -> Any:
        """Return the CUDA graph of a call, or None if the call refuses to be captured."""
        on, fault = self._cupy.cuda.Stream(non_blocking=True), None  # no other thread uses it
        with on:
            on.begin_capture()
            try:
                call()
            except Exception as error:
                fault = error
            try:
                graph = on.end_capture()
            except Exception as error:
                fault = fault or error
        if fault is None:
            return graph
        if "captur" not in str(fault).lower():
            raise fault
        return None

    def close(self) -> None:
        """End the other process."""
        if self._neighbour is not None:
            self._neighbour.stdin.close()
            self._neighbour.wait()


def choose(backend: str, *, neighbour: bool) -> Cpu | Gpu:
    """Return the device of this rank; "auto" is a GPU if every rank has one; collective."""
    from mpi4py import MPI  # noqa: PLC0415 - the other process must not start MPI

    gpu = backend == "cuda" or (backend == "auto" and _has_gpu())
    if not all(MPI.COMM_WORLD.allgather(gpu)):
        return Cpu()
    node = MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED)
    local_rank = node.rank
    node.Free()
    return Gpu(local_rank, neighbour)


def _has_gpu() -> bool:
    try:
        import cupy  # noqa: PLC0415 - it may be absent

        return bool(cupy.cuda.runtime.getDeviceCount() > 0)
    except Exception:  # a CuPy of another driver fails in many ways
        return False


# ---- the neighbour, another process that keeps the GPU busy ----------------------------------


def _neighbour(gpu: int) -> None:
    """Run kernels of random length, with pauses; without MPI."""
    import cupy  # noqa: PLC0415 - it may be absent

    device = cupy.cuda.Device(gpu)
    device.use()
    spin, most = cupy.RawKernel(KERNELS, "spin"), device.attributes["MultiProcessorCount"]
    while not select.select([sys.stdin], [], [], 0)[0]:
        for _ in range(random.randrange(1, 8)):
            nanoseconds = np.int64(10 ** random.uniform(3, 6.5))
            spin(
                (random.randrange(1, 3 * most),), (random.choice([32, 256, 1024]),), (nanoseconds,)
            )
        device.synchronize()
        time.sleep(random.random() * 2e-3)


if __name__ == "__main__":
    _neighbour(int(sys.argv[1]))
    os._exit(0)  # there is nothing to clean up
