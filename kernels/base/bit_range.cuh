// The range of bits of floats, which exact sums need before elements become integers.
#pragma once

#include "types.cuh"

#ifdef __CUDACC__
namespace distscan {

// Of some floats, as integers that compare as the numbers do.
//   float: [0.75 -4] -> lowest 0.25, largest 4, least -4
// Of a double:
//   least    the upper 32 bits
//   largest  the upper 32 bits + 32. If these bits are 0, the double is below 2^-1042, and only the
//            number of its bits counts, 0 to 32.
//   lowest   a power of 2: its upper 32 bits with bit 31 set, or, if they are 0, its lower ones
//   double: [2^-1073 0] -> largest 2, lowest 2, least 2^31
struct BitRange {
  unsigned
      lowest;  // the lowest bit that is set in any number, less 1: so that 0 counts for nothing
  unsigned largest;  // the largest magnitude; from that of infinity on if any is not finite
  unsigned least;    // the least, plus 2^31; 0 if any is -0.0
};

__device__ inline BitRange widest(const BitRange& a, const BitRange& b) {
  return {min(a.lowest, b.lowest), max(a.largest, b.largest), min(a.least, b.least)};
}

// A number minus the number without its lowest bit is this bit, exactly.
__device__ inline BitRange bit_range_of(float x) {
  const unsigned bits = __float_as_uint(x), size = bits & 0x7fffffff;
  const float rest = size & 0x7fffff ? __uint_as_float(size & (size - 1)) : 0;
  const float lowest = __fsub_rn(__uint_as_float(size), rest);
  return {__float_as_uint(lowest) - 1, size, bits ^ 0x80000000};
}
__device__ inline BitRange bit_range_of(double x) {
  const unsigned high = __double2hiint(x), low = __double2loint(x), size = high & 0x7fffffff;
  const bool is_power = (size & 0xfffff | low) == 0;
  const unsigned rest_high = low == 0 ? size & (size - 1) : size;
  const double rest = is_power ? 0 : __hiloint2double(rest_high, low & (low - 1));
  const double lowest = __dsub_rn(__hiloint2double(size, low), rest);
  const unsigned upper = __double2hiint(lowest);
  return {(upper ? upper | 0x80000000 : __double2loint(lowest)) - 1,
          32 + (size ? size : -__clz(low)), (high ^ 0x80000000) | (low != 0)};
}
__device__ inline BitRange bit_range_of(half x) { return bit_range_of(convert<float>(x)); }
__device__ inline BitRange bit_range_of(bfloat16 x) { return bit_range_of(convert<float>(x)); }

}  // namespace distscan
#endif
