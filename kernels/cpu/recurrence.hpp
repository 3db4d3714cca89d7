// Recurrences h[t] = a[t] h[t-1] + b[t] along [n]. Threads draw blocks.
#pragma once

#include "maps.hpp"

namespace distscan {

// E is the type that accumulates, X that of a, b and h.
template <class E, class X>
class Recurrence {
 public:
  // Chained, as in rows.hpp: a block that knows what comes before it is scanned at once. Else its
  // thread finds its total, waits, hands on what comes before the next block, and scans.
  static void scan(Job& job) {
    for (int64 b; (b = draw(job)) < job.end;) {
      int* const state = job.states + b;
      const bool waits = b > 0 && !is_ready(state);
      Known known{};
      if (waits) {
        known = run<false>(job, b, nullptr);
        wait(state);
      }
      const Map<E>* const before = b > 0 ? slot(job, b) : static_cast<const Map<E>*>(job.before);
      if (waits) hand_on(job, b, before, known.total);
      known = run<true>(job, b, before);
      if (!waits && job.slots && !is_ready(state + 1)) hand_on(job, b, before, known.total);
    }
    if (job.stream) fence();
  }

  // Slot b + 1 gets the total of block b; with segments, from its last head on.
  static void reduce(Job& job) {
    for (int64 b; (b = draw(job)) < job.end;) {
      const Known found = run<false>(job, b, nullptr);
      *slot(job, b + 1) = found.total.map();
      job.states[b + 1] = found.total.head ? HEAD : 0;
    }
  }

 private:
  using R = Register<Lane<E>>;
  static constexpr int N = ELEMENTS<E>;
  static constexpr int64 TILE = Stream<X>::TILE / sizeof(X);

  // What is known between two vectors of a block.
  struct Known {
    R h;         // of the element before, in all lanes
    bool any;    // whether there is one
    bool wants;  // whether the total is asked for
    Total<E> total;
  };

  static Map<E>* slot(const Job& job, int64 b) { return static_cast<Map<E>*>(job.slots) + b; }

  static void hand_on(Job& job, int64 b, const Map<E>* before, const Total<E>& total) {
    if (total.head) before = static_cast<const Map<E>*>(job.first);
    *slot(job, b + 1) = then(before, total.map());
    publish(job.states + b + 1, READY);
  }

  // Block b: find its total; if WRITES, h, too. Elements are counted in the order of the scan.
  template <bool WRITES>
  static NOINLINE Known run(const Job& job, int64 b, const Map<E>* before) {
    const int64 n = job.n, low = b * job.block, high = min_of(n, low + job.block);
    const bool reverse = job.reverse;
    Known known{};
    if (before) known.h = all(before->b);
    known.any = before;
    known.wants = !WRITES || job.slots;
    Stream<X> stream(WRITES ? static_cast<X*>(job.y) + (reverse ? n - low : low) : nullptr, reverse,
                     job.stream);
    unsigned char room[TILE];
    for (int64 i = low, end; i < high; i = end) {
      end = min_of(high, i + TILE);
      const int64 whole = (end - i) / N * N, rest = end - i - whole;
      const int64 lowest = reverse ? n - end : i;  // in memory
      const unsigned char* const flags = job.heads ? flags_of(job, lowest, end - i, room) : nullptr;
      const auto part = [&](auto is_whole, int64 from, int64 count) {
        const int64 at = reverse ? n - from - (is_whole ? N : count) : from;
        elements<WRITES, is_whole>(job, at, flags ? flags + (at - lowest) : nullptr, count, known,
                                   stream);
      };
      if (whole) part(Constant<true>{}, i, whole);
      if (rest) part(Constant<false>{}, i + whole, rest);
      if (WRITES) stream.flush();
    }
    if (WRITES) stream.close();
    return known;
  }

  template <bool VALUE>
  struct Constant {
    constexpr operator bool() const { return VALUE; }
  };

