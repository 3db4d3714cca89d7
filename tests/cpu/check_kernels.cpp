// Compares all kernels of a library with plain loops, in random jobs of every kind.
//
//   check_kernels LIBRARY [JOBS [SEED]]     JOBS of each kernel (default: 100)
//
// Prints a checksum of all results. There are sums among them that are rounded: libraries with
// equal checksums give equal bits. Exits with 1 at the first difference, and prints it. It needs
// neither Python nor NumPy, so an emulator can run it for other machines.
#include <dlfcn.h>

#include <cfloat>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <thread>

#include "../../kernels/cpu/keys.hpp"
#include "case.hpp"

namespace {

using distscan::Job;
using distscan::Kernel;
using distscan::Keys;

const Keys* all_keys;  // all but the last are of the types that numbers have; null: there are none
uint64_t checksum = 0xcbf29ce484222325;  // FNV-1a

void add_to_checksum(const void* bytes, int64_t n) {
  const auto p = static_cast<const unsigned char*>(bytes);
  for (int64_t i = 0; i < n; ++i) checksum = (checksum ^ p[i]) * 0x100000001b3;
}

// The jobs of a kernel whose running values are of type A.
template <class A>
class Check {
 public:
  Check(const Kernel& kernel, Random& random)
      : kernel_(kernel),
        random_(random),
        op_(op_of(kernel.op, is(kernel.acc, "bool"))),
        x_(type_of(kernel.x)),
        out_(type_of(kernel.out)),
        x_size_(size_of(x_)),
        out_size_(size_of(out_)) {}

  // Runs one job; returns whether all is right.
  bool run() {
    const Case c = choose(random_, kernel_.scan_columns, INTEGER, sizeof(A), out_size_);
    const int64_t count = c.outer * c.n * c.inner;
    Memory x(count * x_size_, random_.below(64 / x_size_) * x_size_);
    Memory y(count * out_size_, random_.below(64 / out_size_) * out_size_);
    for (int64_t i = 0; i < count; ++i)
      fill<A>(op_, x_, random_, c, i / c.inner, x.begin() + i * x_size_);
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
    job.exclusive = c.exclusive, job.reverse = c.reverse;
    job.before_row = c.before_row && c.has_before, job.stream = c.stream;
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
  static constexpr bool COMPLEX = sizeof(distscan::Lane<A>) < sizeof(A);
  static constexpr bool INTEGER = distscan::is_integer<A>;

  A random_value(const Case& c) {
    unsigned char memory[16];
    fill<A>(op_, x_, random_, c, 0, memory);
    return element<A>(x_, memory);
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
      line.x.push_back(element<A>(x_, x + ((o * c.n + at) * c.inner + k) * x_size_));
      if (c.segments) line.heads.push_back(heads_[at]);
    }
    return scan(op_, line, job.exclusive, total);
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
        unsigned char rounded[sizeof(A)];
        put(out_, results[i], rounded);
        const A got = element<A>(out_, y.begin() + at * out_size_);
        const A want = element<A>(out_, rounded);
        has_nan_ |= is_nan(want);
        if (same(c, got, want)) continue;
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
      if (!same(c, got, want)) return differ(c, got, want, "total");
      if (!is_nan(want)) add_to_checksum(&got, sizeof got);
    }
    return true;
  }

  static bool is_nan(const A& a) {
    if constexpr (COMPLEX)
      return a.re != a.re || a.im != a.im;
    else
      return a != a;
  }
  static double part(const A& a, int i) {
    if constexpr (COMPLEX)
      return i ? a.im : a.re;
    else
      return i ? 0 : double(a);
  }

