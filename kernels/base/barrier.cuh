// The barriers by which the warps of a block hand work to each other: mbarriers in shared memory.
#pragma once

#include "deadline.cuh"
#include "tile.cuh"

namespace distscan {

__device__ inline unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

// compute-sanitizer's racecheck does not follow one lane that arrives for its warp. For that tool
// alone every lane arrives (CONTRIBUTING.md).
#ifdef DISTSCAN_EVERY_LANE_ARRIVES
constexpr int ARRIVALS_PER_WARP = LANES;
#else
constexpr int ARRIVALS_PER_WARP = 1;
#endif

// An mbarrier. It counts arrivals; when it has seen as many as it was initialised with, a phase
// ends and the next begins. `wait(parity)` returns once the phase of that parity has ended. Phases
// have parities 0, 1, 0, 1, ...
// init(2), arrive, arrive: wait(0) returns; arrive, arrive: wait(1) returns
struct Barrier {
  unsigned long long state;

  __device__ unsigned address() const { return shared_address(&state); }
  __device__ void init(int arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(address()), "r"(arrivals) : "memory");
  }
  __device__ void arrive() {
    asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(address())
                 : "memory");
  }
  // Arrive once for the whole warp, after all its lanes' accesses.
  __device__ void arrive_by_warp() {
    __syncwarp();
    if (lane_index() < ARRIVALS_PER_WARP) arrive();
  }
  __device__ void wait(unsigned parity) const {
    for (Deadline deadline; !passed(parity);) deadline.check(0);
  }

 private:
  __device__ bool passed(unsigned parity) const {
    unsigned done;
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(address()), "r"(parity)
        : "memory");
#else
    asm volatile(
        "{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(address()), "r"(parity)
        : "memory");
#endif
    return done;
  }
};

// Wait for all THREADS threads of the block, whose warps may call this from different branches.
// __syncthreads() is for threads that all reach the same one.
template <int THREADS>
__device__ inline void wait_for_block() {
  asm volatile("barrier.sync 1, %0;" ::"n"(THREADS) : "memory");
}

// Let the copy engine see barriers that this thread has initialised. __syncthreads() must follow,
// for the other threads.
__device__ inline void barriers_are_ready() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

}  // namespace distscan
