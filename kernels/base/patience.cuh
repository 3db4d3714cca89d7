// The time limit of every wait inside a kernel: a wait ends in an error, never in a GPU that spins.
#pragma once

namespace distscan {

__device__ inline unsigned long long nanoseconds() {
  unsigned long long now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

// Ends a kernel that waits for what will never come.
struct Patience {
  static constexpr unsigned long long LIMIT = 20'000'000'000;
  unsigned long long begin = 0;
  unsigned rounds = 0;

  __device__ void once_more(int pause) {
    if (++rounds % 64 == 0) {
      if (begin == 0) begin = nanoseconds();
      if (nanoseconds() - begin > LIMIT) __trap();  // cudaErrorLaunchFailure
    }
    if (pause > 0) __nanosleep(pause);
  }
};

}  // namespace distscan
