"""A process that takes a GPU from others, 2 ms at a time, until its input is closed; a script."""

import select
import sys

import cupy
import numpy as np

SPIN = r"""
extern "C" __global__ void spin(long long nanoseconds) {
  long long begin, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (now - begin < nanoseconds);
}
"""

if __name__ == "__main__":
    cupy.cuda.Device(int(sys.argv[1])).use()
    kernel = cupy.RawKernel(SPIN, "spin")
    while not select.select([sys.stdin], [], [], 0)[0]:
        for _ in range(20):
            kernel((1,), (1,), (np.int64(2_000_000),))
        cupy.cuda.Device().synchronize()