  // Rounded sums and products may differ by as much as their chains of roundings.
  bool same(const Case& c, const A& a, const A& b) const {
    if constexpr (INTEGER) return a == b;
    if (is_nan(a) || is_nan(b)) return is_nan(a) && is_nan(b);
    if (c.exact || op_ == Op::MAX || op_ == Op::MIN)
      return part(a, 0) == part(b, 0) && part(a, 1) == part(b, 1);
    const double unit = sizeof(distscan::Lane<A>) == 8 ? DBL_EPSILON : FLT_EPSILON;
    const double result = out_ == Type::BFLOAT16  ? 0x1p-7
                          : out_ == Type::FLOAT16 ? 0x1p-10
                          : out_ == Type::FLOAT32 ? FLT_EPSILON
                                                  : 0;
    for (int i = 0; i < 2; ++i) {
      const double sizes = 1 + std::fabs(part(b, 0)) + std::fabs(part(b, 1));
      const double bound = 4 * unit * double(c.n + 2) * sizes + result * std::fabs(part(b, i));
      if (!(std::fabs(part(a, i) - part(b, i)) <= bound)) return false;
    }
    return true;
  }

  bool differ(const Case& c, const A& got, const A& want, const char* what) const {
    std::printf("%.17g %.17g, not %.17g %.17g\n", part(got, 0), part(got, 1), part(want, 0),
                part(want, 1));
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
  const Op op_;
  const Type x_, out_;
  const int64_t x_size_, out_size_;
  const unsigned char* heads_ = nullptr;  // of the job
  bool has_nan_ = false;
};

template <class A>
bool check(const Kernel& kernel, int jobs, uint64_t seed) {
  Random random{seed};
  for (int i = 0; i < jobs; ++i)
    if (!Check<A>(kernel, random).run()) return false;
  return true;
}

bool check(const Kernel& kernel, int jobs, uint64_t seed) {
  switch (type_of(kernel.acc)) {
    case Type::INT8:
      return check<signed char>(kernel, jobs, seed);
    case Type::INT16:
      return check<short>(kernel, jobs, seed);
    case Type::UINT16:
      return check<unsigned short>(kernel, jobs, seed);
    case Type::INT32:
      return check<int>(kernel, jobs, seed);
    case Type::UINT32:
      return check<unsigned>(kernel, jobs, seed);
    case Type::INT64:
      return check<distscan::int64>(kernel, jobs, seed);
    case Type::UINT64:
      return check<unsigned long long>(kernel, jobs, seed);
    case Type::FLOAT32:
      return check<float>(kernel, jobs, seed);
    case Type::FLOAT64:
      return check<double>(kernel, jobs, seed);
    case Type::COMPLEX64:
      return check<complex<float>>(kernel, jobs, seed);
    case Type::COMPLEX128:
      return check<complex<double>>(kernel, jobs, seed);
    default:
      return check<unsigned char>(kernel, jobs, seed);  // and bool
  }
}

}  // namespace

int main(int count, char** arguments) {
  void* const library = count > 1 ? dlopen(arguments[1], RTLD_NOW) : nullptr;
  if (!library) {
    std::printf("usage: check_kernels LIBRARY [JOBS [SEED]]\n%s\n", count > 1 ? dlerror() : "");
    return 2;
  }
  const int jobs = count > 2 ? std::atoi(arguments[2]) : 100;
  const uint64_t seed = count > 3 ? std::strtoull(arguments[3], nullptr, 10) : 1;
  all_keys = static_cast<const Keys*>(dlsym(library, "distscan_keys"));
  int kernels = 0;
  for (const char* table :
       {"distscan_sum", "distscan_prod", "distscan_max", "distscan_min", "distscan_bitwise"})
    for (auto kernel = static_cast<const Kernel*>(dlsym(library, table)); kernel && kernel->op;
         ++kernel)
      if (!check(*kernel, jobs, seed + ++kernels)) return 1;
  if (kernels == 0) return std::printf("%s has no kernels\n", arguments[1]), 2;
  std::printf("%d kernels, %d jobs each, seed %llu: checksum %016llx\n", kernels, jobs,
              (unsigned long long)seed, (unsigned long long)checksum);
  return 0;
}
