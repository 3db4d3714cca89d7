// Random jobs of a kernel, compared with plain loops.
#pragma once

#include <cstdio>
#include <functional>
#include <thread>

#include "../../kernels/cpu/keys.hpp"
#include "case.hpp"

using distscan::Job;
using distscan::Kernel;
using distscan::Keys;

// All but the last are of the types that numbers have. Null: there are none.
inline const Keys* all_keys;
inline uint64_t checksum = 0xcbf29ce484222325;  // FNV-1a

inline void add_to_checksum(const void* bytes, int64_t n) {
  const auto p = static_cast<const unsigned char*>(bytes);
  for (int64_t i = 0; i < n; ++i) checksum = (checksum ^ p[i]) * 0x100000001b3;
}

// The jobs of a kernel, with its numbers.
//
// Numbers::A is a running value, and what a result is compared as.
template <class Numbers>
class Check {
 public:
  Check(const Kernel& kernel, Random& random)
      : kernel_(kernel),
        random_(random),
        numbers_(kernel),
        x_size_(size_of(type_of(kernel.x))),
        out_size_(size_of(type_of(kernel.out))) {}

  // Runs one job; returns whether all is right.
  bool run() {
    const Case c = choose(random_, kernel_.scan_columns, Numbers::INTEGER, sizeof(A), out_size_);
    const int64_t count = c.outer * c.n * c.inner, lowest = numbers_.begin(random_, c);
    Memory x(count * x_size_, random_.below(64 / x_size_) * x_size_);
    Memory y(count * out_size_, random_.below(64 / out_size_) * out_size_);
    for (int64_t i = 0; i < count; ++i)
      numbers_.fill(random_, c, i / c.inner, x.begin() + i * x_size_);
    std::vector<A> before(c.inner), first(1);
    for (A& value : before) value = random_value(c);
    first[0] = random_value(c);
    std::vector<unsigned char> heads(c.n);
    for (auto& head : heads) head = random_.chance(c.density) ? 1 + random_.below(255) : 0;
    const Keys* const by =
        c.segments && all_keys && random_.chance(0.5) ? all_keys + random_.below(8) : nullptr;
    std::vector<unsigned char> keys;
    if (by) keys = keys_of(heads, c.reverse, size_of(type_of(by->type)));

    const int64_t blocks = distscan::ceil_div(c.n, c.block),
                  strips = distscan::ceil_div(c.inner, c.strip);
    std::vector<A> slots(c.outer * (blocks + 1) * c.inner);
    std::vector<int> states(c.outer * (blocks + 1) * strips);
    Job job{};
    job.x = x.begin(), job.y = y.begin();
    job.heads = by ? keys.data() : c.segments ? heads.data() : nullptr;
    job.find = by ? by->find : nullptr;
    heads_ = heads.data();
    job.before = c.has_before ? before.data() : nullptr;
    job.first = c.has_first ? first.data() : nullptr;
    job.slots = slots.data(), job.states = states.data();
    job.outer = c.outer, job.n = c.n, job.inner = c.inner, job.block = c.block, job.strip = c.strip;
    job.x_step = job.y_step = c.inner;
    job.exclusive = c.exclusive, job.reverse = c.reverse;
    job.before_row = c.before_row && c.has_before, job.stream = c.stream;
    job.lowest = lowest;
    const int64_t height = c.columns || c.n >= c.block ? 1 : c.block / c.n;
    job.end = distscan::ceil_div(c.outer, height) * blocks * (c.columns ? strips : 1);

    const auto scan = c.columns ? kernel_.scan_columns : kernel_.scan;
    call(scan, job, c.threads);
    if (!compare(c, job, x, y, "scan")) return false;
    if (c.outer > 1) return true;
    // In two steps, as several ranks do.
    const std::vector<unsigned char> once(y.begin(), y.begin() + y.bytes());
    std::fill(states.begin(), states.end(), 0);
    job.ticket = 0;
    call(c.columns ? kernel_.reduce_columns : kernel_.reduce, job, c.threads);
    kernel_.total(job);
    if (!compare_totals(c, job)) return false;
    job.ticket = 0;
    kernel_.seed(job);
    y.poison();
    call(scan, job, c.threads);
    if (!compare(c, job, x, y, "seeded scan")) return false;
    if (std::memcmp(once.data(), y.begin(), once.size()) != 0 && !has_nan_)
      return fault(c, "the seeded scan has other bits than the scan");
    return true;
  }

