// The chain of blocks: what comes before each of them, from their totals.
#pragma once

#include "convert.hpp"
#include "job.hpp"
#include "state.hpp"

namespace distscan {

// A vector of columns, from column i on, of what comes before a block: a row, or one element for
// all columns.
template <class Op, class E = typename Op::E>
INLINE Vector<E> columns_before(const E* before, bool row, int64 width, int64 i, bool reverse) {
  if (row) return load_vector<Op>(before, width, i, width, reverse);
  Vector<E> v;
  UNROLL
  for (auto& part : v.part) part = all(*before);
  return v;
}

// to = before op later, for each of `width` columns.
template <class Op, class E = typename Op::E>
inline void join_rows(const E* before, bool row, const E* later, E* to, int64 width) {
  constexpr int N = ELEMENTS<E>;
  for (int64 i = 0; i < width; i += N) {
    const int count = int(min_of(N, width - i));
    const Vector<E> a = columns_before<Op>(before, row, width, i, false);
    Vector<E> v = load_vector<Op>(later, width, i, width, false);
    UNROLL
    for (int k = 0; k < PARTS; ++k) v.part[k] = Op::combine(a.part[k], v.part[k]);
    memcpy(to + i, &v, count * sizeof(E));
  }
}

template <class Op>
class Chain {
 public:
  using E = typename Op::E;

  // Slot 0 gets the total [inner] of all blocks; with segments, from the last head on.
  static void total(Job& job) {
    const int64 blocks = ceil_div(job.n, job.block);
    int64 begin = 1;  // the last block in which a segment begins
    if (job.heads)
      for (int64 b = 1; b <= blocks; ++b)
        if (job.states[b] & HEAD) begin = b;
    E* const total = slot(job, 0);
    memcpy(total, slot(job, begin), job.inner * sizeof(E));
    job.states[0] = job.states[begin];
    for (int64 b = begin + 1; b <= blocks; ++b)
      join_rows<Op>(total, true, slot(job, b), total, job.inner);
  }

  // Each slot gets the prefix of its block, in place of the total of the block before.
  static void seed(Job& job) {
    const E* before = static_cast<const E*>(job.before);
    bool row = job.before_row;
    const int64 strips = ceil_div(job.inner, job.strip);
    for (int64 b = 1; b < ceil_div(job.n, job.block); ++b) {
      if (job.heads && job.states[b] & HEAD) before = static_cast<const E*>(job.first);
      if (before) join_rows<Op>(before, row, slot(job, b), slot(job, b), job.inner);
      before = slot(job, b);
      row = true;
      for (int64 s = 0; s < strips; ++s) job.states[b * strips + s] = READY;
    }
  }

 private:
  static E* slot(const Job& job, int64 b) { return static_cast<E*>(job.slots) + b * job.inner; }
};

}  // namespace distscan
