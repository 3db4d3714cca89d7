// Random jobs, and the memory that they are given.
#pragma once

#include <vector>

#include "reference.hpp"

// Bytes between guards, `shift` bytes behind a multiple of 64.
class Memory {
 public:
  Memory(int64_t bytes, int64_t shift) : all_(bytes + 2 * GUARD + 128, POISON), bytes_(bytes) {
    const auto address = reinterpret_cast<uintptr_t>(all_.data());
    begin_ = all_.data() + GUARD + (64 - address % 64) % 64 + shift;
  }
  unsigned char* begin() { return begin_; }
  int64_t bytes() const { return bytes_; }
  void poison() { std::memset(begin_, POISON, bytes_); }
  bool guards_are_whole() const {
    for (const unsigned char* p = all_.data(); p < all_.data() + all_.size(); ++p)
      if ((p < begin_ || p >= begin_ + bytes_) && *p != POISON) return false;
    return true;
  }

 private:
  static constexpr int GUARD = 256;
  static constexpr unsigned char POISON = 0xa5;
  std::vector<unsigned char> all_;
  int64_t bytes_;
  unsigned char* begin_;
};

// Keys of `size` bytes each that change where heads are. The scan's first element is no head.
inline std::vector<unsigned char> keys_of(std::vector<unsigned char>& heads, bool reverse,
                                          int64_t size) {
  const int64_t n = heads.size();
  std::vector<unsigned char> keys(n * size);
  heads[reverse ? n - 1 : 0] = 0;
  unsigned char key = 1;  // in each byte: 1 and 2 make different numbers of every type
  for (int64_t i = 0; i < n; ++i) {
    const int64_t at = reverse ? n - 1 - i : i;
    if (heads[at]) key = 3 - key;
    std::memset(keys.data() + at * size, key, size);
  }
  return keys;
}

// What a job is like, but for its numbers.
struct Case {
  bool exact;  // whether scans are not rounded, in whichever order
  bool columns, segments, exclusive, reverse, has_before, before_row, has_first, stream;
  int64_t outer = 1, n, inner = 1, block, strip = 1;
  int threads;
  double density;  // of heads
};

// `acc` and `out` are bytes of a running value and of a result.
inline Case choose(Random& random, bool may_have_columns, bool integer, int64_t acc, int64_t out) {
  Case c{};
  const int64_t vector = 64 / acc, tile = 2048 / out;
  c.exact = integer || random.chance(0.6);
  c.exclusive = random.chance(0.4), c.reverse = random.chance(0.4);
  c.has_before = c.exclusive || random.chance(0.4);
  c.has_first = c.exclusive || random.chance(0.3);
  c.stream = random.chance(0.5);
  c.threads = random.chance(0.2) ? 3 : 1;
  c.columns = may_have_columns && random.chance(0.4);
  if (c.columns) {
    const int64_t widest = random.chance(0.7) ? 70 : 2 * 4096 / acc,
                  strips[] = {2 * vector, 4096 / acc};
    c.inner = 2 + random.below(widest - 1);
    c.n = 1 + random.below(random.chance(0.5) ? 10 : 1 + 8000 / c.inner);
    c.strip = strips[random.below(2)];
    if (c.strip > c.inner) c.strip = c.inner;
    c.block = 1 + random.below(2 * c.n);
    c.before_row = random.chance(0.5);
  } else {
    const int64_t ends[] = {0, vector, 2 * vector, tile, 2 * tile, 3 * tile + vector};
    c.n = ends[random.below(6)] + random.below(7) - 3;
    if (c.n < 1) c.n = 1 + random.below(3 * vector);
    c.block = vector << random.below(9);
    c.segments = random.chance(0.4);
  }
  const double densities[] = {0, 1, 0.5, 0.02, 0.001};
  c.density = densities[random.below(5)];
  if (!c.segments && random.chance(0.3)) c.outer = 2 + random.below(3);
  return c;
}