 private:
  using A = typename Numbers::A;

  A random_value(const Case& c) {
    unsigned char memory[16];
    numbers_.fill(random_, c, 0, memory);
    return numbers_.element(memory);
  }

  static void call(void (*function)(Job&), Job& job, int threads) {
    std::vector<std::thread> others;
    for (int i = 1; i < threads; ++i) others.emplace_back(function, std::ref(job));
    function(job);
    for (auto& other : others) other.join();
  }

  // What the loop makes of line k of matrix o.
  std::vector<A> expected(const Case& c, const Job& job, int64_t o, int64_t k, A* total) const {
    Line<A> line;
    line.before = static_cast<const A*>(job.before);
    line.first = static_cast<const A*>(job.first);
    if (job.before_row) line.before += k;
    for (int64_t i = 0; i < c.n; ++i) {
      const int64_t at = c.reverse ? c.n - 1 - i : i;
      const auto x = static_cast<const char*>(job.x);
      line.x.push_back(numbers_.element(x + ((o * c.n + at) * c.inner + k) * x_size_));
      if (c.segments) line.heads.push_back(heads_[at]);
    }
    return scan(numbers_, line, job.exclusive, total);
  }

  bool compare(const Case& c, const Job& job, Memory& x, Memory& y, const char* what) {
    if (!x.guards_are_whole() || !y.guards_are_whole())
      return fault(c, "bytes outside of the arrays have changed");
    has_nan_ = false;
    for (int64_t line = 0; line < c.outer * c.inner; ++line) {
      const int64_t o = line / c.inner, k = line % c.inner;
      A total;
      const std::vector<A> results = expected(c, job, o, k, &total);
      for (int64_t i = 0; i < c.n; ++i) {
        const int64_t at = (o * c.n + (c.reverse ? c.n - 1 - i : i)) * c.inner + k;
        const A got = numbers_.result(y.begin() + at * out_size_);
        const A want = numbers_.rounded(results[i]);
        has_nan_ |= Numbers::is_nan(want);
        if (numbers_.same(c, got, want)) continue;
        std::printf("line %lld, element %lld: ", (long long)line, (long long)i);
        return differ(c, got, want, what);
      }
    }
    if (!has_nan_) add_to_checksum(y.begin(), y.bytes());
    return true;
  }

  bool compare_totals(const Case& c, Job job) {
    job.before = job.first = nullptr;
    job.exclusive = job.before_row = 0;
    for (int64_t k = 0; k < c.inner; ++k) {
      A want;
      expected(c, job, 0, k, &want);
      const A got = static_cast<const A*>(job.slots)[k];
      if (!numbers_.same(c, got, want)) return differ(c, got, want, "total");
      if (!Numbers::is_nan(want)) add_to_checksum(&got, sizeof got);
    }
    return true;
  }

  bool differ(const Case& c, const A& got, const A& want, const char* what) const {
    Numbers::print(got, want);
    return fault(c, what);
  }
  bool fault(const Case& c, const char* what) const {
    std::printf("%s %s %s %s: %s\n", kernel_.op, kernel_.x, kernel_.acc, kernel_.out, what);
    std::printf("outer %lld, n %lld, inner %lld, block %lld, strip %lld, threads %d\n",
                (long long)c.outer, (long long)c.n, (long long)c.inner, (long long)c.block,
                (long long)c.strip, c.threads);
    std::printf(
        "exact %d, segments %d (density %g), exclusive %d, reverse %d, before %d (row %d), "
        "first %d, stream %d\n",
        c.exact, c.segments, c.density, c.exclusive, c.reverse, c.has_before, c.before_row,
        c.has_first, c.stream);
    return false;
  }

  const Kernel& kernel_;
  Random& random_;
  Numbers numbers_;
  const int64_t x_size_, out_size_;
  const unsigned char* heads_ = nullptr;  // of the job
  bool has_nan_ = false;
};
