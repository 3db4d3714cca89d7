// A source of a scan: elements with a flag each, which says whether the element is a head.
#pragma once

#include "field_items.cuh"
#include "flags.cuh"

namespace distscan {

// Elements with a flag each; see Items.
//
// PACKS: reducers pack the flags of a vector into bits, and leave these in the stage. Scanners wait
// at the barrier `reduced` and take the bits. Narrow elements have many flags to a vector.
template <class Shape, class X>
struct FlaggedItems {
  static constexpr bool HAS_HEADS = true;
  static constexpr bool PACKS =
      !is_fields<X> && Shape::ITEMS == items_per_vector<X>() && Shape::ITEMS >= 8;
  static constexpr int OFFSET = STAGE_BYTES<Shape, X>;
  static constexpr int BITS = OFFSET + STAGE_BYTES<Shape, unsigned char>;  // where they are left
  static constexpr int STRIDE = BITS + (PACKS ? Shape::SIZE / 8 : 0);
  using Own = X;
  using Bits = typename Choose<Shape::ITEMS == 8, unsigned char, unsigned short>::type;

  Items<Shape, X, STRIDE> items;
  Items<Shape, unsigned char, STRIDE, OFFSET> flags;

  static constexpr int FETCHES = decltype(items)::FETCHES + 1;  // per tile

  __device__ static FlaggedItems of(const typename PointerTo<X>::Const& x,
                                    const unsigned char* heads, const RowLength& row) {
    return {decltype(items)::of(x, heads, row), {heads}};
  }
  __device__ static int arrivals() { return FETCHES * FETCH_ARRIVALS; }
  __device__ void fetch(int stage, const Shard& shard, int64 tile, Barrier& full) const {
    items.fetch(stage, shard, tile, full);
    flags.fetch(stage, shard, tile, full);
  }
  __device__ void pad_last_tile(int stage, const Shard& shard) const {
    items.pad_last_tile(stage, shard);
  }
  struct Tile {
    typename Items<Shape, X, STRIDE>::Tile items;
    typename Items<Shape, unsigned char, STRIDE, OFFSET>::Tile flags;
    Bits* bits;  // [WARPS][ROWS][LANES]

    template <class Cut>
    __device__ Rows<Headed<X>, Cut> load(int warp) const {
      const auto item_rows = items.template load<Cut>(warp);
      const auto flag_rows = flags.template load<Cut>(warp);
      Rows<Headed<X>, Cut> rows;
#pragma unroll
      for (int r = 0; r < Cut::ROWS; ++r) {
        const unsigned found = distscan::bits(flag_rows.row[r]);
        rows.row[r] = {item_rows.row[r], found};
      }
      return rows;
    }
    // Leave the bits of a warp's flags, for load_left.
    __device__ void leave(const Rows<Headed<X>, Shape>& rows, int warp) const {
#pragma unroll
      for (int r = 0; r < Shape::ROWS; ++r)
        bits[(warp * Shape::ROWS + r) * LANES + lane_index()] = rows.row[r].heads;
    }
    __device__ Rows<Headed<X>, Shape> load_left(int warp) const {
      const auto item_rows = items.template load<Shape>(warp);
      Rows<Headed<X>, Shape> rows;
#pragma unroll
      for (int r = 0; r < Shape::ROWS; ++r)
        rows.row[r] = {item_rows.row[r], bits[(warp * Shape::ROWS + r) * LANES + lane_index()]};
      return rows;
    }
  };
  __device__ Tile tile(int stage, const Shard& shard, int64 at) const {
    using Place = Stages<Shape, unsigned char, STRIDE, BITS>;
    return {items.tile(stage, shard, at), flags.tile(stage, shard, at),
            reinterpret_cast<Bits*>(Place::bytes(stage))};
  }
  template <class T>
  __device__ static Offset<Flagged<T>> offset(Prefix<T> offset, const Mail& mail, T) {
    return {{{offset.value, 0}, offset.some}, mail};
  }
  template <class T>
  __device__ T item(const Shard& shard, int64 i) const {
    return {items.template item<decltype(T::value)>(shard, i), flags.template item<bool>(shard, i)};
  }
};

}  // namespace distscan
