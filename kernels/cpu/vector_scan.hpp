// The scan of one vector, in registers.
#pragma once

#include "operators.hpp"

namespace distscan {

// One step: every element is combined with the one that `before` gives it.
template <class Op, int STEP>
INLINE Register<Lane<typename Op::E>> step(Register<Lane<typename Op::E>> r) {
  using E = typename Op::E;
  using T = Lane<E>;
  const Register<T> combined = Op::combine(before<Op, STEP>(r), r);
  if constexpr (Op::EXACT) {
    return combined;
  } else {  // elements with nothing before them stay
    return has_before<E, STEP>() != 0 ? combined : r;
  }
}

// Inclusive scan of a register in log2 steps: in quarters as Hillis and Steele (1986), across
// quarters as Sklansky (1960).
//   1 2 3 4 | 5 6 7 8   step 1: 1 3 5 7 | 5 11 13 15   step 2: 1 3 6 10 | 5 11 18 26
//                       step 4: 1 3 6 10 | 15 21 28 36
template <class Op, int STEP = 1>
INLINE Register<Lane<typename Op::E>> register_scan(Register<Lane<typename Op::E>> r) {
  if constexpr (STEP * sizeof(typename Op::E) < REGISTER)
    return register_scan<Op, 2 * STEP>(step<Op, STEP>(r));
  else
    return r;
}

// Inclusive scan of a vector; the steps across registers are Sklansky's, too.
template <class Op>
INLINE void vector_scan(Vector<typename Op::E>& v) {
  UNROLL
  for (int i = 0; i < PARTS; ++i) v.part[i] = register_scan<Op>(v.part[i]);
  UNROLL
  for (int half = 1; half < PARTS; half *= 2) UNROLL
  for (int i = half; i < PARTS; i += 2 * half) {
    const auto earlier = splat_last<typename Op::E>(v.part[i - 1]);
    UNROLL
    for (int k = i; k < i + half; ++k) v.part[k] = Op::combine(earlier, v.part[k]);
  }
}

}  // namespace distscan
