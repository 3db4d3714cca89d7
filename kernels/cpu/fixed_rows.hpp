// Exact sums along rows: jobs whose scanned axis is the last in memory. Threads draw blocks, or
// several short rows.
//
//   x --load_tile--> integers of a tile --add up--> sums --round_tile--> the stream of results
#pragma once

#include "chain.hpp"
#include "outside.hpp"
#include "rounded.hpp"
#include "segments.hpp"
#include "stream.hpp"

namespace distscan {

template <class X, class Out, int WORDS>
class FixedRows {
 public:
  static void scan(Job& job) {
    const DefaultFloats floats;
    if (ceil_div(job.n, job.block) > 1)
      scan_blocks(job);
    else
      scan_short_rows(job);
    if (job.stream) fence();
  }

  // Slot b + 1 gets the total of block b of x [n]; with segments, from its last head on.
  static void reduce(Job& job) {
    const DefaultFloats floats;
    for (int64 b; (b = draw(job)) < job.end;) {
      const int64 low = b * job.block, high = min_of(job.n, low + job.block);
      const X* const x = static_cast<const X*>(job.x);
      check(job, x + (job.reverse ? job.n - high : low), high - low);
      const Total found = reduce_run(x, low, high, job);
      put_in<WORDS>(slot(job, b + 1), found.sum);
      job.states[b + 1] = found.head ? HEAD : 0;
    }
  }

 private:
  using Sum = Integer<WORDS>;
  using Op = typename Running<WORDS>::Op;

  // Of a block; with segments, from the last head on.
  struct Total {
    Sum sum;
    bool head;  // whether a segment begins in the block
  };

  static Sum value_of(const void* element) {
    return value_in<WORDS>(static_cast<const Stored<WORDS>*>(element));
  }
  static Stored<WORDS>* slot(const Job& job, int64 i) {
    return static_cast<Stored<WORDS>*>(job.slots) + i;
  }

  static void scan_short_rows(Job& job) {
    const int64 n = job.n, height = n < job.block ? job.block / n : 1;
    const Sum before = value_of(job.before);
    for (int64 ticket; (ticket = draw(job)) < job.end;) {
      const int64 top = ticket * height, bottom = min_of(job.outer, top + height);
      Out* const y = static_cast<Out*>(job.y) + (job.reverse ? bottom : top) * n;
      Stream<Out> stream(y, job.reverse, job.stream);
      const X* const x = static_cast<const X*>(job.x) + top * n;
      const Sum last = scan_run(x, (bottom - top) * n, 0, (bottom - top) * n, job, before, stream);
      stream.close();
      if (job.slots) put_in<WORDS>(slot(job, 1), last);
    }
  }

  // Chained, as in rows.hpp: a block that knows its prefix is scanned at once. Else its thread
  // finds its total, waits for the prefix, hands on the next, and scans.
  static void scan_blocks(Job& job) {
    const int64 n = job.n, blocks = ceil_div(n, job.block);
    for (int64 ticket; (ticket = draw(job)) < job.end;) {
      const int64 row = ticket / blocks, b = ticket % blocks;
      const int64 low = b * job.block, high = min_of(n, low + job.block);
      const int64 own = row * (blocks + 1) + b;  // its slot
      int* const state = job.states + own;
      const bool waits = b > 0 && !is_ready(state);
      const X* const x = static_cast<const X*>(job.x) + row * n;
      Total total;
      if (waits) {
        total = reduce_run(x, low, high, job);
        wait(state);
      }
      const Sum before = value_of(b > 0 ? slot(job, own) : job.before);
      if (waits) {
        put_in<WORDS>(slot(job, own + 1), (total.head ? value_of(job.first) : before) + total.sum);
        publish(state + 1, READY);
      }
      Stream<Out> stream(static_cast<Out*>(job.y) + row * n + (job.reverse ? n - low : low),
                         job.reverse, job.stream);
      const Sum last = scan_run(x, n, low, high, job, before, stream);
      stream.close();
      if (!waits && !is_ready(state + 1)) {
        put_in<WORDS>(slot(job, own + 1), last);
        publish(state + 1, READY);
      }
    }
  }

