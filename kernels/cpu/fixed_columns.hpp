// Exact sums along columns: jobs whose scanned axis is not the last in memory. The lanes of a
// vector are columns.
#pragma once

#include "chain.hpp"
#include "outside.hpp"
#include "rounded.hpp"
#include "stream.hpp"

namespace distscan {

template <class X, class Out, int WORDS>
class FixedColumns {
 public:
  static void scan(Job& job) {
    const DefaultFloats floats;
    work(job, true);
    if (job.stream) fence();
  }

  // Slot b + 1 gets the totals [inner] of block b.
  static void reduce(Job& job) {
    const DefaultFloats floats;
    work(job, false);
  }

 private:
  using Sum = Integer<WORDS>;
  using Place = Stored<WORDS>;
  static constexpr int L = LANES<uint64>;
  static constexpr int WIDEST = 16384 / sizeof(Sum);  // columns of a strip: _STRIP of compiled.py

  // The sums of the columns of a strip, in the order of memory.
  struct Sums {
    uint64 word[WORDS][WIDEST];

    Sum at(int64 i) const {
      if constexpr (WORDS == 1)
        return word[0][i];
      else
        return Sum(word[1][i]) << 64 | word[0][i];
    }
    void put(int64 i, Sum sum) {
      word[0][i] = uint64(sum);
      if constexpr (WORDS == 2) word[1][i] = uint64(sum >> 64);
    }
  };

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
      Place* slot = static_cast<Place*>(job.slots);
      if (slot) slot += own * job.inner + piece.left;
      const Place* before = b > 0 ? slot : static_cast<const Place*>(job.before);
      const bool row = b > 0 || job.before_row;
      if (b == 0 && row && before) before += piece.left;
      Sums sums;
      if (!writes) {
        start(sums, nullptr, false, piece.width);
        walk<false>(job, piece, sums);
        add_to(sums, nullptr, false, slot + job.inner, piece.width);
        continue;
      }
      const bool waits = b > 0 && !is_ready(state);
      if (waits) {
        start(sums, nullptr, false, piece.width);
        walk<false>(job, piece, sums);
        wait(state);
        add_to(sums, before, row, slot + job.inner, piece.width);
        publish(state + strips, READY);
      }
      start(sums, before, row, piece.width);
      walk<true>(job, piece, sums);
      if (!waits && job.slots && !is_ready(state + strips)) {
        add_to(sums, nullptr, false, slot + job.inner, piece.width);
        publish(state + strips, READY);
      }
    }
  }

  // Sums begin with what comes before them: a row, one element for all columns, or 0.
  static Sum value_at(const Place* before, bool row, int64 i) {
    return value_in<WORDS>(before && row ? before + i : before);
  }
  static void start(Sums& sums, const Place* before, bool row, int64 width) {
    for (int64 i = 0; i < width; ++i) sums.put(i, value_at(before, row, i));
  }
  // to = before + sums
  static void add_to(const Sums& sums, const Place* before, bool row, Place* to, int64 width) {
    for (int64 i = 0; i < width; ++i) put_in<WORDS>(to + i, value_at(before, row, i) + sums.at(i));
  }

  // Go down a piece: by tiles of whole rows if they are narrow and lie one behind the other, else
  // by parts of a row. Rows and columns are counted in the order of the scan.
  template <bool WRITES>
  static NOINLINE void walk(const Job& job, const Piece& piece, Sums& sums) {
    const int64 width = piece.width;
    const bool reverse = job.reverse, whole = width == job.x_step && width == job.y_step;
    const int64 at_once = whole && width < TILE_SIZE ? TILE_SIZE / width : 1;
    const auto row_of = [&](int64 i) {  // in memory
      return piece.outer * job.n + (reverse ? job.n - 1 - piece.top - i : piece.top + i);
    };
    Out* const y = static_cast<Out*>(job.y);
    const auto end_of = [&](int64 i) {  // where the results of row i begin, or end in reverse
      return y + row_of(i) * job.y_step + piece.left + (reverse ? width : 0);
    };
    Stream<Out> stream(WRITES ? end_of(0) : nullptr, reverse, job.stream);
    Tile<WORDS> tile;
    for (int64 i = 0; i < piece.height; i += at_once) {
      const int64 rows = min_of(at_once, piece.height - i);
      const int64 row = row_of(reverse ? i + rows - 1 : i);
      const X* const x = static_cast<const X*>(job.x) + row * job.x_step + piece.left;
      if (WRITES && !whole && i > 0) stream.go_to(end_of(i));
      for (int64 left = 0; left < width; left += TILE_SIZE) {
        const int64 part = min_of(TILE_SIZE, width - left), count = rows * part;
        const int64 at = reverse ? width - left - part : left;  // of the first column in memory
        load_tile(x + at, count, job.lowest, reverse, tile);
        check(job, x + at, count);
        for (int64 k = 0; k < rows; ++k)
          add_row(tile, (reverse ? rows - 1 - k : k) * part, part, sums, at, job.exclusive);
        if (!WRITES) continue;
        round_tile(tile, count, job.lowest, stream.next(int(count)));
        stream.put(count);
        stream.flush();
      }
      if (WRITES && !whole) stream.close();
    }
    if (WRITES && whole) stream.close();
  }

  // Add `count` integers of a tile, from place i on, to the sums from column `at` on. The integers
  // become results.
  static INLINE void add_row(Tile<WORDS>& tile, int64 i, int64 count, Sums& sums, int64 at,
                             bool exclusive) {
    int64 k = 0;
    for (; k + L <= count; k += L) {
      Words sum[WORDS];
      UNROLL
      for (int w = 0; w < WORDS; ++w) sum[w] = load<Words>(&sums.word[w][at + k]);
      Words result[WORDS];
      memcpy(result, sum, sizeof sum);
      add_register(tile, int(i + k), sum);
      if (!exclusive) memcpy(result, sum, sizeof sum);
      UNROLL
      for (int w = 0; w < WORDS; ++w) {
        store(&sums.word[w][at + k], sum[w]);
        store(&tile.word[w][i + k], result[w]);
      }
    }
    for (; k < count; ++k) {
      const Sum earlier = sums.at(at + k), sum = earlier + tile.at(i + k);
      sums.put(at + k, sum);
      tile.put(i + k, exclusive ? earlier : sum);
    }
  }
};

}  // namespace distscan
