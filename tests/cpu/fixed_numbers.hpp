// The numbers of kernels for exact sums: running values k stand for k * 2^lowest.
#pragma once

#include <cstdio>

#include "case.hpp"

// Of a float type: the bits of a significand, the exponent of the lowest bit of all, and that of
// the first power of 2 that is too large.
struct FloatFormat {
  int precision, least, end;
};
inline FloatFormat format_of(Type type) {
  switch (type) {
    case Type::FLOAT16:
      return {11, -24, 16};
    case Type::BFLOAT16:
      return {8, -133, 128};
    case Type::FLOAT32:
      return {24, -149, 128};
    default:
      return {53, -1074, 1024};
  }
}

// A double that the type has, or that is beyond its range.
inline void put_exactly(Type type, double value, void* at) {
  if (size_of(type) == 8) return put(type, value, at);
  const bool beyond = std::isfinite(value) && std::fabs(value) >= 0x1p128;
  put(type, beyond ? std::copysign(INFINITY, float(value > 0) - 0.5f) : float(value), at);
}

// Of integers of 64 or 128 bits, K, in the two's complement.
template <class K>
class FixedNumbers {
 public:
  using A = K;
  static constexpr bool INTEGER = true;

  explicit FixedNumbers(const distscan::Kernel& kernel)
      : x_(type_of(kernel.x)), out_(type_of(kernel.out)) {}

  // Draw the window of a job's elements: their sums have room in K.
  int64_t begin(Random& random, const Case& c) {
    const FloatFormat x = format_of(x_), out = format_of(out_);
    int carries = 1;
    while (c.n + 2 > int64_t(1) << carries) ++carries;
    const int room = 8 * int(sizeof(K)) - (sizeof(K) == 8 ? 1 : 4) - carries;
    const int lows[] = {-1074, x.least, x.least - int(random.below(40)),
                        1023,  0,       out.least + int(random.below(80)) - 40,
                        -1022, -149,    x.end - 1 - int(random.below(room)),
                        -1023, 1022,    int(random.below(x.end - x.least)) + x.least};
    lowest_ = lows[random.below(12)];
    if (lowest_ < -1074) lowest_ = -1074;
    if (lowest_ > x.end - 1) lowest_ = x.end - 1;
    if (lowest_ + room <= x.least) lowest_ = x.least - room + 1;
    floor_ = lowest_ < x.least ? x.least : lowest_;
    top_ = lowest_ + room < x.end ? lowest_ + room : x.end;
    if (random.chance(0.3)) top_ = floor_ + 1 + int(random.below(top_ - floor_));
    return lowest_;
  }

  // A multiple of 2^floor below 2^top. A few are not finite, and count as 0.
  void fill(Random& random, const Case&, int64_t, void* at) const {
    const int precision = format_of(x_).precision, width = top_ - floor_;
    const int bits = 1 + int(random.below(precision < width ? precision : width));
    const auto whole =
        double(random.chance(0.1) ? (1ull << bits) - 1 : random.bits() >> (64 - bits));
    const int up = random.chance(0.5) ? width - bits : int(random.below(width - bits + 1));
    double value = std::ldexp(whole, floor_ + up);
    if (random.chance(0.01)) value = random.chance(0.5) ? NAN : INFINITY;
    put_exactly(x_, random.chance(0.5) ? -value : value, at);
  }

  A element(const void* at) const {
    const auto value = ::element<double>(x_, at);
    if (!std::isfinite(value) || value == 0) return 0;
    int exponent;
    const auto whole = int64_t(std::ldexp(std::frexp(value, &exponent), 53));
    const int up = exponent - 53 - lowest_;
    return up >= 0 ? A(whole) << up : A(whole >> (up < -63 ? 63 : -up));
  }

  static A combine(A a, A b) { return a + b; }

  // The bits of a result.
  A result(const void* at) const {
    A bits = 0;
    std::memcpy(&bits, at, size_of(out_));
    return bits;
  }

  // The bits of k * 2^lowest, to the nearest, ties to even.
  A rounded(A k) const {
    const FloatFormat to = format_of(out_);
    const bool negative = k >> (8 * sizeof(A) - 1);
    const A size = negative ? 0 - k : k;
    int length = 0;
    while (length < int(8 * sizeof(A)) && size >> length) ++length;
    int last = lowest_ + length - to.precision;  // the exponent of the last bit that is kept
    if (last < to.least) last = to.least;
    const int off = last - lowest_;
    A kept = size;
    if (off > length) {
      kept = 0;
    } else if (off > 0) {
      const A half = A(1) << (off - 1), rest = size & (2 * half - 1);
      kept = off < int(8 * sizeof(A)) ? size >> off : 0;
      if (rest > half || (rest == half && kept & 1)) ++kept;
    }
    double value = std::ldexp(double(kept), off > 0 ? last : lowest_);
    if (value >= std::ldexp(1.0, to.end - 1) * 2) value = INFINITY;
    unsigned char memory[8];
    put_exactly(out_, negative ? -value : value, memory);
    return result(memory);
  }

  static bool is_nan(A) { return false; }
  static bool same(const Case&, A a, A b) { return a == b; }
  static void print(A got, A want) {
    for (A bits : {got, want})
      std::printf("%016llx%016llx ", (unsigned long long)(bits >> 32 >> 32),
                  (unsigned long long)bits);
    std::printf("(the second is right)\n");
  }

 private:
  const Type x_, out_;
  int lowest_ = 0, floor_ = 0, top_ = 0;
};
