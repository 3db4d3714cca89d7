// The warp level of large structures, whose combination is most of the work: in two steps, by two
// warps. The reducer of a warp tile leaves the combination up to each vector in shared memory. So
// the scanner need not find it again. Both take one row at a time, in a loop that is not unrolled:
// the items of one row fill the registers.
//
//   level  a part is              its total travels by      who combines
//   lane   one vector             registers                 reducer, scanner
//   warp   one lane's vector      shuffles, shared memory   reducer
//   warp   one row                shuffle from lane 31      reducer
#pragma once

#include "../base/warp_tile.cuh"

namespace distscan {

// A tile of the same items whose warp tiles are the rows of Shape's. Row r of warp tile w is its
// warp tile w * ROWS + r.
template <class Shape>
using OneRow = distscan::Shape<Shape::THREADS * Shape::ROWS, 1, Shape::ITEMS, Shape::REVERSE>;

// The combinations up to each vector of a warp tile, word by word: a warp meets each bank once.
template <class T, class Shape>
struct UpToVectors {
  static constexpr int VECTORS = Shape::ROWS * LANES;
  unsigned word[WORDS<T>][VECTORS];

  __device__ void set(int vector, const T& up_to) {
    Words<T> words;
    words.word[WORDS<T> - 1] = 0;
    words.value = up_to;
#pragma unroll
    for (int w = 0; w < WORDS<T>; ++w) word[w][vector] = words.word[w];
  }
  __device__ T get(int vector) const {
    Words<T> words;
#pragma unroll
    for (int w = 0; w < WORDS<T>; ++w) words.word[w] = word[w][vector];
    return words.value;
  }
};

// Reduce a warp tile, and leave the combinations up to its vectors in `up_to`. The last lane
// returns the total. sum, vectors of 2 [1 2] [3 4] [5 6] ... -> up_to [3 10 21 ...]
template <class Op, class T, class Shape, class Tile>
__device__ T reduce_large_tile(const Tile& items, int warp, UpToVectors<T, Shape>& up_to) {
  T all{};
#pragma unroll 1
  for (int r = 0; r < Shape::ROWS; ++r) {
    const auto rows = items.template load<OneRow<Shape>>(warp * Shape::ROWS + r);
    const T row = warp_scan<Op>(reduce<Op, T>(rows.row[0]));
    all = r == 0 ? row : Op::combine(broadcast(all, LANES - 1), row);
    up_to.set(r * LANES + lane_index(), all);
  }
  return all;
}

// Scan a warp tile that was reduced before, seeded with `prefix`; store it to the tile at y, of
// which `count` elements exist. sum, prefix 10, warp tile [1 2 3 ...] -> [11 13 16 ...]
template <class Op, class Y, bool EXCLUSIVE, class T, class Shape, class Tile, class Segments>
__device__ void scan_large_tile(const Tile& items, int warp, const UpToVectors<T, Shape>& up_to,
                                const Prefix<T>& prefix, const Segments& segments,
                                const typename PointerTo<Y>::Mutable& y /* [SIZE] */, int64 count) {
#pragma unroll 1
  for (int r = 0; r < Shape::ROWS; ++r) {
    const int row = warp * Shape::ROWS + r, vector = r * LANES + lane_index();
    const auto rows = items.template load<OneRow<Shape>>(row);
    Prefix<T> all = prefix;
    if (vector > 0) all = segments.template behind<Op>(prefix, up_to.get(vector - 1));
    T value[Shape::ITEMS];
#pragma unroll
    for (int i = 0; i < Shape::ITEMS; ++i) {
      const T item = get<T>(rows.row[0], i);
      if constexpr (EXCLUSIVE) value[i] = segments.before(all.value, item);
      all = segments.template behind<Op>(all, item);
      if constexpr (!EXCLUSIVE) value[i] = all.value;
    }
    store(y, count, row, Rows<Y, OneRow<Shape>>{pack<Y>(value)});
  }
}

}  // namespace distscan
