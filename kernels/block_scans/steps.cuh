// What every block scan is measured by, and needs to say so.
//
//   STEPS      combines that must wait for each other
//   BARRIERS   __syncthreads
//   WORK       combines of all threads together; one thread alone needs THREADS - 1
#pragma once

namespace distscan {

// log2_of(8) == 3
__device__ constexpr int log2_of(int n) { return n > 1 ? 1 + log2_of(n / 2) : 0; }

}  // namespace distscan
