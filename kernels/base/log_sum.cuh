// The warp level for sums of exponentials of floats: plain sums, relative to one maximum.
//
// A general scan combines two sums by one exponential, at every step. Here a warp tile has one
// scale, its largest element. So each element takes one exponential, and its result one logarithm.
// All terms are positive: no digits are lost, if no term is so small that it vanishes. Warp tiles
// with larger differences are scanned in the general way, and so are those with NaN or infinity.
// But -inf is a term of 0 here.
//
//   [1 3 2], seeded with 2: max 3, terms [e^-2 1 e^-1], sums [e^-2, 1+e^-2, ...], the prefix e^-1
//   the first result: 3 + log(e^-1 + e^-2)
//
// Compared to sums in long double, results of 3e6 elements are within 40 eps of max(1, |result|).
// So they are for normal numbers times 1, 30 and 300.
#pragma once

#include "warp_rows.cuh"

namespace distscan {

constexpr float APART = 80;  // exp(-APART) is a normal float

__device__ inline float infinity() { return __int_as_float(0x7f800000); }

struct Add {
  static constexpr bool COMMUTATIVE = true;
  __device__ static float combine(float a, float b) { return a + b; }
};
struct Larger {
  static constexpr bool COMMUTATIVE = true;
  // A NaN wins.
  __device__ static float combine(float a, float b) {
    float larger;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
    return larger;
  }
};
struct Smaller {
  static constexpr bool COMMUTATIVE = true;
  __device__ static float combine(float a, float b) { return fminf(a, b); }
};

// exp(x) for x <= 0; below -87 it is 0.
__device__ inline float exp_of(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * 1.44269504f));
  return power;
}

// The largest element of a warp tile, in every lane.
template <class X, class Shape>
__device__ float largest(const Rows<X, Shape>& rows) {
  float most = -infinity();
#pragma unroll
  for (int r = 0; r < Shape::ROWS; ++r)
#pragma unroll
    for (int i = 0; i < Shape::ITEMS; ++i) most = Larger::combine(most, get<float>(rows.row[r], i));
  return broadcast(warp_reduce<Larger>(most), 0);
}

// The smallest one that is not -inf; infinity if all are.
template <class X, class Shape>
__device__ float smallest(const Rows<X, Shape>& rows) {
  float least = infinity();
#pragma unroll
  for (int r = 0; r < Shape::ROWS; ++r)
#pragma unroll
    for (int i = 0; i < Shape::ITEMS; ++i) {
      const float item = get<float>(rows.row[r], i);
      least = Smaller::combine(least, item > -infinity() ? item : infinity());
    }
  return broadcast(warp_reduce<Smaller>(least), 0);
}

// Whether a maximum can be the scale of sums: it is finite.
__device__ inline bool is_scale(float most) { return fabsf(most) < infinity(); }

// The scan in the general way, row by row. It is a separate function, because few warp tiles need
// it: so it takes no registers from the others.
template <class Op, class T, class Y, bool EXCLUSIVE, class X, class Shape>
__device__ __noinline__ Rows<Y, Shape> scan_apart(Rows<X, Shape> rows, Prefix<T> prefix) {
  Rows<Y, Shape> scanned;
#pragma unroll
  for (int r = 0; r < Shape::ROWS; ++r) {
    const T inclusive = warp_scan<Op>(reduce<Op, T>(rows.row[r]));
    const T earlier_lanes = shuffle_up(inclusive, 1);
    Prefix<T> before = lane_index() > 0 ? join<Op>(prefix, earlier_lanes) : prefix;
    T value[Shape::ITEMS];
#pragma unroll
    for (int i = 0; i < Shape::ITEMS; ++i) {
      if constexpr (EXCLUSIVE) value[i] = before.value;
      before = join<Op>(before, get<T>(rows.row[r], i));
      if constexpr (!EXCLUSIVE) value[i] = before.value;
    }
    scanned.row[r] = pack<Y>(value);
    prefix = join<Op>(prefix, broadcast(inclusive, LANES - 1));
  }
  return scanned;
}

// The total of a warp tile, complete in lane 0 only. Terms that vanish beside the largest one do
// not count: so elements may differ by any amount.
template <class Op, class T, class X, class Shape>
__device__ T reduce_log_sums(const Rows<X, Shape>& rows) {
  const float most = largest(rows);
  if (!is_scale(most)) return reduce_rows<Op, T>(rows);
  float sum = 0;
#pragma unroll
  for (int r = 0; r < Shape::ROWS; ++r)
#pragma unroll
    for (int i = 0; i < Shape::ITEMS; ++i) sum += exp_of(get<float>(rows.row[r], i) - most);
  return {most, warp_reduce<Add>(sum) - 1};
}

// The scan of a warp tile, seeded with prefixed(): see scan_rows.
template <class Op, class T, class Y, bool EXCLUSIVE, class X, class Shape, class Prefixed>
__device__ Rows<Y, Shape> scan_log_sums(const Rows<X, Shape>& rows, const Prefixed& prefixed) {
  // ---- 1. the scale, if the elements and the prefix lie together ------------------------------
  const float most = largest(rows);
  const bool together = is_scale(most) && most - smallest(rows) <= APART;
  float inclusive[Shape::ROWS];
  if (together) {
#pragma unroll
    for (int r = 0; r < Shape::ROWS; ++r) {
      float sum = 0;
#pragma unroll
      for (int i = 0; i < Shape::ITEMS; ++i) sum += exp_of(get<float>(rows.row[r], i) - most);
      inclusive[r] = warp_scan<Add>(sum);
    }
  }
  const Prefix<T> prefix = prefixed();
  const T before = prefix.some ? prefix.value : T{-infinity(), 0};
  const bool none = before.max == -infinity() && before.rest == before.rest;  // a NaN is in rest
  if (!together || !(none || (before.max >= most - APART && is_scale(before.max + before.rest))))
    return scan_apart<Op, T, Y, EXCLUSIVE>(rows, prefix);

  // ---- 2. the sums, in units of the larger of both maxima -------------------------------------
  const float unit = none ? most : fmaxf(most, before.max), scale = exp_of(most - unit);
  float carry = none ? 0 : (1 + before.rest) * exp_of(before.max - unit);
  Rows<Y, Shape> scanned;
#pragma unroll
  for (int r = 0; r < Shape::ROWS; ++r) {
    const float earlier_lanes = shuffle_up(inclusive[r], 1);
    float sum = lane_index() > 0 ? carry + scale * earlier_lanes : carry;
    float value[Shape::ITEMS];
#pragma unroll
    for (int i = 0; i < Shape::ITEMS; ++i) {
      const float with = sum + scale * exp_of(get<float>(rows.row[r], i) - most);
      value[i] = unit + logf(EXCLUSIVE ? sum : with);
      sum = with;
    }
    // With nothing before it, the first result is the first element, to the bit.
    if (!EXCLUSIVE && r == 0 && none && lane_index() == 0) value[0] = get<float>(rows.row[0], 0);
    scanned.row[r] = pack<Y>(value);
    carry += scale * broadcast(inclusive[r], LANES - 1);
  }
  return scanned;
}

}  // namespace distscan
