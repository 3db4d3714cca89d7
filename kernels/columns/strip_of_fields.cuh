// A tile of a matrix whose elements have fields in separate arrays.
#pragma once

#include "strip.cuh"

namespace distscan {

// As Strip of strip.cuh. The tiles of the fields lie in a stage one after the other.
template <class Shape, class X0, class... More>
struct Strip<Shape, Fields<X0, More...>> {
  using First = Strip<Shape, X0>;
  using Rest = Strip<Shape, Fields<More...>>;

  First first;
  Rest rest;

  __device__ Strip(const Pointers<const X0, const More...>& x, const Matrix& matrix,
                   const Spot<Shape>& spot, const Boxes& boxes, int stage_bytes, int offset = 0)
      : first{x.first, matrix, spot, boxes, stage_bytes, offset},
        rest{x.rest,      matrix,
             spot,        {boxes.maps + 1, boxes.rows},
             stage_bytes, offset + (spot.height * first.pitch + 16 + 127) / 128 * 128} {}
  __device__ Tile tile(int64 strip, int64 index) const { return first.tile(strip, index); }
  __device__ int arrivals() const { return first.arrivals() + rest.arrivals(); }
  __device__ void fetch_nothing(Barrier& full) const {
    first.fetch_nothing(full);
    rest.fetch_nothing(full);
  }
  __device__ void fetch(int stage, const Tile& tile, Barrier& full) const {
    first.fetch(stage, tile, full);
    rest.fetch(stage, tile, full);
  }
  __device__ bool works(const Tile& tile) const { return first.works(tile); }
  __device__ int mine(const Tile& tile, int row) const { return first.mine(tile, row); }
  template <bool WHOLE>
  __device__ Rows<Fields<X0, More...>, Shape> load(int stage, const Tile& tile, int warp) const {
    return together(first.template load<WHOLE>(stage, tile, warp),
                    rest.template load<WHOLE>(stage, tile, warp));
  }
};

// The last field.
template <class Shape, class X0>
struct Strip<Shape, Fields<X0>> {
  using First = Strip<Shape, X0>;

  First first;

  __device__ Strip(const Pointers<const X0>& x, const Matrix& matrix, const Spot<Shape>& spot,
                   const Boxes& boxes, int stage_bytes, int offset)
      : first{x.first, matrix, spot, boxes, stage_bytes, offset} {}
  __device__ int arrivals() const { return first.arrivals(); }
  __device__ void fetch_nothing(Barrier& full) const { first.fetch_nothing(full); }
  __device__ void fetch(int stage, const Tile& tile, Barrier& full) const {
    first.fetch(stage, tile, full);
  }
  template <bool WHOLE>
  __device__ Rows<Fields<X0>, Shape> load(int stage, const Tile& tile, int warp) const {
    return together(first.template load<WHOLE>(stage, tile, warp));
  }
};

}  // namespace distscan
