// The sources of a compaction: elements, and a mask or a predicate that selects them.
//
// The reducers find the selected elements, and leave a bit for each element in the stage. The
// scanners take the bits from there. A word has the bits of 32 elements, the lowest bit is the
// first element's. A warp tile has KEPT_WORDS words.
//
// All sources have these members:
//
//   arrivals, fetch, FETCHES   the loader brings a tile to a stage; see Items
//   leave                      a reducer leaves the bits of a warp tile
//   words                      the bits of the tile in a stage
//   item                       one element of the tile in a stage
//   room                       the memory in which scanners move the tile's kept elements together
#pragma once

#include "flags.cuh"
#include "items.cuh"

namespace distscan {

template <class Shape>
constexpr int KEPT_WORDS = Shape::ROWS * Shape::ITEMS;

// Elements x of any type, each with a byte of the mask: kept unless the byte is 0.
// A lane reads ITEMS bytes of the mask at a time, for each of ROWS rows.
template <class Shape, class X>
struct Masked {
  static constexpr int FETCHES = 2;  // per tile
  static constexpr int MASK = STAGE_BYTES<Shape, X>;
  static constexpr int BITS = MASK + STAGE_BYTES<Shape, unsigned char>;
  static constexpr int STRIDE = BITS + Shape::SIZE / 8;

  Items<Shape, X, STRIDE> items;
  Items<Shape, unsigned char, STRIDE, MASK> mask;

  __device__ static Masked of(const X* x, const unsigned char* mask) { return {{x}, {mask}}; }
  __device__ static int arrivals() { return FETCHES * FETCH_ARRIVALS; }
  __device__ void fetch(int stage, const Shard& shard, int64 tile, Barrier& full) const {
    items.fetch(stage, shard, tile, full);
    mask.fetch(stage, shard, tile, full);
  }
  // Leave the bits of a warp tile, by the whole warp. Return the number of kept elements among
  // those whose bits this lane has left. Elements after the shard's end are not kept.
  // ITEMS 8: lane 1 has bytes 8 to 15, [1 0 0 1 0 0 0 0] -> byte 1 of word 0 is 0b1001; return 2
  __device__ unsigned leave(int stage, const Shard& shard, int64 at, int warp) const {
    using Bits = typename Choose<Shape::ITEMS == 8, unsigned char, unsigned short>::type;
    static_assert(Shape::ITEMS == 8 || Shape::ITEMS == 16, "one lane has whole bytes of bits");
    const auto rows = mask.tile(stage, shard, at).template load<Shape>(warp);
    auto* to = reinterpret_cast<Bits*>(words(stage)) + warp * Shape::ROWS * LANES + lane_index();
    unsigned count = 0;
#pragma unroll
    for (int r = 0; r < Shape::ROWS; ++r) {
      unsigned kept = bits(rows.row[r]);
      if (shard.n - at < Shape::SIZE) {
        const int exist = static_cast<int>(shard.n - at) - position<Shape>(warp, r);
        if (exist < Shape::ITEMS) kept &= exist > 0 ? (1u << exist) - 1 : 0;
      }
      to[r * LANES] = static_cast<Bits>(kept);
      count += __popc(kept);
    }
    return count;
  }
  __device__ unsigned* words(int stage) const {
    return reinterpret_cast<unsigned*>(Stages<Shape, X, STRIDE, BITS>::bytes(stage));
  }
  __device__ X item(int stage, int64 at, int i) const { return room(stage, at)[i]; }
  __device__ X* room(int stage, int64 at) const {
    return const_cast<X*>(Stages<Shape, X, STRIDE, 0>::items(stage, items.x, at));
  }
};

// The indices of elements in place of the elements: 0, 1, 2, ...
template <class Shape, class Index>
struct Indices : Masked<Shape, Index> {
  static constexpr int FETCHES = 1;  // per tile
  using Base = Masked<Shape, Index>;

  __device__ static Indices of(const Index*, const unsigned char* mask) {
    return {Base::of(nullptr, mask)};
  }
  __device__ static int arrivals() { return FETCHES * FETCH_ARRIVALS; }
  __device__ void fetch(int stage, const Shard& shard, int64 tile, Barrier& full) const {
    Base::mask.fetch(stage, shard, tile, full);
  }
  __device__ Index item(int, int64 at, int i) const { return static_cast<Index>(at + i); }
};

// Elements that are kept if Predicate::keeps them.
template <class Shape, class X, class Predicate>
struct ByPredicate {
  static constexpr int FETCHES = 1;  // per tile
  static constexpr int BITS = STAGE_BYTES<Shape, X>;
  static constexpr int STRIDE = BITS + Shape::SIZE / 8;

  Items<Shape, X, STRIDE> items;

  __device__ static ByPredicate of(const X* x, const unsigned char*) { return {{x}}; }
  __device__ static int arrivals() { return FETCHES * FETCH_ARRIVALS; }
  __device__ void fetch(int stage, const Shard& shard, int64 tile, Barrier& full) const {
    items.fetch(stage, shard, tile, full);
  }
  // As of Masked. The predicate is not called for places after the shard's end.
  __device__ unsigned leave(int stage, const Shard& shard, int64 at, int warp) const {
    constexpr int WORDS = KEPT_WORDS<Shape>;
    const X* own = room(stage, at) + warp * WORDS * LANES;
    const int64 left = shard.n - at - warp * WORDS * LANES;
    const int exist = left < WORDS * LANES ? static_cast<int>(left) : WORDS * LANES;
    unsigned kept = 0;
#pragma unroll
    for (int k = 0; k < WORDS; ++k) {
      const int i = k * LANES + lane_index();
      const unsigned word = __ballot_sync(EVERY_LANE, i < exist && Predicate::keeps(own[i]));
      if (lane_index() == k) kept = word;
    }
    if (lane_index() < WORDS) words(stage)[warp * WORDS + lane_index()] = kept;
    return __popc(kept);
  }
  __device__ unsigned* words(int stage) const {
    return reinterpret_cast<unsigned*>(Stages<Shape, X, STRIDE, BITS>::bytes(stage));
  }
  __device__ X item(int stage, int64 at, int i) const { return room(stage, at)[i]; }
  __device__ X* room(int stage, int64 at) const {
    return const_cast<X*>(Stages<Shape, X, STRIDE, 0>::items(stage, items.x, at));
  }
};

}  // namespace distscan
