"""GPUs in tests: how kernels cut a shard, a busy stream, arrays in guarded memory."""

import functools
import sys
from types import ModuleType

import numpy as np
from mpi4py import MPI

import distscan
import distscan.cuda
from distscan.core import dtypes, form, operators
from support.cases import SEED
from support.data import exact

# ---- a module that stands in for the one that speaks to GPUs -------------------------------------


def stand_in_gpus(monkeypatch, **functions):
    """Give ``distscan.cuda.memory`` these functions alone."""
    module = ModuleType("distscan.cuda.memory")
    vars(module).update(functions)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(distscan.cuda, "memory", module, raising=False)


# ---- how the kernels of this GPU cut a shard -----------------------------------------------------


def geometry(types, strategy):
    """Elements of a tile, thread blocks, tiles that a block holds at a time: of a sum's scan."""
    import cupy

    from distscan.cuda import definitions, policy

    device = cupy.cuda.Device()
    if strategy == "scan-add":  # it stores the running value
        types = dtypes.Types(types.x, types.acc, types.acc)
    running = definitions.register_types(operators.BUILTIN["sum"], types)
    sm_count = device.attributes["MultiProcessorCount"]
    chosen = policy.scan_policy(running, form.PLAIN, device.compute_capability, 1 << 40, sm_count)
    tile = chosen.threads * chosen.rows * chosen.items
    return tile, sm_count, chosen.stages


def typed(codes):
    return dtypes.Types(*map(np.dtype, codes))


# ---- a kernel that keeps a stream, or whole multiprocessors, busy until it is let go -------------


HOLD_SOURCE = r"""
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
def holding_kernel():
    """Compile the kernel. It can be compiled and loaded before it runs alone."""
    import cupy

    return cupy.RawKernel(HOLD_SOURCE, "hold")


class Held:
    """So many blocks on a stream, until ``release``, or for no longer than ``seconds``."""

    def __init__(self, stream, blocks=1, shared=0, seconds=3):
        import cupy

        self._memory = cupy.cuda.alloc_pinned_memory(4)
        self._go = np.frombuffer(self._memory, np.int32, 1)
        self._go[0] = 0
        if shared:
            holding_kernel().max_dynamic_shared_size_bytes = shared
        arguments = np.uint64(self._memory.ptr), np.int64(seconds * 1e9)
        with stream:
            holding_kernel()((blocks,), (1,), arguments, shared_mem=shared)

    def release(self):
        self._go[0] = 1


def warm(cupy):
    """Load the kernel."""
    Held(cupy.cuda.Stream(non_blocking=True)).release()
    cupy.cuda.Device().synchronize()


# ---- scans from any address to any other, of which every byte around is checked ------------------


POISON, GUARD = 0xA5, 64  # bytes


class Placed:
    """An array at any address, between bytes that are not its own."""

    def __init__(self, cp, n, dtype, shift):
        dtype = np.dtype(dtype)
        begin = GUARD + shift
        end = begin + n * dtype.itemsize
        whole = cp.full(end + GUARD, POISON, np.uint8)
        self.array = whole[begin:end].view(dtype)
        self.around = whole[:begin], whole[end:]

    def untouched(self):
        before, behind = self.around
        return (before == POISON).all() & (behind == POISON).all()


@functools.lru_cache(maxsize=1)
def sums(types, n):
    """Numbers and their sums, on the GPU; every element matters to all behind it."""
    import cupy

    x = exact(np.random.default_rng(SEED), "sum", types.x.char, n)
    with np.errstate(over="ignore"):
        y = np.cumsum(x, dtype=types.acc).astype(types.out)
    return cupy.asarray(x), cupy.asarray(y)


def reals(array):
    """The same memory as reals: CuPy's own kernels want complex numbers aligned to their size."""
    return array.view(array.dtype.char.lower()) if array.dtype.kind == "c" else array


def check_placed(cp, types, strategy, n, x, want, shift_x, shift_out, scan=distscan.scan):
    """Scan the first n elements of x from one address to another."""
    source, target = Placed(cp, n, types.x, shift_x), Placed(cp, n, types.out, shift_out)
    reals(source.array)[...] = reals(x[:n])
    scan(source.array, comm=MPI.COMM_SELF, dtype=types.acc, out=target.array, strategy=strategy)
    right = (reals(target.array) == reals(want[:n])).all() & target.untouched() & source.untouched()
    right &= (reals(source.array) == reals(x[:n])).all()
    assert bool(right), f"{n} elements, x {shift_x} and out {shift_out} bytes behind a boundary"


def check_in_place(cp, types, strategy, n, x, want, shift, scan=distscan.scan):
    target = Placed(cp, n, types.x, shift)
    reals(target.array)[...] = reals(x[:n])
    scan(target.array, comm=MPI.COMM_SELF, dtype=types.acc, out=target.array, strategy=strategy)
    right = (reals(target.array) == reals(want[:n])).all() & target.untouched()
    assert bool(right), f"{n} elements in place, {shift} bytes behind a boundary"
