// Recurrences h[t] = a[t] h[t-1] + b[t] along axis 0 of [n, inner]. The lanes of a vector are
// columns: rows follow each other without products of factors. Threads draw strips of blocks.
#pragma once

#include "maps.hpp"

namespace distscan {

template <class E, class X>
class RecurrenceColumns {
 public:
  static void scan(Job& job) {
    work<true>(job);
    if (job.stream) fence();
  }

  // Slot b + 1 gets the totals [inner] of block b; with segments, from its last head on.
  static void reduce(Job& job) { work<false>(job); }

  // Slot 0 gets the total [inner] of all blocks; with segments, from the last head on.
  static void total(Job& job) {
    const int64 blocks = ceil_div(job.n, job.block), strips = ceil_div(job.inner, job.strip);
    int64 begin = 1;  // the last block in which a segment begins
    for (int64 b = 1; b <= blocks; ++b)
      if (job.states[b * strips] & HEAD) begin = b;
    Map<E>* const total = slot(job, 0);
    memcpy(static_cast<void*>(total), slot(job, begin), job.inner * sizeof(Map<E>));
    job.states[0] = job.states[begin * strips];
    for (int64 b = begin + 1; b <= blocks; ++b) join(total, true, slot(job, b), total, job.inner);
  }

  // Each slot gets what comes before its block, in place of the total of the block before. Totals
  // of columns contain what comes before their segments. Those of 1-D scans do not (ADDS_FIRST).
  template <bool ADDS_FIRST>
  static void seed(Job& job) {
    const int64 strips = ceil_div(job.inner, job.strip);
    auto before = static_cast<const Map<E>*>(job.before);
    bool row = job.before_row;
    for (int64 b = 1; b < ceil_div(job.n, job.block); ++b) {
      if (job.states[b * strips] & HEAD) {
        before = ADDS_FIRST ? static_cast<const Map<E>*>(job.first) : nullptr;
        row = false;
      }
      join(before, row, slot(job, b), slot(job, b), job.inner);
      before = slot(job, b);
      row = true;
      for (int64 s = 0; s < strips; ++s) job.states[b * strips + s] = READY;
    }
  }

 private:
  using V = Vector<E>;
  static constexpr int N = ELEMENTS<E>;
  static constexpr int WIDEST = 16384 / 2 / VECTOR;  // vectors of a strip: _STRIP of compiled.py
  static constexpr int TILE = Stream<X>::TILE / sizeof(X);

  // A strip of a block: `height` rows of `width` columns.
  struct Piece {
    int64 top, height, left, width;
  };

  // What is known of the columns of a strip between two rows. Vectors are in the order in which
  // the stream writes them.
  struct Known {
    V h[WIDEST];             // of the row before
    V a[WIDEST], b[WIDEST];  // the total of the rows so far, or of the open segment
    bool any;                // whether a row comes before
    bool wants;              // whether the total is asked for
    bool any_total;          // whether it has rows
    bool head;               // whether a segment has begun in the block
  };

  static Map<E>* slot(const Job& job, int64 b) {
    return static_cast<Map<E>*>(job.slots) + b * job.inner;
  }

  // to = before, then later, for each of `width` columns.
  static void join(const Map<E>* before, bool row, const Map<E>* later, Map<E>* to, int64 width) {
    for (int64 i = 0; i < width; ++i) to[i] = then(before ? before + i * row : nullptr, later[i]);
  }

  template <bool WRITES>
  static void work(Job& job) {
    const int64 strips = ceil_div(job.inner, job.strip);
    for (int64 ticket; (ticket = draw(job)) < job.end;) {
      const int64 strip = ticket % strips, b = ticket / strips;
      Piece piece{b * job.block, 0, strip * job.strip, 0};
      piece.height = min_of(job.block, job.n - piece.top);
      piece.width = min_of(job.strip, job.inner - piece.left);
      int* const state = job.states + b * strips + strip;
      Map<E>* const slots = slot(job, b) + piece.left;
      Map<E>* const next = slots + job.inner;
      const bool row = b > 0 || job.before_row;
      const Map<E>* before = b > 0 ? slots : static_cast<const Map<E>*>(job.before);
      if (b == 0 && row && before) before += piece.left;
      if (!WRITES) {
        state[strips] = walk<false>(job, piece, nullptr, false, next) ? HEAD : 0;
        continue;
      }
      const bool waits = b > 0 && !is_ready(state);
      if (waits) {
        const bool head = walk<false>(job, piece, nullptr, false, next);
        wait(state);
        hand_on(before, row, next, head, piece.width, state + strips);
      }
      const bool hands_on = !waits && job.slots && !is_ready(state + strips);
      const bool head = walk<true>(job, piece, before, row, hands_on ? next : nullptr);
      if (hands_on) hand_on(before, row, next, head, piece.width, state + strips);
    }
  }

  // `next` has the totals of a block; it gets what comes before the next block.
  static void hand_on(const Map<E>* before, bool row, Map<E>* next, bool head, int64 width,
                      int* state) {
    join(head ? nullptr : before, row, next, next, width);
    publish(state, READY);
  }

