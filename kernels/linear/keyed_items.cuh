// A source of a scan: elements with a key each. A segment begins where the key changes.
#pragma once

#include "field_items.cuh"
#include "keys.cuh"

namespace distscan {

// Elements with a key each; see Items. The loader fetches one key more than elements: that of the
// element before the tile, in the order of the scan. Keys are as aligned as their type.
//
// float32, a tile of 4 elements from element 8 on, int32 keys, not REVERSE
//   stage: x8 x9 x10 x11 | k7 k8 k9 k10 k11
//
// Reducers and scanners both compare keys. With bits that reducers leave for the scanners, 2^28
// float32 by int32 keys take 902 us, without 784 (H200).
template <class Shape, class X, class K>
struct KeyedItems {
  static constexpr bool HAS_HEADS = true;
  static constexpr bool PACKS = false;
  static constexpr int KEYS = STAGE_BYTES<Shape, X>;  // where they are, in a stage
  static constexpr int STRIDE = KEYS + STAGE_BYTES<Shape, K>;
  using Own = X;
  using KeyStages = Stages<Shape, K, STRIDE, KEYS>;

  Items<Shape, X, STRIDE> items;
  const K* keys;  // [n]

  static constexpr int FETCHES = decltype(items)::FETCHES + 1;  // per tile

  __device__ static KeyedItems of(const typename PointerTo<X>::Const& x, const unsigned char* keys,
                                  const RowLength& row) {
    return {decltype(items)::of(x, keys, row), reinterpret_cast<const K*>(keys)};
  }
  __device__ static int arrivals() { return FETCHES * FETCH_ARRIVALS; }
  // Where the key of the tile's first element in memory is: of the tile at x + at, in its stage.
  __device__ unsigned char* first_key(int stage, int64 at) const {
    const K* low = keys + at - !Shape::REVERSE;
    return KeyStages::bytes(stage) + phase(low) + !Shape::REVERSE * sizeof(K);
  }
  __device__ void fetch(int stage, const Shard& shard, int64 tile, Barrier& full) const {
    items.fetch(stage, shard, tile, full);
    int64 from = shard.from<Shape>(tile), to = shard.to<Shape>(tile);
    if (!Shape::REVERSE && from > 0) --from;
    if (Shape::REVERSE && to < shard.n) ++to;
    const int64 at = shard.at<Shape>(tile);
    const int64 begin = (from - at) * static_cast<int>(sizeof(K)) - phase(keys + from);
    distscan::fetch(first_key(stage, at) + begin, keys, shard.n, from, to, full, shard.evict_first);
  }
  // The keys after the shard's end may be any: no result depends on them.
  __device__ void pad_last_tile(int stage, const Shard& shard) const {
    items.pad_last_tile(stage, shard);
  }
  struct Tile {
    typename Items<Shape, X, STRIDE>::Tile items;
    const K* keys;  // of the tile; in the order of the scan, one more before it
    bool is_first;  // whether the tile begins with the shard's first element

    template <class Cut>
    __device__ Rows<Headed<X>, Cut> load(int warp) const {
      constexpr int BEFORE = Cut::REVERSE ? Cut::ITEMS : -1;  // from a vector, in memory
      const auto item_rows = items.template load<Cut>(warp);
      const auto key_rows = distscan::load<Cut>(keys, warp);
      Rows<Headed<X>, Cut> rows;
#pragma unroll
      for (int r = 0; r < Cut::ROWS; ++r) {
        K before = shuffle_up(distscan::item(key_rows.row[r], Cut::ITEMS - 1), 1);
        if (lane_index() == 0) before = keys[place<Cut>(warp, r) + BEFORE];
        rows.row[r] = {item_rows.row[r], heads_of(before, key_rows.row[r])};
      }
      if (is_first && warp == 0 && lane_index() == 0) rows.row[0].heads &= ~1u;
      return rows;
    }
  };
  __device__ Tile tile(int stage, const Shard& shard, int64 at) const {
    return {items.tile(stage, shard, at), reinterpret_cast<const K*>(first_key(stage, at)),
            Shape::REVERSE ? at + Shape::SIZE == shard.n : at == 0};
  }
  template <class T>
  __device__ static Offset<Flagged<T>> offset(Prefix<T> offset, const Mail& mail, T) {
    return {{{offset.value, 0}, offset.some}, mail};
  }
  template <class T>
  __device__ T item(const Shard& shard, int64 i) const {
    const K* key = keys + (Shape::REVERSE ? shard.n - 1 - i : i);
    return {items.template item<decltype(T::value)>(shard, i),
            i > 0 && differ(key[Shape::REVERSE ? 1 : -1], *key)};
  }
};

}  // namespace distscan