  // `count` elements: whole vectors, or a part of one. The first vector's lowest element in memory
  // has index `at`, and the flag `flags`.
  template <bool WRITES, bool WHOLE>
  static NOINLINE void elements(const Job& job, int64 at, const unsigned char* flags, int64 count,
                                Known& known, Stream<X>& stream) {
    const bool reverse = job.reverse, wants = known.wants;
    const int size = WHOLE ? N : int(count);
    const int64 step = reverse ? -N : N, a_step = step * job.a_step;
    const X* a = static_cast<const X*>(job.a) + at * job.a_step;
    const X* b = static_cast<const X*>(job.x) + at;
    const auto first = static_cast<const Map<E>*>(job.first);
    R h = known.h;
    bool any = known.any;
    Total<E> total = known.total;
    X* y = stream.next(N);
    Lines lines = WRITES ? stream.lines() : Lines{};
    if (WRITES) stream.put(count);
    for (; count > 0; count -= size, a += a_step, b += step, flags += flags ? step : 0, y += step) {
      prefetch(b, reverse);
      prefetch(a, reverse);
      Maps<E> v = load_maps<WHOLE>(a, b, size, reverse);
      Mask<E> heads;
      if (flags && any_head(flags, size)) {
        heads = load_heads<WHOLE>(flags, size, reverse);
        maps_scan<true>(v, heads);
        const bool begins = last_head(heads, size);
        if (wants) total.add(last_element(v.a, size), last_element(v.b, size), begins);
        const R start = first ? all(first->b) : R{};
        UNROLL
        for (int k = 0; k < PARTS; ++k) {
          const R alone = v.b.part[k];
          const R open = any ? apply<E>(v.a.part[k], h, alone) : alone;
          const R opened = first ? apply<E>(v.a.part[k], start, alone) : alone;
          v.b.part[k] = heads.part[k] != 0 ? opened : open;
        }
      } else {
        maps_scan<false>(v, heads);
        if (wants) total.add(last_element(v.a, size), last_element(v.b, size), false);
        if (WRITES && any) {
          UNROLL
          for (int k = 0; k < PARTS; ++k) v.b.part[k] = apply<E>(v.a.part[k], h, v.b.part[k]);
        }
      }
      if (!WRITES) continue;
      h = last_element(v.b, size);
      any = true;
      if (reverse) v.b = mirrored<E>(v.b);
      store_as(y, v.b);
      if (sizeof(X) == sizeof(E) || count / N % 2) lines.write();  // a line for a line
    }
    if (WRITES) stream.wrote(lines);
    known.h = h;
    known.any = any;
    known.total = total;
  }

  template <bool WHOLE>
  static INLINE Maps<E> load_maps(const X* a, const X* b, int size, bool reverse) {
    Maps<E> v;
    if constexpr (WHOLE)
      v = {load_as<E>(a), load_as<E>(b)};
    else  // what fills the vector is not read
      v = {load_part<E>(a, size, reverse, 0), load_part<E>(b, size, reverse, 0)};
    if (reverse) v = {mirrored<E>(v.a), mirrored<E>(v.b)};
    return v;
  }

  template <bool WHOLE>
  static INLINE Mask<E> load_heads(const unsigned char* flags, int size, bool reverse) {
    unsigned char all[N] = {};
    if constexpr (!WHOLE) {
      memcpy(all + (reverse ? N - size : 0), flags, size);
      flags = all;
    }
    Mask<E> heads = mask_of<E>(flags);
    if (!reverse) return heads;
    Mask<E> mirrored_heads;
    UNROLL
    for (int i = 0; i < PARTS; ++i)
      mirrored_heads.part[i] = mirrored<E, Word<E>>(heads.part[PARTS - 1 - i]);
    return mirrored_heads;
  }

  static INLINE bool last_head(const Mask<E>& heads, int size) {
    Word<E> words[N * sizeof(E) / sizeof(Word<E>)];
    memcpy(words, &heads, sizeof words);
    return words[(size - 1) * (sizeof(E) / sizeof(Word<E>))] != 0;
  }
};

}  // namespace distscan
