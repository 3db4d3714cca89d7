// CUDA's words for a kernel that runs on a CPU: one block, each lane a thread of its own.
//
// emulation.py puts calls of the functions below in the place of PTX. Copies end at once. Shared
// memory is static memory, whose addresses are cut to 32 bits, as the kernels take them.
#pragma once

#include <sched.h>
#include <algorithm>
#include <atomic>
#include <barrier>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#define __CUDACC__
#define __CUDA_ARCH__ 900
#define __device__
#define __global__
#define __noinline__
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)

namespace emulation {

// ---- Threads, and what the 32 of a warp do together ------------------------------------------

struct Index {
  unsigned x, y, z;
};
struct Warp {
  std::barrier<> barrier{32};
  uint64_t slot[32];
};
inline std::vector<std::unique_ptr<Warp>> warps;
inline std::unique_ptr<std::barrier<>> block;

}  // namespace emulation

inline thread_local emulation::Index threadIdx;
inline emulation::Index blockIdx;

namespace emulation {

inline Warp& warp() { return *warps[threadIdx.x / 32]; }
inline int lane() { return static_cast<int>(threadIdx.x % 32); }

template <class To, class From>
To bits(From from) {
  To to{};
  memcpy(&to, &from, std::min(sizeof(To), sizeof(From)));
  return to;
}

// The values of all lanes, reduced by every one of them.
template <class T, class Reduce>
auto together(T value, const Reduce& reduce) {
  warp().slot[lane()] = bits<uint64_t>(value);
  warp().barrier.arrive_and_wait();
  auto result = reduce([](int from) { return bits<T>(warp().slot[from]); });
  warp().barrier.arrive_and_wait();
  return result;
}

// ---- Shared memory, mbarriers, the copy engine -----------------------------------------------

alignas(128) inline unsigned char stages[256 << 10];

inline unsigned char* shared(unsigned address) {
  const auto high = reinterpret_cast<uintptr_t>(stages) >> 32 << 32;
  return reinterpret_cast<unsigned char*>(high | address);
}

[[noreturn]] inline void fail(const char* why) {
  fprintf(stderr, "emulation: %s\n", why);
  std::_Exit(1);
}

struct MBarrier {
  int16_t missing;
  uint16_t arrivals;
  int32_t bytes_and_phase;  // bytes that are missing, and the phase as the lowest bit
};
inline std::mutex one_by_one;

// Change a barrier; if nothing is missing, its next phase begins.
template <class Change>
void change(unsigned address, const Change& change) {
  const std::lock_guard guard(one_by_one);
  auto& barrier = *reinterpret_cast<MBarrier*>(shared(address));
  change(barrier);
  if (barrier.missing < 0) fail("too many arrivals at a barrier");
  if (barrier.missing == 0 && barrier.bytes_and_phase >> 1 == 0) {
    barrier.missing = static_cast<int16_t>(barrier.arrivals);
    barrier.bytes_and_phase ^= 1;
  }
}
inline void init(unsigned address, int arrivals) {
  const auto count = static_cast<uint16_t>(arrivals);
  *reinterpret_cast<MBarrier*>(shared(address)) = {static_cast<int16_t>(arrivals), count, 0};
}
inline void arrive(unsigned address) {
  change(address, [](MBarrier& barrier) { --barrier.missing; });
}
inline void expect(unsigned address, unsigned bytes) {
  change(address, [=](MBarrier& barrier) {
    barrier.bytes_and_phase += static_cast<int>(bytes) * 2;
    --barrier.missing;
  });
}
inline void complete(unsigned address, unsigned bytes) {
  change(address, [=](MBarrier& b) { b.bytes_and_phase -= static_cast<int>(bytes) * 2; });
}
inline bool passed(unsigned address, unsigned parity) {
  {
    const std::lock_guard guard(one_by_one);
    const auto& barrier = *reinterpret_cast<MBarrier*>(shared(address));
    if (static_cast<unsigned>(barrier.bytes_and_phase & 1) != parity) return true;
  }
  sched_yield();
  return false;
}

inline void copy(unsigned char* to, unsigned long long from, unsigned bytes, unsigned barrier) {
  memcpy(to, reinterpret_cast<const void*>(from), bytes);
  complete(barrier, bytes);
}

// What emulation.py writes into a tensor map.
struct Map {
  const unsigned char* matrix;
  int64_t inner, rows, columns_of_box, rows_of_box, size;
};
inline void copy_box(unsigned to, const void* tensor_map, int column, int row, unsigned barrier) {
  Map map;
  memcpy(&map, tensor_map, sizeof map);
  if (to % 128 != 0) fail("a box goes to an address that is no multiple of 128");
  for (int64_t r = 0; r < map.rows_of_box; ++r)
    for (int64_t c = 0; c < map.columns_of_box; ++c) {
      unsigned char* element = shared(to) + (r * map.columns_of_box + c) * map.size;
      const bool inside = row + r < map.rows && column + c < map.inner;
      if (inside)
        memcpy(element, map.matrix + ((row + r) * map.inner + column + c) * map.size, map.size);
      else
        memset(element, 0, map.size);
    }
  complete(barrier, static_cast<unsigned>(map.rows_of_box * map.columns_of_box * map.size));
}

inline unsigned long long nanoseconds() {
  using namespace std::chrono;
  return duration_cast<std::chrono::nanoseconds>(steady_clock::now().time_since_epoch()).count();
}

// The bytes of (a, b) that `select` names, as PTX's prmt.
inline unsigned permute(unsigned a, unsigned b, unsigned select) {
  const uint64_t both = static_cast<uint64_t>(b) << 32 | a;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned name = select >> 4 * i & 15;
    unsigned byte = static_cast<unsigned>(both >> 8 * (name & 7)) & 255;
    if (name & 8) byte = byte & 128 ? 255 : 0;
    result |= byte << 8 * i;
  }
  return result;
}

