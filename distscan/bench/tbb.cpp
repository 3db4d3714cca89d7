// oneTBB's parallel_scan of float64, for python -m distscan.bench. contenders.py compiles it.

#include <oneapi/tbb/blocked_range.h>
#include <oneapi/tbb/parallel_scan.h>
#include <oneapi/tbb/task_arena.h>
#include <oneapi/tbb/version.h>

#include <functional>

extern "C" char const* version() { return TBB_runtime_version(); }

// Scans x [n] into out [n] by as many threads.
extern "C" void scan(double const* x, double* out, long long n, int threads) {
  using Range = oneapi::tbb::blocked_range<long long>;
  auto const body = [=](Range const& range, double sum, bool is_final) {
    for (long long i = range.begin(); i != range.end(); ++i) {
      sum += x[i];
      if (is_final) out[i] = sum;
    }
    return sum;
  };
  oneapi::tbb::task_arena arena(threads);
  arena.execute([&] { oneapi::tbb::parallel_scan(Range(0, n), 0.0, body, std::plus<>()); });
}
