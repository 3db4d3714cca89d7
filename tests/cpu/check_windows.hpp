// The windows of random floats, compared with a plain loop.
#pragma once

#include <algorithm>
#include <cstdio>

#include "../../kernels/cpu/window.hpp"
#include "case.hpp"

inline distscan::Found window_of(Type type, const unsigned char* x, int64_t count) {
  using namespace distscan;
  Found found{0, 0, 0};
  bool any = false;
  for (int64_t i = 0; i < count; ++i) {
    const auto value = element<double>(type, x + i * size_of(type));
    if (std::isnan(value)) found.special |= NOT_A_NUMBER;
    if (std::isinf(value)) found.special |= value > 0 ? PLUS : MINUS;
    if (value == 0 && std::signbit(value)) found.special |= MINUS_ZERO;
    if (!std::isfinite(value) || value == 0) continue;
    int exponent;
    const auto whole = uint64_t(std::ldexp(std::frexp(std::fabs(value), &exponent), 53));
    const int64_t low = exponent - 53 + __builtin_ctzll(whole);
    found.low = any ? std::min(found.low, distscan::int64(low)) : low;
    found.high = any ? std::max(found.high, distscan::int64(exponent)) : exponent;
    any = true;
  }
  return found;
}

// One array; returns whether its window is right. The array ends where its memory does.
inline bool check_window(const distscan::Window& window, Random& random) {
  const Type type = type_of(window.type);
  const int size = size_of(type);
  const int64_t most = random.chance(0.5) ? 100 : 6000, count = random.below(most);
  const int64_t shift = random.below(64 / size) * size;
  std::vector<unsigned char> memory(shift + count * size);
  unsigned char* const x = memory.data() + shift;
  const int kept = int(random.below(8 * size)) + 1;  // of each number, so many bits
  const bool any = random.chance(0.3);               // also what is not finite
  for (int64_t i = 0; i < count; ++i) {
    uint64_t bits = random.bits() >> (64 - 8 * size) >> (8 * size - kept) << (8 * size - kept);
    if (random.chance(0.1)) bits = random.chance(0.1) ? 1ull << (8 * size - 1) : 0;
    std::memcpy(x + i * size, &bits, size);
    if (!any && !std::isfinite(element<double>(type, x + i * size)))
      std::memset(x + i * size, 0, size);
  }
  distscan::Found got;
  window.find(x, count, got);
  const distscan::Found want = window_of(type, x, count);
  if (got.low == want.low && got.high == want.high && got.special == want.special) return true;
  std::printf("window of %lld %s: %lld to %lld, %lld, not %lld to %lld, %lld\n", (long long)count,
              window.type, got.low, got.high, got.special, want.low, want.high, want.special);
  return false;
}
