// A source of a scan: elements of rows, one row after the other. Each row starts with a head.
#pragma once

#include "field_items.cuh"
#include "flagged.cuh"

namespace distscan {

// Elements of rows, one row after the other; the starts of rows are the heads.
template <class Shape, class X>
struct RowItems {
  static constexpr bool HAS_HEADS = true;
  static constexpr bool PACKS = false;
  static constexpr int STRIDE = STAGE_BYTES<Shape, X>;
  using Own = X;

  Items<Shape, X> items;
  RowLength row;

  static constexpr int FETCHES = decltype(items)::FETCHES;  // per tile

  __device__ static RowItems of(const typename PointerTo<X>::Const& x, const unsigned char* heads,
                                const RowLength& row) {
    return {decltype(items)::of(x, heads, row), row};
  }
  __device__ static int arrivals() { return FETCHES * FETCH_ARRIVALS; }
  __device__ void fetch(int stage, const Shard& shard, int64 tile, Barrier& full) const {
    items.fetch(stage, shard, tile, full);
  }
  __device__ void pad_last_tile(int stage, const Shard& shard) const {
    items.pad_last_tile(stage, shard);
  }
  struct Tile {
    typename Items<Shape, X>::Tile items;
    unsigned starts;
    int length;  // 2^30 stands in for more, against which a tile is small
    int head;    // the first at or after the tile's start, counted from there

    template <class Cut>
    __device__ Rows<Headed<X>, Cut> load(int warp) const {
      const auto item_rows = items.template load<Cut>(warp);
      const int step = Cut::ROW % length;
      int next = (head - position<Cut>(warp, 0)) % length;
      if (next < 0) next += length;
      constexpr unsigned ITS_OWN = (1u << Cut::ITEMS) - 1;
      Rows<Headed<X>, Cut> rows;
#pragma unroll
      for (int r = 0; r < Cut::ROWS; ++r) {
        rows.row[r] = {item_rows.row[r], next < Cut::ITEMS ? starts << next & ITS_OWN : 0};
        next -= step;
        if (next < 0) next += length;
      }
      return rows;
    }
  };
  __device__ Tile tile(int stage, const Shard& shard, int64 at) const {
    constexpr int64 MOST = 1 << 30;
    const int64 rest = row.rest(Shape::REVERSE ? shard.n - at - Shape::SIZE : at);
    const int64 left = rest > 0 ? row.length - rest : 0;
    return {items.tile(stage, shard, at), row.starts,
            static_cast<int>(row.length < MOST ? row.length : MOST),
            static_cast<int>(left < MOST ? left : MOST)};
  }
  template <class T>
  __device__ static Offset<Flagged<T>> offset(Prefix<T>, const Mail&, T first) {
    return {{{first, 0}, true}, {}};
  }
  template <class T>
  __device__ T item(const Shard& shard, int64 i) const {
    return convert<T>(Headed<X>{items.template item<X>(shard, i), row.rest(i) == 0});
  }
};

}  // namespace distscan