  // Add `count` whole vectors of a row, from vector c on. a and b have the columns of the first
  // one; the others lie above, or below if the scan goes in reverse.
  template <bool WRITES>
  static NOINLINE void add_vectors(const X* a, int64 a_step, const X* b, int64 count, bool reverse,
                                   Known& known, int64 c, Stream<X>& stream) {
    const int64 step = reverse ? -N : N;
    const bool any = known.any, wants = known.wants, any_total = known.any_total;
    X* y = stream.next(N);
    Lines lines = WRITES ? stream.lines() : Lines{};
    if (WRITES) stream.put(count * N);
    for (; count > 0; --count, a += a_step, b += step, y += step, ++c) {
      prefetch(b, reverse);
      prefetch(a, reverse);
      const V factors = load_as<E>(a);
      V terms = load_as<E>(b);
      UNROLL
      for (int k = 0; k < PARTS; ++k) {
        const auto factor = factors.part[k], term = terms.part[k];
        if (wants) {
          known.b[c].part[k] = any_total ? apply<E>(factor, known.b[c].part[k], term) : term;
          known.a[c].part[k] =
              any_total ? normal<E>(Prod<E>::combine(factor, known.a[c].part[k])) : factor;
        }
        if (!WRITES) continue;
        terms.part[k] = any ? apply<E>(factor, known.h[c].part[k], term) : term;
        known.h[c].part[k] = terms.part[k];
      }
      if (!WRITES) continue;
      store_as(y, terms);
      if (sizeof(X) == sizeof(E) || count % 2) lines.write();  // a line for a line
    }
    if (WRITES) stream.wrote(lines);
  }

  // Add `count` columns, fewer than a vector has: zeros fill it up.
  template <bool WRITES>
  static NOINLINE void add_part(const X* a, const X* b, int count, bool reverse, Known& known,
                                int64 c, Stream<X>& stream) {
    const int low = reverse ? N - count : 0;
    X factors[N] = {}, terms[N] = {};
    memcpy(factors + low, a, count * sizeof(X));
    memcpy(terms + low, b, count * sizeof(X));
    add_vectors<WRITES>(factors, 0, terms, 1, reverse, known, c, stream);
    if (WRITES) stream.put(count - N);
  }

  // Go down a piece, row by row. Store the totals [width] unless null; return whether a segment
  // begins in the piece.
  template <bool WRITES>
  static NOINLINE bool walk(const Job& job, const Piece& piece, const Map<E>* before, bool row,
                            Map<E>* totals) {
    const bool reverse = job.reverse, whole = piece.width == job.y_step;
    const auto heads = static_cast<const unsigned char*>(job.heads);
    Known known;
    known.any = before, known.wants = totals, known.any_total = known.head = false;
    if (before) load_before(before, row, piece.width, reverse, known.h);
    const auto row_of = [&](int64 i) {  // in memory
      return reverse ? job.n - 1 - piece.top - i : piece.top + i;
    };
    const auto end_of = [&](int64 i) {  // where the results of row i begin, or end in reverse
      return static_cast<X*>(job.y) + row_of(i) * job.y_step + piece.left +
             (reverse ? piece.width : 0);
    };
    const int64 step = !job.a_column ? 0 : reverse ? -N : N;
    Stream<X> stream(WRITES ? end_of(0) : nullptr, reverse, job.stream);
    for (int64 i = 0; i < piece.height; ++i) {
      const X* const a =
          static_cast<const X*>(job.a) + row_of(i) * job.a_step + piece.left * job.a_column;
      const X* const b = static_cast<const X*>(job.x) + row_of(i) * job.x_step + piece.left;
      if (heads && heads[row_of(i)]) begin_segment(known, piece.width);
      if (WRITES && !whole && i > 0) stream.go_to(end_of(i));
      for (int64 left = 0; left < piece.width; left += TILE) {
        const int64 right = min_of(piece.width, left + TILE), rest = (right - left) % N;
        const int64 at = reverse ? piece.width - left - N : left;  // of the first vector
        add_vectors<WRITES>(a + at * job.a_column, step, b + at, (right - left) / N, reverse, known,
                            left / N, stream);
        if (rest) {  // the last columns of the row
          const int64 end = reverse ? 0 : right - rest;
          add_part<WRITES>(a + end * job.a_column, b + end, int(rest), reverse, known, right / N,
                           stream);
        }
        if (WRITES) stream.flush();
      }
      if (WRITES && !whole) stream.close();
      known.any = known.any_total = true;
    }
    if (WRITES && whole) stream.close();
    if (totals) store_totals(known, piece.width, reverse, totals);
    return known.head;
  }

  // The state before a segment is 0.
  static void begin_segment(Known& known, int64 width) {
    const int64 size = ceil_div(width, int64(N)) * sizeof(V);
    memset(static_cast<void*>(known.h), 0, size);
    if (known.wants) {
      memset(static_cast<void*>(known.a), 0, size);
      memset(static_cast<void*>(known.b), 0, size);
    }
    known.any = known.any_total = known.head = true;
  }

  static void load_before(const Map<E>* before, bool row, int64 width, bool reverse, V* h) {
    for (int64 c = 0; c < width; c += N) {
      const int count = int(min_of(N, width - c)), low = reverse ? N - count : 0;
      const int64 from = reverse ? width - c - count : c;
      E columns[N] = {};
      for (int k = 0; k < count; ++k) columns[low + k] = before[(from + k) * row].b;
      memcpy(static_cast<void*>(&h[c / N]), columns, sizeof columns);
    }
  }

  static void store_totals(const Known& known, int64 width, bool reverse, Map<E>* totals) {
    for (int64 c = 0; c < width; c += N) {
      const int count = int(min_of(N, width - c)), low = reverse ? N - count : 0;
      E a[N], b[N];
      memcpy(a, &known.a[c / N], sizeof a);
      memcpy(b, &known.b[c / N], sizeof b);
      Map<E>* const to = totals + (reverse ? width - c - count : c);
      for (int k = 0; k < count; ++k) to[k] = {a[low + k], b[low + k]};
    }
  }
};

}  // namespace distscan