  // Scan elements [low, high) of x [size], which is one row or several; return the last sum. They
  // are counted in the order of the scan.
  static Sum scan_run(const X* x, int64 size, int64 low, int64 high, const Job& job, Sum sum,
                      Stream<Out>& stream) {
    const bool reverse = job.reverse;
    const Sum before = sum, first = value_of(job.first);
    unsigned char room[TILE_SIZE];
    Tile<WORDS> tile;
    int64 left = job.n - low;  // of the row
    for (int64 i = low; i < high; i += TILE_SIZE) {
      const int64 count = min_of(TILE_SIZE, high - i), place = reverse ? size - i - count : i;
      load_tile(x + place, count, job.lowest, reverse, tile);
      check(job, x + place, count);
      const unsigned char* flags = job.heads ? flags_of(job, place, count, room) : nullptr;
      if (flags && !any_head(flags, count)) flags = nullptr;
      for (int64 done = 0; done < count;) {
        const int64 more = min_of(left, count - done);
        const int64 at = reverse ? count - done - more : done;
        sum = flags           ? add_segments(tile, at, more, job, flags, first, sum)
              : job.exclusive ? add_up<true>(tile, at, more, reverse, sum)
                              : add_up<false>(tile, at, more, reverse, sum);
        done += more;
        left -= more;
        if (left > 0) continue;
        if (i + done < high) sum = before;
        left = job.n;
      }
      round_tile(tile, count, job.lowest, stream.next(int(count)));
      stream.put(count);
      stream.flush();
    }
    return sum;
  }

  // Make `count` integers of a tile, from place `at` on, sums; return the last one.
  //   1 2 3 with 10 before: 11 13 16, exclusive: 10 11 13; both return 16
  template <bool EXCLUSIVE>
  static NOINLINE Sum add_up(Tile<WORDS>& tile, int64 at, int64 count, bool reverse, Sum sum) {
    const int64 step = reverse ? -1 : 1;
    if (reverse) at += count - 1;
    if constexpr (WORDS == 1) {
      constexpr int N = ELEMENTS<int64>;
      auto total = all(int64(sum));
      for (; count >= N; count -= N, at += N * step) {
        uint64* const words = &tile.word[0][reverse ? at - N + 1 : at];
        Vector<int64> v = load_as<int64>(reinterpret_cast<const int64*>(words)), added = v;
        if (reverse) v = mirrored<int64>(v);
        vector_scan<Op>(v);
        const auto last = splat_last<int64>(v.part[PARTS - 1]);
        UNROLL
        for (int k = 0; k < PARTS; ++k) v.part[k] += total;
        total += last;
        if (reverse) v = mirrored<int64>(v);
        UNROLL
        for (int k = 0; EXCLUSIVE && k < PARTS; ++k) v.part[k] -= added.part[k];
        store_as(reinterpret_cast<int64*>(words), v);
      }
      sum = uint64(total[0]);
    }
    for (; count > 0; --count, at += step) {
      const Sum earlier = sum;
      sum += tile.at(at);
      tile.put(at, EXCLUSIVE ? earlier : sum);
    }
    return sum;
  }

  // The same; where a segment begins, `first` comes before.
  static NOINLINE Sum add_segments(Tile<WORDS>& tile, int64 at, int64 count, const Job& job,
                                   const unsigned char* flags, Sum first, Sum sum) {
    const bool exclusive = job.exclusive;
    const int64 step = job.reverse ? -1 : 1;
    if (job.reverse) at += count - 1;
    for (; count > 0; --count, at += step) {
      const Sum earlier = flags[at] ? first : sum;
      sum = earlier + tile.at(at);
      tile.put(at, exclusive ? earlier : sum);
    }
    return sum;
  }

  static Total reduce_run(const X* x, int64 low, int64 high, const Job& job) {
    const int64 n = job.n;
    Total total{0, false};
    if (job.heads) {
      const int64 head = last_head(low, high, job);
      total.head = head >= low;
      if (total.head) low = head;
    }
    Tile<WORDS> tile;
    for (int64 i = low; i < high; i += TILE_SIZE) {
      const int64 count = min_of(TILE_SIZE, high - i);
      load_tile(x + (job.reverse ? n - i - count : i), count, job.lowest, job.reverse, tile);
      total.sum += total_of(tile, count);
    }
    return total;
  }

  // The last element in [low, high) at which a segment begins; low - 1 if there is none.
  static int64 last_head(int64 low, int64 high, const Job& job) {
    unsigned char room[TILE_SIZE];
    for (int64 end = high, begin; end > low; end = begin) {
      begin = end - min_of(TILE_SIZE, end - low);
      const int64 count = end - begin, place = job.reverse ? job.n - end : begin;
      const unsigned char* const flags = flags_of(job, place, count, room);
      if (!any_head(flags, count)) continue;
      for (int64 i = end - 1; i >= begin; --i)
        if (flags[job.reverse ? end - 1 - i : i - begin]) return i;
    }
    return low - 1;
  }
};

}  // namespace distscan
