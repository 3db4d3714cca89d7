// The macros of a kernel: one operator and one set of types. distscan/cuda/definitions.py
// defines these macros and writes these headers.
//   DISTSCAN_X, DISTSCAN_T, DISTSCAN_OUT   the types of the shard, the running value, the result
//   DISTSCAN_PARTIAL                       a type that holds any total of one warp's elements;
//                                          Checked, if elements are checked
//   structure.h                            the structure that T may be, and its conversions from
//                                          and to the fields of X and DISTSCAN_OUT
//   combine.h                              the operator: what becomes of a (earlier), b (later)
//   load.h                                 what becomes of an element x as it is read
//   DISTSCAN_LOADS                         whether anything does
//   DISTSCAN_COMMUTATIVE                   whether its operands may be exchanged
//   DISTSCAN_EXCLUSIVE                     whether a result leaves out the element in its place
//   DISTSCAN_REVERSE                       whether the scan goes from the last element to the first
//   DISTSCAN_THREADS, and more by kernel   the policy (cuda/policy.py)
#pragma once

#include "base/bit_range.cuh"
#include "base/checked.cuh"
#include "base/fields.cuh"
#include "base/fixed.cuh"
#include "base/operators.cuh"
#include "base/tile.cuh"

namespace distscan {

#include "structure.h"

using T = DISTSCAN_T;
using Out = DISTSCAN_OUT;

__device__ inline T on_load(T x) {
#include "load.h"
}

// An element that is changed when it is converted from its type in memory.
template <class Stored>
struct Loaded {
  Stored stored;
};
template <class To, class Stored>
__device__ To convert(Loaded<Stored> from) {
  if constexpr (same<To, Loaded<Stored>>)
    return from;
  else
    return convert<To>(on_load(convert<T>(from.stored)));
}

using Stored = typename InMemory<DISTSCAN_X>::type;
using X = typename Choose<DISTSCAN_LOADS, Loaded<Stored>, Stored>::type;
using Input = typename PointerTo<X>::Const;
using Output = typename PointerTo<Out>::Mutable;

constexpr bool EXCLUSIVE = DISTSCAN_EXCLUSIVE;
constexpr bool REVERSE = DISTSCAN_REVERSE;

template <class T>
struct OpIn {
  static constexpr bool COMMUTATIVE = DISTSCAN_COMMUTATIVE;
  __device__ static T combine(T a, T b) {
#include "combine.h"
  }
};
using Op = OpIn<T>;
using Partial = DISTSCAN_PARTIAL;
using PartialOp = OpIn<Partial>;
// The type in which totals are found, if elements are checked then; else T.
using Found = typename Choose<is_checked<Partial>, Partial, T>::type;

}  // namespace distscan

#define DISTSCAN_KERNEL(THREADS, BLOCKS) \
  extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
