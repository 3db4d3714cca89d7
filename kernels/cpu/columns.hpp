// Columns: jobs whose scanned axis is not the last in memory. The lanes of a vector are columns.
#pragma once

#include "chain.hpp"
#include "stream.hpp"

namespace distscan {

template <class Op, class X, class Out>
class Columns {
 public:
  using E = typename Op::E;

  static void scan(Job& job) {
    work<true>(job);
    if (job.stream) fence();
  }

  // Slot b + 1 gets the totals [inner] of block b.
  static void reduce(Job& job) { work<false>(job); }

 private:
  static constexpr int N = ELEMENTS<E>;
  static constexpr int WIDEST = 16384 / VECTOR;  // vectors of a strip: _STRIP of compiled.py
  static constexpr int TILE = Stream<Out>::TILE / sizeof(Out);

  // A strip of a block: `height` rows of `width` columns.
  struct Piece {
    int64 top, height, left, width;
    int64 outer;  // which of the matrices
  };

  template <bool WRITES>
  static void work(Job& job) {
    const int64 blocks = ceil_div(job.n, job.block), strips = ceil_div(job.inner, job.strip);
    for (int64 ticket; (ticket = draw(job)) < job.outer * blocks * strips;) {
      const int64 strip = ticket % strips, b = ticket / strips % blocks;
      Piece piece{b * job.block, 0, strip * job.strip, 0, ticket / strips / blocks};
      piece.height = min_of(job.block, job.n - piece.top);
      piece.width = min_of(job.strip, job.inner - piece.left);
      const int64 own = piece.outer * (blocks + 1) + b;  // its row of slots
      int* const state = job.states + own * strips + strip;
      E* const slot = static_cast<E*>(job.slots) + own * job.inner + piece.left;
      const E* before = b > 0 ? slot : static_cast<const E*>(job.before);
      const bool row = b > 0 || job.before_row;
      if (b == 0 && row && before) before += piece.left;
      if constexpr (!WRITES) {
        walk<false>(job, piece, nullptr, false, slot + job.inner);
      } else {
        const bool waits = b > 0 && !is_ready(state);
        if (waits) {
          walk<false>(job, piece, nullptr, false, slot + job.inner);
          wait(state);
          join_rows<Op>(before, row, slot + job.inner, slot + job.inner, piece.width);
          publish(state + strips, READY);
        }
        const bool hands_on = !waits && job.slots && !is_ready(state + strips);
        walk<true>(job, piece, before, row, hands_on ? slot + job.inner : nullptr);
        if (hands_on) {
          if (before) join_rows<Op>(before, row, slot + job.inner, slot + job.inner, piece.width);
          publish(state + strips, READY);
        }
      }
    }
  }

  // Columns [left, right) of one row: update the totals; WRITES: store the results.
  template <bool WRITES>
  static NOINLINE void add_row(const X* x, int64 width, int64 left, int64 right, bool first,
                               const E* before, bool row, const Job& job, Vector<E>* total,
                               Out* results) {
    const bool reverse = job.reverse, exclusive = job.exclusive;
    for (int64 c = left; c < right; c += N, ++total) {
      Vector<E> v = load_vector<Op>(x, width, c, width, reverse), start;
      if (WRITES && before) start = columns_before<Op>(before, row, width, c, reverse);
      UNROLL
      for (int k = 0; k < PARTS; ++k) {  // not as a whole: GCC would copy it through memory
        const auto earlier = total->part[k];
        const auto sum = first ? v.part[k] : Op::combine(earlier, v.part[k]);
        total->part[k] = sum;
        v.part[k] = exclusive ? earlier : sum;
        if (WRITES && before)
          v.part[k] = exclusive && first ? start.part[k] : Op::combine(start.part[k], v.part[k]);
      }
      if constexpr (WRITES) {
        store_as(results, v);
        results += reverse ? -N : N;
      }
    }
  }

  // Go down a piece, row by row. Store the totals [width] unless null.
  template <bool WRITES>
  static void walk(const Job& job, const Piece& piece, const E* before, bool row, E* totals) {
    const bool reverse = job.reverse, whole = piece.width == job.inner;
    Vector<E> total[WIDEST];
    const auto place = [&](int64 i) {  // of row i in memory
      const int64 at = reverse ? job.n - 1 - piece.top - i : piece.top + i;
      return (piece.outer * job.n + at) * job.inner + piece.left;
    };
    Out* const y = static_cast<Out*>(job.y);
    const auto end_of = [&](int64 i) { return y + place(i) + (reverse ? piece.width : 0); };
    Stream<Out> stream(WRITES ? end_of(0) : nullptr, reverse, job.stream);
    for (int64 i = 0; i < piece.height; ++i) {
      const X* const x = static_cast<const X*>(job.x) + place(i);
      if (WRITES && !whole && i > 0) stream.go_to(end_of(i));
      const int64 tile = WRITES ? TILE : piece.width;
      for (int64 left = 0; left < piece.width; left += tile) {
        const int64 right = min_of(piece.width, left + tile);
        add_row<WRITES>(x, piece.width, left, right, i == 0, before, row, job, &total[left / N],
                        WRITES ? stream.next(N) : nullptr);
        if (!WRITES) continue;
        stream.put(int(right - left));
        stream.flush();
      }
      if (WRITES && !whole) stream.close();
    }
    if (WRITES && whole) stream.close();
    if (!totals) return;
    for (int64 c = 0; c < piece.width; c += N) {
      const int count = int(min_of(N, piece.width - c));
      const char* const from = reinterpret_cast<const char*>(&total[c / N]);
      memcpy(totals + (reverse ? piece.width - c - count : c),
             from + (reverse ? (N - count) * sizeof(E) : 0), count * sizeof(E));
    }
  }
};

}  // namespace distscan
