// CUB's scans, for python -m distscan.bench. cub.py compiles one part of this file at a time:
//
//   macro             entries                      needs
//   BENCH_SCAN        scan: exclusive with BENCH_EXCLUSIVE; by keys with BENCH_KEYS, their type; by
//                     head flags with BENCH_FLAGS
//   BENCH_RUN_TO_RUN  keep_pool, scan_run_to_run   CCCL 3.5
//   BENCH_BY_HAND     reduce, scan_after
//   BENCH_FLAGGED     flagged
//
// BENCH_X and BENCH_OUT are the types of input and result, BENCH_OP combines two results, and
// BENCH_IDENTITY is what it leaves alone. BENCH_SAME is defined where both types are the same.
//
// An entry returns a cudaError_t. CUB works in `temp` [*bytes]; with temp null an entry only sets
// *bytes. All other pointers are the device's.

#include <cuda_fp16.h>

#include <cub/device/device_reduce.cuh>
#include <cub/device/device_scan.cuh>
#include <cub/device/device_select.cuh>
#include <cuda/functional>
#include <cuda/std/functional>

using X = BENCH_X;
using Out = BENCH_OUT;
using Op = BENCH_OP;

#ifdef BENCH_SCAN
#include <thrust/iterator/discard_iterator.h>
#include <thrust/iterator/transform_iterator.h>
#include <thrust/iterator/zip_iterator.h>

// Makes CUB add up in the type of the result, also without an initial value.
struct Cast {
  __host__ __device__ Out operator()(X x) const { return Out(x); }
};

// CUB has no scan by head flags. Its users scan pairs (flag, value), and keep the values alone.
using Pair = cuda::std::tuple<bool, Out>;

struct Combine {
  __host__ __device__ Pair operator()(Pair const& a, Pair const& b) const {
    bool const head = cuda::std::get<0>(b);
    Out const value = cuda::std::get<1>(b);
    return {head || cuda::std::get<0>(a), head ? value : Op{}(cuda::std::get<1>(a), value)};
  }
};

// `segments` [n] are keys or head flags; else null.
extern "C" int scan(void* temp, size_t* bytes, X const* x, void const* segments, Out* out,
                    long long n, cudaStream_t stream) {
  [[maybe_unused]] auto const cast = thrust::make_transform_iterator(x, Cast{});
#if defined BENCH_FLAGS
  auto const pairs = thrust::make_zip_iterator(static_cast<bool const*>(segments), cast);
  auto const values = thrust::make_zip_iterator(thrust::make_discard_iterator(), out);
  return cub::DeviceScan::InclusiveScan(temp, *bytes, pairs, values, Combine{}, n, stream);
#elif defined BENCH_KEYS && defined BENCH_EXCLUSIVE
  return cub::DeviceScan::ExclusiveScanByKey(temp, *bytes, static_cast<BENCH_KEYS const*>(segments),
                                             x, out, Op{}, Out(BENCH_IDENTITY), n,
                                             cuda::std::equal_to<>{}, stream);
#elif defined BENCH_KEYS && defined BENCH_SAME
  return cub::DeviceScan::InclusiveScanByKey(temp, *bytes, static_cast<BENCH_KEYS const*>(segments),
                                             x, out, Op{}, n, cuda::std::equal_to<>{}, stream);
#elif defined BENCH_KEYS
  return cub::DeviceScan::InclusiveScanByKey(temp, *bytes, static_cast<BENCH_KEYS const*>(segments),
                                             cast, out, Op{}, n, cuda::std::equal_to<>{}, stream);
#elif defined BENCH_EXCLUSIVE
  return cub::DeviceScan::ExclusiveScan(temp, *bytes, x, out, Op{}, Out(BENCH_IDENTITY), n, stream);
#elif defined BENCH_SAME
  return cub::DeviceScan::InclusiveScan(temp, *bytes, x, out, Op{}, n, stream);
#else
  return cub::DeviceScan::InclusiveScanInit(temp, *bytes, x, out, Op{}, Out(BENCH_IDENTITY), n,
                                            stream);
#endif
}
#endif

#ifdef BENCH_RUN_TO_RUN
#include <cuda/__execution/determinism.h>
#include <cuda/__execution/require.h>

#include <cuda/std/__execution/env.h>
#include <cuda/stream_ref>

// The deterministic form takes memory from CUDA's pool in every call. This keeps the memory in the
// pool, which else gives it back to the system whenever the host waits.
extern "C" int keep_pool(int device) {
  cudaMemPool_t pool;
  cudaError_t const error = cudaDeviceGetDefaultMemPool(&pool, device);
  if (error != cudaSuccess) return error;
  unsigned long long all = ~0ull;
  return cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all);
}

extern "C" int scan_run_to_run(X const* x, Out* out, long long n, cudaStream_t stream) {
  auto const env = cuda::std::execution::env{
      cuda::stream_ref{stream}, cuda::execution::require(cuda::execution::determinism::run_to_run)};
#if defined BENCH_EXCLUSIVE
  return cub::DeviceScan::ExclusiveScan(x, out, Op{}, Out(BENCH_IDENTITY), n, env);
#elif defined BENCH_SAME
  return cub::DeviceScan::InclusiveScan(x, out, Op{}, n, env);
#else
  return cub::DeviceScan::InclusiveScanInit(x, out, Op{}, Out(BENCH_IDENTITY), n, env);
#endif
}
#endif

#ifdef BENCH_BY_HAND
// Stores the total [1] of x [n].
extern "C" int reduce(void* temp, size_t* bytes, X const* x, Out* total, long long n,
                      cudaStream_t stream) {
  return cub::DeviceReduce::Reduce(temp, *bytes, x, total, n, Op{}, Out(BENCH_IDENTITY), stream);
}

__global__ void combine_earlier(Out const* totals, int rank, Out* start) {
  Out value = BENCH_IDENTITY;
  for (int i = 0; i < rank; ++i) value = Op{}(value, totals[i]);
  *start = value;
}

// Scans x [n] after the first `rank` of `totals`; start [1] is where their sum is kept.
extern "C" int scan_after(void* temp, size_t* bytes, X const* x, Out* out, Out const* totals,
                          int rank, Out* start, long long n, cudaStream_t stream) {
  if (temp != nullptr) combine_earlier<<<1, 1, 0, stream>>>(totals, rank, start);
  return cub::DeviceScan::InclusiveScanInit(temp, *bytes, x, out, Op{},
                                            cub::FutureValue<Out>(start), n, stream);
}
#endif

#ifdef BENCH_FLAGGED
// Stores the elements of x [n] whose flag in mask [n] is set to out [n], and their count [1].
extern "C" int flagged(void* temp, size_t* bytes, X const* x, bool const* mask, Out* out,
                       long long* count, long long n, cudaStream_t stream) {
  return cub::DeviceSelect::Flagged(temp, *bytes, x, mask, out, count, n, stream);
}
#endif
