// Asynchronous copies from global to shared memory. A barrier tells when a copy has ended.
// From sm_90 on the bulk-copy engine makes them; before, each lane copies 16 bytes at a time.
#pragma once

#include "barrier.cuh"

namespace distscan {

// The arrivals of one fetch, or of one fetch_nothing, at its barrier.
#if __CUDA_ARCH__ >= 900
constexpr int FETCH_ARRIVALS = ARRIVALS_PER_WARP;
#else
constexpr int FETCH_ARRIVALS = 2 * LANES;
#endif

// The bytes from the last 16-byte boundary to p.
template <class T>
__device__ int phase(const T* p) {
  return static_cast<int>(reinterpret_cast<unsigned long long>(p) % 16);
}

using Address = unsigned long long;

// The vectors of 16 bytes in memory [low, high) that have bytes of [wanted, end): where they begin,
// and where they end.
__device__ inline Address begin_of_vectors(Address low, Address wanted) {
  const Address origin = wanted / 16 * 16;
  return origin < low ? origin + 16 : origin;
}
__device__ inline Address end_of_vectors(Address high, Address begin, Address end) {
  Address stop = (end + 15) / 16 * 16;
  if (stop > high) stop -= 16;
  return stop < begin ? begin : stop;
}

#if __CUDA_ARCH__ >= 900
// Arrive, and let the barrier wait for so many bytes, too; by one lane.
__device__ inline void expect(Barrier& full, unsigned bytes) {
  asm volatile("{ .reg .b64 state; mbarrier.arrive.expect_tx.shared.b64 state, [%0], %1; }" ::"r"(
                   full.address()),
               "r"(bytes)
               : "memory");
}
// Start the engine, by one lane. With `evict_first`, the bytes leave the L2 cache before others do.
__device__ inline void copy(unsigned char* to, Address from, unsigned bytes, Barrier& full,
                            bool evict_first = false) {
  if (evict_first) {
    unsigned long long priority;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(priority));
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1], %2, [%3], %4;" ::"r"(shared_address(to)),
        "l"(from), "r"(bytes), "r"(full.address()), "l"(priority)
        : "memory");
    return;
  }
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(full.address())
      : "memory");
}
#endif

// Let the copy engine write later where this lane has written.
__device__ inline void engine_may_write() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// Arrive as often as a fetch does, by one warp, with nothing fetched.
__device__ inline void fetch_nothing(Barrier& full) {
#if __CUDA_ARCH__ >= 900
  full.arrive_by_warp();
#else
  full.arrive();
  full.arrive();
#endif
}

// Bring x[from, to) to `stage`, by one warp; `evict_first` counts from sm_90 on. Waits for `full`
// then return. Element `from` comes to lie phase(x + from) bytes after `stage`, which is aligned
// to 16. Nothing outside x[0, n) is read: the engine moves vectors of 16 bytes that lie inside x,
// lanes move single bytes at the ends of x. float, x 4 bytes after a boundary,  from 0, to 8: lanes
// move elements 0 to 2, the engine 3 to 10, of which 8 to 10 were not asked for
//
// The stage's earlier contents have been read: each reader has arrived at a barrier after its
// reads, and this warp has waited for it. That orders ordinary reads before the engine's writes.
// Ordinary writes to bytes that the engine writes later need more, since the engine accesses memory
// through another proxy: the lanes that write make a proxy fence before they arrive.
template <class X>
__device__ void fetch(unsigned char* stage /* [16 + bytes of x[from, to)] */, const X* x /* [n] */,
                      int64 n, int64 from, int64 to, Barrier& full, bool evict_first = false) {
  const Address low = reinterpret_cast<Address>(x), high = low + n * sizeof(X);
  const Address wanted = low + from * sizeof(X), end = low + to * sizeof(X);
  const Address origin = wanted / 16 * 16;  // goes to stage[0]
  const int lane = lane_index();

  // ---- 1. the vectors: the last may go beyond `to`, not beyond x --------------------------------
  const Address begin = begin_of_vectors(low, wanted), stop = end_of_vectors(high, begin, end);

  // ---- 2. less than 16 bytes before them, and less than 16 after -----------------------------
  const Address at = lane < 16 ? wanted + lane : stop + lane - 16;
  if (at < end && (lane >= 16 || at < begin)) {
    stage[at - origin] = *reinterpret_cast<const unsigned char*>(at);
    engine_may_write();
  }
  __syncwarp();

  // ---- 3. the vectors ------------------------------------------------------------------------
#if __CUDA_ARCH__ >= 900
  if (lane == 0) {
    const unsigned bytes = static_cast<unsigned>(stop - begin);
    expect(full, bytes);
    if (bytes > 0) copy(stage + (begin - origin), begin, bytes, full, evict_first);
  } else if (lane < ARRIVALS_PER_WARP) {
    full.arrive();
  }
#else
  for (Address from = begin + lane * 16; from < stop; from += LANES * 16)
    asm volatile(
        "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(stage + (from - origin))),
        "l"(from)
        : "memory");
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(full.address()) : "memory");
  full.arrive();
#endif
}

#if __CUDA_ARCH__ >= 900
// The same for several arrays, by one warp: each lane names a piece [wanted, end) of an array in
// memory [low, high), and its stage. A lane without a piece gives nothing but zeros.
__device__ inline void fetch_by_lanes(unsigned char* stage, Address low, Address high,
                                      Address wanted, Address end, Barrier& full) {
  const Address origin = wanted / 16 * 16;
  const Address begin = begin_of_vectors(low, wanted), stop = end_of_vectors(high, begin, end);
  const auto bring = [&](Address from, Address to) {
    for (Address at = from; at < to; ++at)
      stage[at - origin] = *reinterpret_cast<const unsigned char*>(at);
    if (from < to) engine_may_write();
  };
  bring(wanted, begin < end ? begin : end);
  bring(stop, end);
  const unsigned bytes = static_cast<unsigned>(stop - begin);
  const unsigned bytes_of_all = __reduce_add_sync(EVERY_LANE, bytes);
  if (lane_index() == 0)
    expect(full, bytes_of_all);
  else if (lane_index() < ARRIVALS_PER_WARP)
    full.arrive();
  __syncwarp();
  if (bytes > 0) copy(stage + (begin - origin), begin, bytes, full);
}
#endif

}  // namespace distscan