// ---- The launch ------------------------------------------------------------------------------

template <class... Parameters, size_t... I>
void call(void (*kernel)(Parameters...), void** parameters, std::index_sequence<I...>) {
  kernel(*static_cast<std::remove_cvref_t<Parameters>*>(parameters[I])...);
}

// Run blocks one after the other.
template <class... Parameters>
void launch(void (*kernel)(Parameters...), void** parameters, unsigned blocks, unsigned threads) {
  for (unsigned w = 0; w < threads / 32; ++w) warps.emplace_back(new Warp);
  block = std::make_unique<std::barrier<>>(threads);
  for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
    std::vector<std::jthread> all;
    for (unsigned i = 0; i < threads; ++i)
      all.emplace_back([=] {
        threadIdx.x = i;
        call(kernel, parameters, std::index_sequence_for<Parameters...>{});
      });
  }
}

}  // namespace emulation

// ---- CUDA's functions --------------------------------------------------------------------------

inline void __syncwarp() { emulation::warp().barrier.arrive_and_wait(); }
inline void __syncthreads() { emulation::block->arrive_and_wait(); }
inline void __threadfence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline void __threadfence_system() { __threadfence(); }
inline void __trap() { emulation::fail("a wait takes too long"); }
inline void __nanosleep(unsigned) { sched_yield(); }
inline size_t __cvta_generic_to_shared(const void* p) { return reinterpret_cast<uintptr_t>(p); }

template <class T>
T __shfl_sync(unsigned, T value, int from) {
  return emulation::together(value, [=](const auto& of) { return of(from); });
}
template <class T>
T __shfl_up_sync(unsigned, T value, int distance) {
  const int from = emulation::lane() - distance;
  return __shfl_sync(~0u, value, from < 0 ? emulation::lane() : from);
}
template <class T>
T __shfl_down_sync(unsigned, T value, int distance) {
  const int from = emulation::lane() + distance;
  return __shfl_sync(~0u, value, from > 31 ? emulation::lane() : from);
}
inline unsigned __ballot_sync(unsigned, bool here) {
  return emulation::together(here, [](const auto& of) {
    unsigned all = 0;
    for (int i = 0; i < 32; ++i) all |= static_cast<unsigned>(of(i)) << i;
    return all;
  });
}
inline bool __all_sync(unsigned, bool here) { return __ballot_sync(~0u, here) == ~0u; }
inline int __reduce_max_sync(unsigned, int value) {
  return emulation::together(value, [](const auto& of) {
    int largest = of(0);
    for (int i = 1; i < 32; ++i) largest = std::max(largest, of(i));
    return largest;
  });
}
inline unsigned __reduce_add_sync(unsigned, unsigned value) {
  return emulation::together(value, [](const auto& of) {
    unsigned sum = 0;
    for (int i = 0; i < 32; ++i) sum += of(i);
    return sum;
  });
}
inline unsigned atomicInc(unsigned* at, unsigned last) {
  const std::lock_guard guard(emulation::one_by_one);
  const unsigned before = *at;
  *at = before >= last ? 0 : before + 1;
  return before;
}

template <class T>
T min(T a, T b) {
  return b < a ? b : a;
}
template <class T>
T max(T a, T b) {
  return a < b ? b : a;
}
inline unsigned __float_as_uint(float x) { return emulation::bits<unsigned>(x); }
inline int __float_as_int(float x) { return emulation::bits<int>(x); }
inline float __int_as_float(int x) { return emulation::bits<float>(x); }
inline float __uint_as_float(unsigned x) { return emulation::bits<float>(x); }
inline long long __double_as_longlong(double x) { return emulation::bits<long long>(x); }
inline double __longlong_as_double(long long x) { return emulation::bits<double>(x); }
inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 4; ++i)
    c += static_cast<int8_t>(a >> 8 * i) * static_cast<int8_t>(b >> 8 * i);
  return c;
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
  for (int i = 0; i < 4; ++i) c += (a >> 8 * i & 255) * (b >> 8 * i & 255);
  return c;
}

// Named by code of other operators and types, which is not emulated.
inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll(x) : 64; }
inline unsigned __funnelshift_r(unsigned, unsigned, unsigned) { emulation::fail("no shifts"); }
inline double __dadd_rd(double, double) { emulation::fail("no directed rounding"); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __ll2float_rz(long long) { emulation::fail("no directed rounding"); }
inline long long __float2ll_rz(float x) { return static_cast<long long>(x); }
inline long long __double2ll_rz(double x) { return static_cast<long long>(x); }
inline double __ll2double_rn(long long x) { return static_cast<double>(x); }
inline double __hiloint2double(int, int) { emulation::fail("no halves of doubles"); }
inline int __double2hiint(double) { emulation::fail("no halves of doubles"); }
inline int __double2loint(double) { emulation::fail("no halves of doubles"); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __expf_(float x) { return expf(x); }
#define __expf __expf_
