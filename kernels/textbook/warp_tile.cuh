// The way of a warp's items between global memory and its lanes, for the textbook's scans.
#pragma once

#include "../base/tile.cuh"

namespace distscan {

// A warp's part of a tile. Each lane has EACH items, one behind the other. Neighbouring lanes
// access neighbouring vectors in global memory, so the items go by way of shared memory. EACH 2,
// lanes 0, 1, 2: memory [a b c d e f] -> lane 0 has a b, lane 1 c d, lane 2 e f
template <class Shape, int BYTES>
struct WarpTile {
  // Odd, so that 8 lanes that access 16 bytes each find them in different banks.
  static_assert(Shape::ROWS % 2 == 1, "lanes would wait for each other's banks");
  static constexpr int EACH = Shape::ROWS * Shape::ITEMS;
  static constexpr int SIZE = LANES * EACH;

  template <class E>
  __device__ static E* shared() {
    extern __shared__ __align__(128) unsigned char tile[];  // [THREADS * EACH * BYTES]
    return reinterpret_cast<E*>(tile + warp_index() * SIZE * BYTES);
  }

  // Bring this warp's items of the tile at x to shared memory. `count` items of the tile exist; the
  // last of them stands in for the others.
  template <class X>
  __device__ static void fetch(const X* x /* [count] */, int count) {
    const int begin = warp_index() * SIZE;
    X* here = shared<X>();
    if (begin + SIZE <= count && is_aligned<Shape::ITEMS>(x)) {
      using Moved = Storage<X, Shape::ITEMS>;
#pragma unroll
      for (int i = 0; i < Shape::ROWS; ++i)
        reinterpret_cast<Moved*>(here)[i * LANES + lane_index()] =
            reinterpret_cast<const Moved*>(x + begin)[i * LANES + lane_index()];
    } else {
      for (int i = lane_index(); i < SIZE; i += LANES)
        here[i] = x[begin + i < count ? begin + i : count - 1];
    }
    __syncwarp();
  }

  // Vector `row` of this thread's items.
  template <class X>
  __device__ static Vector<X, Shape::ITEMS> take(int row) {
    using Moved = Storage<X, Shape::ITEMS>;
    Vector<X, Shape::ITEMS> vector;
    reinterpret_cast<Moved&>(vector) =
        reinterpret_cast<const Moved*>(shared<X>())[lane_index() * Shape::ROWS + row];
    return vector;
  }

  // Put vector `row` of this thread's results where its items were.
  template <class Y>
  __device__ static void put(int row, const Vector<Y, Shape::ITEMS>& vector) {
    using Moved = Storage<Y, Shape::ITEMS>;
    reinterpret_cast<Moved*>(shared<Y>())[lane_index() * Shape::ROWS + row] =
        reinterpret_cast<const Moved&>(vector);
  }

  // Store what every lane has put there to the tile at y, of which `count` items exist.
  template <class Y>
  __device__ static void store(Y* y /* [count] */, int count) {
    __syncwarp();
    const int begin = warp_index() * SIZE;
    const Y* here = shared<Y>();
    if (begin + SIZE <= count && is_aligned<Shape::ITEMS>(y)) {
      using Moved = Storage<Y, Shape::ITEMS>;
#pragma unroll
      for (int i = 0; i < Shape::ROWS; ++i)
        reinterpret_cast<Moved*>(y + begin)[i * LANES + lane_index()] =
            reinterpret_cast<const Moved*>(here)[i * LANES + lane_index()];
    } else {
      for (int i = lane_index(); i < SIZE && begin + i < count; i += LANES) y[begin + i] = here[i];
    }
    __syncwarp();
  }
};

}  // namespace distscan
