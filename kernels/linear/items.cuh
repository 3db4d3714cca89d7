// The source of a scan: the items of a shard, fetched tile by tile to the stages of a pipeline.
#pragma once

#include "../base/fetch.cuh"
#include "../base/fields.cuh"
#include "offset.cuh"
#include "shard.cuh"

namespace distscan {

// The stages of a pipeline of tiles, in dynamic shared memory. A stage has STRIDE bytes. The items
// begin at byte OFFSET of it.
template <class Shape, class X, int STRIDE, int OFFSET>
struct Stages {
  __device__ static unsigned char* bytes(int stage) {
    extern __shared__ __align__(128) unsigned char stages[];  // [STAGES][STRIDE]
    return stages + stage * STRIDE + OFFSET;
  }
  // The address of the tile at x + at, in the stage to which it was fetched.
  __device__ static const X* items(int stage, const X* x, int64 at) {
    return reinterpret_cast<const X*>(bytes(stage) + phase(x + at));
  }
  // The address to which the existing elements of that tile are fetched. The last tile of a reverse
  // scan may begin before x, where no elements exist.
  __device__ static unsigned char* room(int stage, const X* x, int64 at) {
    if (!Shape::REVERSE || at >= 0) return bytes(stage);
    return bytes(stage) + -at * sizeof(X) + phase(x + at) - phase(x);
  }
};

// The bytes of a stage that one tile takes: vectors of 16 bytes, of which the first and the last
// may belong to the tile only in part. Fields have a part of the stage each, one after the other.
template <class Shape, class X>
constexpr int STAGE_BYTES = Shape::SIZE * sizeof(X) + 16;
template <class Shape, class... X>
constexpr int STAGE_BYTES<Shape, Fields<X...>> = (STAGE_BYTES<Shape, X> + ...);

// A source of items: the elements of x, as they stand. FlaggedItems and RowItems are sources too.
// All have these members:
//
//   HAS_HEADS              whether items come with flags of heads
//   of                     makes the source from the kernel's parameters
//   fetch, pad_last_tile   the loader brings a tile to a stage, and completes the shard's last tile
//   arrivals               how often a fetch arrives at its barrier
//   tile                   reducers and scanners find the tile in its stage, and load their items
//   STRIDE                 the bytes of a stage
//   PACKS                  whether reducers leave results in the stage that scanners need, too
//   offset                 the offset of the shard, in the type of this source
//   item                   one element, from global memory
template <class Shape, class X, int STRIDE_ = STAGE_BYTES<Shape, X>, int OFFSET = 0>
struct Items {
  static constexpr bool HAS_HEADS = false;
  static constexpr bool PACKS = false;
  static constexpr int FETCHES = 1;  // per tile
  static constexpr int STRIDE = STRIDE_;
  using Own = X;
  using Stages = distscan::Stages<Shape, X, STRIDE, OFFSET>;

  const X* x;  // [n]

  __device__ static Items of(const X* x, const unsigned char*, const RowLength&) { return {x}; }
  __device__ static int arrivals() { return FETCHES * FETCH_ARRIVALS; }
  __device__ void fetch(int stage, const Shard& shard, int64 tile, Barrier& full) const {
    distscan::fetch(Stages::room(stage, x, shard.at<Shape>(tile)), x, shard.n,
                    shard.from<Shape>(tile), shard.to<Shape>(tile), full, shard.evict_first);
  }
  // Fill the places after the shard's end, in its last tile, with the shard's last element; by one
  // warp. Operators are called with these copies, and the results are dropped.
  // n = 7, tiles of 4, not REVERSE: the last tile is [x4 x5 x6 x6]
  __device__ void pad_last_tile(int stage, const Shard& shard) const {
    const int64 at = shard.at<Shape>(shard.tiles - 1);
    const int lacking = static_cast<int>(Shape::REVERSE ? -at : at + Shape::SIZE - shard.n);
    X* p = const_cast<X*>(Stages::items(stage, x, at));
    const X last = x[Shape::REVERSE ? 0 : shard.n - 1];
#pragma unroll 8
    for (int i = lacking - 1 - lane_index(); i >= 0; i -= LANES)
      p[Shape::REVERSE ? i : Shape::SIZE - 1 - i] = last;
  }
  // The tile that lies at x + at, in its stage.
  struct Tile {
    const X* p;

    // One lane's items of a warp tile, in the order of the scan, with Cut's rows.
    template <class Cut>
    __device__ Rows<X, Cut> load(int warp) const {
      return distscan::load<Cut>(p, warp);
    }
  };
  __device__ Tile tile(int stage, const Shard& shard, int64 at) const {
    return {Stages::items(stage, x, at)};
  }
  // The offset of the shard.
  template <class T>
  __device__ static Offset<T> offset(Prefix<T> offset, const Mail& mail, T) {
    return {offset, mail};
  }
  // Element i in the order of the scan.
  template <class T>
  __device__ T item(const Shard& shard, int64 i) const {
    return convert<T>(x[Shape::REVERSE ? shard.n - 1 - i : i]);
  }
};

}  // namespace distscan
