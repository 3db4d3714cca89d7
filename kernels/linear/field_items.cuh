// The source of a scan whose elements have fields in arrays of their own.
//
// The tiles of the fields lie in a stage one after the other. One warp fetches them all at once, a
// field to each lane.
//
//   x0: int8, x1: float32, tiles of 128 elements
//   stage: x0[0] ... x0[127], 16 bytes more | x1[0] ... x1[127], 16 bytes more
#pragma once

#include "items.cuh"

namespace distscan {

// One field of a shard: its array, the bytes of an element, and where it begins in a stage.
struct Field {
  Address x;
  int size, offset;
};

// Items whose fields are X0, More...; see Items of one array.
template <class Shape, class X0, class... More, int STRIDE_, int OFFSET>
struct Items<Shape, Fields<X0, More...>, STRIDE_, OFFSET> {
  static constexpr bool HAS_HEADS = false;
  static constexpr bool PACKS = false;
  static constexpr int FIELDS = 1 + sizeof...(More);
#if __CUDA_ARCH__ >= 900
  static constexpr int FETCHES = (FIELDS + LANES - 1) / LANES;  // per tile
#else
  static constexpr int FETCHES = FIELDS;
#endif
  static constexpr int STRIDE = STRIDE_;
  static constexpr int BEHIND = OFFSET + STAGE_BYTES<Shape, X0>;
  using Own = Fields<X0, More...>;
  using First = Items<Shape, X0, STRIDE, OFFSET>;
  using Rest = Items<Shape, Fields<More...>, STRIDE, BEHIND>;

  First first;
  Rest rest;

  __device__ static Items of(const Pointers<const X0, const More...>& x, const unsigned char* heads,
                             const RowLength& row) {
    return {First::of(x.first, heads, row), Rest::of(x.rest, heads, row)};
  }
  __device__ static int arrivals() { return FETCHES * FETCH_ARRIVALS; }
  __device__ void fetch(int stage, const Shard& shard, int64 tile, Barrier& full) const {
#if __CUDA_ARCH__ >= 900
    using Stage = Stages<Shape, unsigned char, STRIDE, 0>;
    const int64 from = shard.from<Shape>(tile), to = shard.to<Shape>(tile);
    const int64 lacking = from - shard.at<Shape>(tile);  // elements before the first in memory
#pragma unroll
    for (int i = 0; i < FIELDS; i += LANES) {
      const Field own = field(i + lane_index());
      const Address wanted = own.x + from * own.size;
      const int phase = static_cast<int>((wanted - lacking * own.size) % 16);
      unsigned char* room = Stage::bytes(stage) + own.offset + phase + lacking * own.size;
      fetch_by_lanes(room - wanted % 16, own.x, own.x + shard.n * own.size, wanted,
                     own.x + to * own.size, full);
    }
#else
    first.fetch(stage, shard, tile, full);
    rest.fetch(stage, shard, tile, full);
#endif
  }
  // Field i; zeros if there are not so many.
  __device__ Field field(int i) const {
    return i == 0 ? Field{reinterpret_cast<Address>(first.x), sizeof(X0), OFFSET}
                  : rest.field(i - 1);
  }
  __device__ void pad_last_tile(int stage, const Shard& shard) const {
    first.pad_last_tile(stage, shard);
    rest.pad_last_tile(stage, shard);
  }
  struct Tile {
    typename First::Tile first;
    typename Rest::Tile rest;

    template <class Cut>
    __device__ Rows<Own, Cut> load(int warp) const {
      if constexpr (is_large<Own>)
        return all_aligned<Cut::ITEMS>() ? load_all<true, Cut>(warp) : load_all<false, Cut>(warp);
      else
        return together(first.template load<Cut>(warp), rest.template load<Cut>(warp));
    }
    // Whether the vectors of all fields are ALIGNED: one branch for all of them.
    template <int ITEMS>
    __device__ bool all_aligned() const {
      return is_aligned<ITEMS>(first.p) & rest.template all_aligned<ITEMS>();
    }
    template <bool ALIGNED, class Cut>
    __device__ Rows<Own, Cut> load_all(int warp) const {
      return together(load_rows<ALIGNED, Cut>(first.p, warp),
                      rest.template load_all<ALIGNED, Cut>(warp));
    }
  };
  __device__ Tile tile(int stage, const Shard& shard, int64 at) const {
    return {first.tile(stage, shard, at), rest.tile(stage, shard, at)};
  }
  template <class T>
  __device__ static Offset<T> offset(Prefix<T> offset, const Mail& mail, T) {
    return {offset, mail};
  }
  template <class T>
  __device__ T item(const Shard& shard, int64 i) const {
    return convert<T>(fields(shard, i));
  }
  __device__ Own fields(const Shard& shard, int64 i) const {
    return {first.template item<X0>(shard, i), rest.fields(shard, i)};
  }
};

// The last field.
template <class Shape, class X0, int STRIDE_, int OFFSET>
struct Items<Shape, Fields<X0>, STRIDE_, OFFSET> {
  static constexpr bool HAS_HEADS = false;
  static constexpr bool PACKS = false;
  static constexpr int FETCHES = 1;  // per tile
  static constexpr int STRIDE = STRIDE_;
  using Own = Fields<X0>;
  using First = Items<Shape, X0, STRIDE, OFFSET>;

  First first;

  __device__ static Items of(const Pointers<const X0>& x, const unsigned char* heads,
                             const RowLength& row) {
    return {First::of(x.first, heads, row)};
  }
  __device__ void fetch(int stage, const Shard& shard, int64 tile, Barrier& full) const {
    first.fetch(stage, shard, tile, full);
  }
  __device__ Field field(int i) const {
    return i == 0 ? Field{reinterpret_cast<Address>(first.x), sizeof(X0), OFFSET} : Field{};
  }
  __device__ void pad_last_tile(int stage, const Shard& shard) const {
    first.pad_last_tile(stage, shard);
  }
  struct Tile {
    typename First::Tile first;

    template <class Cut>
    __device__ Rows<Own, Cut> load(int warp) const {
      return together(first.template load<Cut>(warp));
    }
    template <int ITEMS>
    __device__ bool all_aligned() const {
      return is_aligned<ITEMS>(first.p);
    }
    template <bool ALIGNED, class Cut>
    __device__ Rows<Own, Cut> load_all(int warp) const {
      return together(load_rows<ALIGNED, Cut>(first.p, warp));
    }
  };
  __device__ Tile tile(int stage, const Shard& shard, int64 at) const {
    return {first.tile(stage, shard, at)};
  }
  __device__ Own fields(const Shard& shard, int64 i) const {
    return {first.template item<X0>(shard, i)};
  }
};

}  // namespace distscan
