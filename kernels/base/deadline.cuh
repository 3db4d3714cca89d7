// The time limit of every wait inside a kernel: a wait ends in an error, never in a GPU that spins.
#pragma once

namespace distscan {

__device__ inline unsigned long long nanoseconds() {
  unsigned long long now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

// Ends a kernel that waits too long. `pause` is in nanoseconds between two looks.
// for (Deadline deadline; !there();) deadline.check(200);
struct Deadline {
  static constexpr unsigned long long LIMIT = 20'000'000'000;
  unsigned long long limit = LIMIT;
  unsigned long long begin = 0;
  unsigned looks = 0;

  __device__ void check(int pause) {
    if (++looks % 64 == 0) {
      if (begin == 0) begin = nanoseconds();
      if (nanoseconds() - begin > limit) __trap();  // cudaErrorLaunchFailure
    }
    if (pause > 0) __nanosleep(pause);
  }
};

}  // namespace distscan
