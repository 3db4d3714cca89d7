// Rows: jobs whose scanned axis is the last in memory. Threads draw blocks, or several short rows.
#pragma once

#include "chain.hpp"
#include "reduce.hpp"
#include "scan.hpp"

namespace distscan {

// The blocks of one row, and their slots.
template <class Op, class X, class Out>
class Rows {
 public:
  using E = typename Op::E;

  static void scan(Job& job) {
    if (ceil_div(job.n, job.block) > 1)
      scan_blocks(job);
    else
      scan_short_rows(job);
    if (job.stream) fence();
  }

  // Slot b + 1 gets the total of block b of x [n]; with segments, from its last head on.
  static void reduce(Job& job) {
    for (int64 b; (b = draw(job)) < job.end;) {
      const int64 low = b * job.block, high = min_of(job.n, low + job.block);
      const State<E> found = reduce_run<Op>(x_of(job), job.n, low, high, job);
      store(slot(job, b + 1), first_lane(found.total));
      job.states[b + 1] = found.head ? HEAD : 0;
    }
  }

 private:
  static const X* x_of(const Job& job) { return static_cast<const X*>(job.x); }
  static E* slot(const Job& job, int64 i) { return static_cast<E*>(job.slots) + i; }
  static E first_lane(const Value<E>& value) {
    E element;
    memcpy(&element, &value.value, sizeof element);
    return element;
  }

  static void scan_short_rows(Job& job) {
    const int64 n = job.n, height = n < job.block ? job.block / n : 1;
    const State<E> start = start_after<Op>(value_at<Op>(static_cast<const E*>(job.before)));
    for (int64 ticket; (ticket = draw(job)) < job.end;) {
      const int64 top = ticket * height, bottom = min_of(job.outer, top + height);
      Out* const y = static_cast<Out*>(job.y) + (job.reverse ? bottom : top) * n;
      Stream<Out> stream(y, job.reverse, job.stream);
      for (int64 i = 0; i < bottom - top; ++i) {
        const int64 row = job.reverse ? bottom - 1 - i : top + i;
        State<E> state = start;
        scan_run<Op>(x_of(job) + row * n, n, 0, n, job, state, stream);
        if (job.slots) store(slot(job, 1), first_lane(join<Op>(state.before, state.total)));
      }
      stream.close();
    }
  }

  // Chained: a block that knows its prefix is scanned at once. Else it is reduced first, which also
  // brings it into the L2 cache; then its thread waits for the prefix, hands on the next, and
  // scans.
  static void scan_blocks(Job& job) {
    const int64 n = job.n, blocks = ceil_div(n, job.block);
    const Value<E> first = value_at<Op>(static_cast<const E*>(job.first));
    for (int64 ticket; (ticket = draw(job)) < job.end;) {
      const int64 row = ticket / blocks, b = ticket % blocks;
      const int64 low = b * job.block, high = min_of(n, low + job.block);
      const int64 own = row * (blocks + 1) + b;  // its slot
      int* const state_of = job.states;
      const bool waits = b > 0 && !is_ready(&state_of[own]);
      const X* const x = x_of(job) + row * n;
      State<E> state;
      if (waits) {
        state = reduce_run<Op>(x, n, low, high, job);
        wait(&state_of[own]);
      }
      const Value<E> before =
          value_at<Op>(b > 0 ? slot(job, own) : static_cast<const E*>(job.before));
      if (waits) {
        store(slot(job, own + 1), first_lane(join<Op>(state.head ? first : before, state.total)));
        publish(&state_of[own + 1], READY);
      }
      state = start_after<Op>(before);
      Stream<Out> stream(static_cast<Out*>(job.y) + row * n + (job.reverse ? n - low : low),
                         job.reverse, job.stream);
      scan_run<Op>(x, n, low, high, job, state, stream);
      stream.close();
      if (!waits && !is_ready(&state_of[own + 1])) {
        store(slot(job, own + 1), first_lane(join<Op>(state.before, state.total)));
        publish(&state_of[own + 1], READY);
      }
    }
  }
};

}  // namespace distscan
