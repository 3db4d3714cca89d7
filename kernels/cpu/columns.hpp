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
    work(job, true);
    if (job.stream) fence();
  }

  // Slot b + 1 gets the totals [inner] of block b.
  static void reduce(Job& job) { work(job, false); }

 private:
  static constexpr int N = ELEMENTS<E>;
  static constexpr int WIDEST = 16384 / VECTOR;  // vectors of a strip: _STRIP of compiled.py
  static constexpr int TILE = Stream<Out>::TILE / sizeof(Out);

  // A strip of a block: `height` rows of `width` columns.
  struct Piece {
    int64 top, height, left, width;
    int64 outer;  // which of the matrices
  };

  static void work(Job& job, bool writes) {
    const int64 blocks = ceil_div(job.n, job.block), strips = ceil_div(job.inner, job.strip);
    for (int64 ticket; (ticket = draw(job)) < job.end;) {
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
      if (!writes) {
        walk(job, piece, false, nullptr, false, slot + job.inner);
      } else {
        const bool waits = b > 0 && !is_ready(state);
        if (waits) {
          walk(job, piece, false, nullptr, false, slot + job.inner);
          wait(state);
          join_rows<Op>(before, row, slot + job.inner, slot + job.inner, piece.width);
          publish(state + strips, READY);
        }
        const bool hands_on = !waits && job.slots && !is_ready(state + strips);
        walk(job, piece, true, before, row, hands_on ? slot + job.inner : nullptr);
        if (hands_on) {
          if (before) join_rows<Op>(before, row, slot + job.inner, slot + job.inner, piece.width);
          publish(state + strips, READY);
        }
      }
    }
  }

  // Add a vector of columns to the totals. v becomes the results.
  static INLINE void add(Vector<E>& v, bool first, bool exclusive, const E* before,
                         Vector<E>& total) {
    constexpr int LANES_OF_PART = REGISTER / sizeof(E);
    UNROLL
    for (int k = 0; k < PARTS; ++k) {  // not as a whole: GCC would copy it through memory
      const auto earlier = total.part[k];
      const auto sum = first ? v.part[k] : Op::combine(earlier, v.part[k]);
      total.part[k] = sum;
      v.part[k] = exclusive ? earlier : sum;
      if (!before) continue;
      const auto start = load<Register<Lane<E>>>(before + k * LANES_OF_PART);
      v.part[k] = exclusive && first ? start : Op::combine(start, v.part[k]);
    }
  }

  // Add `count` whole vectors of a row; put the results into the stream if `writes`. x has the
  // columns of the first one; the others lie above, or below if the scan goes in reverse.
  static NOINLINE void add_vectors(const X* x, int64 count, bool first, const E* before,
                                   int64 before_step, const Job& job, bool writes, Vector<E>* total,
                                   Stream<Out>& stream) {
    const bool reverse = job.reverse, exclusive = job.exclusive;
    const int64 step = reverse ? -N : N;
    Out* y = stream.next(N);
    Lines lines = writes ? stream.lines() : Lines{};
    if (writes) stream.put(count * N);
    for (; count > 0; --count, x += step, y += step, before += before_step, ++total) {
      prefetch(x, reverse);
      Vector<E> v = load_as<E>(x);
      add(v, first, exclusive, before, *total);
      if (!writes) continue;
      store_as(y, v);
      if (sizeof(Out) == sizeof(E) || count % 2) lines.write();
    }
    if (writes) stream.wrote(lines);
  }

  // Add `count` columns, fewer than a vector has: zeros fill it up. What comes before them is a row
  // or a vector.
  static NOINLINE void add_part(const X* x, int count, bool first, const E* before, bool row,
                                const Job& job, bool writes, Vector<E>& total,
                                Stream<Out>& stream) {
    const int low = job.reverse ? N - count : 0;
    X columns[N] = {};
    E starts[N] = {};
    memcpy(columns + low, x, count * sizeof(X));
    if (row) {
      memcpy(starts + low, before, count * sizeof(E));
      before = starts;
    }
    add_vectors(columns, 1, first, before, 0, job, writes, &total, stream);
    if (writes) stream.put(count - N);
  }

  // Go down a piece, row by row. Store the totals [width] unless null.
  static NOINLINE void walk(const Job& job, const Piece& piece, bool writes, const E* before,
                            bool row, E* totals) {
    const bool reverse = job.reverse, whole = piece.width == job.y_step;
    Vector<E> total[WIDEST];
    const auto row_of = [&](int64 i) {  // in memory
      return piece.outer * job.n + (reverse ? job.n - 1 - piece.top - i : piece.top + i);
    };
    Out* const y = static_cast<Out*>(job.y);
    const auto end_of = [&](int64 i) {  // where the results of row i begin, or end in reverse
      return y + row_of(i) * job.y_step + piece.left + (reverse ? piece.width : 0);
    };
    Vector<E> same;  // the element that comes before all columns
    if (before && !row) {
      UNROLL
      for (auto& part : same.part) part = all(*before);
      before = reinterpret_cast<const E*>(&same);
    }
    row = row && before;
    const int64 step = !row ? 0 : reverse ? -N : N;
    Stream<Out> stream(writes ? end_of(0) : nullptr, reverse, job.stream);
    for (int64 i = 0; i < piece.height; ++i) {
      const X* const x = static_cast<const X*>(job.x) + row_of(i) * job.x_step + piece.left;
      if (writes && !whole && i > 0) stream.go_to(end_of(i));
      for (int64 left = 0; left < piece.width; left += TILE) {
        const int64 right = min_of(piece.width, left + TILE), rest = (right - left) % N;
        const int64 at = reverse ? piece.width - left - N : left;  // of the first vector
        add_vectors(x + at, (right - left) / N, i == 0, row ? before + at : before, step, job,
                    writes, &total[left / N], stream);
        if (rest) {  // the last columns of the row
          const int64 end = reverse ? 0 : right - rest;
          add_part(x + end, int(rest), i == 0, row ? before + end : before, row, job, writes,
                   total[right / N], stream);
        }
        if (writes) stream.flush();
      }
      if (writes && !whole) stream.close();
    }
    if (writes && whole) stream.close();
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
