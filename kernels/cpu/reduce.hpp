// The reduction of a run of elements, to the same bits as the total of its scan.
#pragma once

#include "job.hpp"
#include "segments.hpp"
#include "state.hpp"

namespace distscan {

// total = total op the elements of a vector, which is in the order of memory.
template <class Op, class E = typename Op::E>
NOINLINE void add_vector(Value<E>& total, Vector<E> v, int count, bool reverse) {
  if (reverse) v = mirrored<E>(v);
  vector_scan<Op>(v);
  total = join<Op>(total, {last_of<E>(v, count), true});
}

// The total of elements [low, high) of a row x [n]; with segments, from the last head on.
template <class Op, class X>
NOINLINE State<typename Op::E> reduce_run(const X* x, int64 n, int64 low, int64 high,
                                          const Job& job) {
  using E = typename Op::E;
  constexpr int N = ELEMENTS<E>;
  State<E> state = {};
  if (job.heads) low = reduce_to_last_head<Op>(x, n, low, high, job, state);
  Vector<E> lanes;  // of elements that may be combined in any order
  bool any_lanes = false;
  for (int64 i = low; i < high; i += N) {
    const int count = int(min_of(N, high - i));
    Vector<E> v = load_elements<E>(x, n, i, count, job.reverse);
    if constexpr (Op::FREE) {
      if (count < N) {
        add_vector<Op>(state.total, v, count, job.reverse);
        break;
      }
      for (int k = 0; k < PARTS; ++k)
        lanes.part[k] = any_lanes ? Op::combine(lanes.part[k], v.part[k]) : v.part[k];
      any_lanes = true;
    } else {
      if (job.reverse) v = mirrored<E>(v);
      vector_scan<Op>(v);
      state.total = join<Op>(state.total, {last_of<E>(v, count), true});
    }
  }
  if (any_lanes) add_vector<Op>(state.total, lanes, N, false);
  return state;
}

}  // namespace distscan
