// Compares all kernels of a library with plain loops, in random jobs of every kind.
//
//   check_kernels LIBRARY [JOBS [SEED]]     JOBS of each kernel (default: 100)
//
// Prints a checksum of all results. There are sums among them that are rounded: libraries with
// equal checksums give equal bits. Exits with 1 at the first difference, and prints it. It needs
// neither Python nor NumPy, so an emulator can run it for other machines.
#include <dlfcn.h>

#include <cstdlib>

#include "check.hpp"
#include "check_windows.hpp"
#include "fixed_numbers.hpp"
#include "plain_numbers.hpp"

namespace {

template <class Numbers>
bool check_with(const Kernel& kernel, int jobs, uint64_t seed) {
  Random random{seed};
  for (int i = 0; i < jobs; ++i)
    if (!Check<Numbers>(kernel, random).run()) return false;
  return true;
}
template <class A>
bool check(const Kernel& kernel, int jobs, uint64_t seed) {
  return check_with<PlainNumbers<A>>(kernel, jobs, seed);
}

bool check(const Kernel& kernel, int jobs, uint64_t seed) {
  if (is(kernel.op, "fsum"))
    return is(kernel.acc, "int64")
               ? check_with<FixedNumbers<uint64_t>>(kernel, jobs, seed)
               : check_with<FixedNumbers<unsigned __int128>>(kernel, jobs, seed);
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
  for (const char* table : {"distscan_sum", "distscan_prod", "distscan_max", "distscan_min",
                            "distscan_bitwise", "distscan_fsum"})
    for (auto kernel = static_cast<const Kernel*>(dlsym(library, table)); kernel && kernel->op;
         ++kernel)
      if (!check(*kernel, jobs, seed + ++kernels)) return 1;
  for (auto window = static_cast<const distscan::Window*>(dlsym(library, "distscan_windows"));
       window && window->type; ++window) {
    Random random{seed + ++kernels};
    for (int i = 0; i < jobs; ++i)
      if (!check_window(*window, random)) return 1;
  }
  if (kernels == 0) return std::printf("%s has no kernels\n", arguments[1]), 2;
  std::printf("%d kernels, %d jobs each, seed %llu: checksum %016llx\n", kernels, jobs,
              (unsigned long long)seed, (unsigned long long)checksum);
  return 0;
}
