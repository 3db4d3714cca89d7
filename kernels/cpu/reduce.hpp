// The reduction of a run of elements, to the same bits as the total of its scan.
#pragma once

#include "job.hpp"
#include "segments.hpp"
#include "state.hpp"

namespace distscan {

// The total of elements [low, high) of a row x [n]; with segments, from the last head on.
template <class Op, class X>
NOINLINE State<typename Op::E> reduce_run(const X* x, int64 n, int64 low, int64 high,
                                          const Job& job) {
  using E = typename Op::E;
  constexpr int N = ELEMENTS<E>;
  State<E> state = {};
  if (job.heads) low = reduce_to_last_head<Op>(x, n, low, high, job, state);
  Vector<E> lanes;  // a total for each lane, if elements may be combined in any order
  bool any_lanes = false;
  auto total = state.total.value;
  bool any_total = state.total.any;
  for (int64 i = low; i < high; i += N) {
    Vector<E> v = load_vector<Op>(x, n, i, high, job.reverse);
    if constexpr (Op::FREE) {  // a part is filled with identities
      UNROLL
      for (int k = 0; k < PARTS; ++k)
        lanes.part[k] = any_lanes ? Op::combine(lanes.part[k], v.part[k]) : v.part[k];
      any_lanes = true;
    } else {
      if (job.reverse) v = mirrored<E>(v);
      vector_scan<Op>(v);
      const auto last = last_of<Op>(v, high - i);
      total = any_total ? Op::combine(total, last) : last;
      any_total = true;
    }
  }
  if (any_lanes) {
    vector_scan<Op>(lanes);
    const auto last = last_of<Op>(lanes, N);
    total = any_total ? Op::combine(total, last) : last;
    any_total = true;
  }
  state.total = {total, any_total};
  return state;
}

}  // namespace distscan
