// The macros of a kernel: one operator and one set of types. distscan/cuda/definitions.py
// defines these macros and writes these headers.
//   DISTSCAN_X, DISTSCAN_T, DISTSCAN_OUT   the types of the shard, the running value, the result
//   DISTSCAN_PARTIAL                       a type that holds any total of one warp's elements
//   structure.h                            declares the structure that a type may be
//   combine.h                              the operator: what becomes of a (earlier), b (later)
//   DISTSCAN_COMMUTATIVE                   whether its operands may be exchanged
//   DISTSCAN_EXCLUSIVE                     whether a result leaves out the element in its place
//   DISTSCAN_REVERSE                       whether the scan goes from the last element to the first
//   DISTSCAN_THREADS, and more by kernel   the policy (cuda/policy.py)
#pragma once

#include "base/operators.cuh"
#include "base/tile.cuh"

namespace distscan {

#include "structure.h"

using X = typename Choose<same<DISTSCAN_X, bool>, boolean, DISTSCAN_X>::type;
using T = DISTSCAN_T;
using Out = DISTSCAN_OUT;

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

}  // namespace distscan

#define DISTSCAN_KERNEL(THREADS, BLOCKS) \
  extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
