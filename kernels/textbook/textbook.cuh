// The scan of a shard in one pass, with the parts that textbooks describe: any block scan of
// block_scans/, any chain of chains/. For reading and comparing: what runs otherwise is
// linear/scan.cuh.
//
//   level   a part is             its total travels by   who combines
//   thread  one item              registers              the thread, one after the other
//   block   one thread's items    shared memory          block_scans/
//   device  one tile              global memory          chains/, by the block's first warp
//
// Blocks draw the numbers of their tiles from a counter as they come to them. So whoever waits, in
// any of the chains, waits for tiles that running blocks have drawn; by blockIdx it could be for a
// block that never starts, since those that wait hold its place.
#pragma once

#include "../linear/shard.cuh"

namespace distscan {

// A tile, as one thread of its block sees it: EACH items of its own, one behind the other. Memory
// is accessed in whole lines, each warp its own warp tile, by way of shared memory.
template <class Shape, int BYTES>
struct Stretch {
  // Odd, so that 8 lanes that access 16 bytes each find them in different banks.
  static_assert(Shape::ROWS % 2 == 1, "lanes would wait for each other's banks");
  static constexpr int EACH = Shape::ROWS * Shape::ITEMS;
  static constexpr int SIZE = LANES * EACH;

  template <class E>
  __device__ static E* shared() {
    extern __shared__ __align__(128) unsigned char tile[];  // [THREADS * EACH * BYTES]
    return reinterpret_cast<E*>(tile + warp_index() * SIZE * BYTES);
  }

  // Bring this warp's warp tile at x, of which `count` items exist; the last of these
  // stands in for those that do not.
  template <class X>
  __device__ static void fetch(const X* x, int count) {
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

  // Take a vector of this thread's items from there.
  template <class X>
  __device__ static Vector<X, Shape::ITEMS> take(int row) {
    using Moved = Storage<X, Shape::ITEMS>;
    Vector<X, Shape::ITEMS> vector;
    reinterpret_cast<Moved&>(vector) =
        reinterpret_cast<const Moved*>(shared<X>())[lane_index() * Shape::ROWS + row];
    return vector;
  }

  // Put a vector of this thread's results there.
  template <class Y>
  __device__ static void put(int row, const Vector<Y, Shape::ITEMS>& vector) {
    using Moved = Storage<Y, Shape::ITEMS>;
    reinterpret_cast<Moved*>(shared<Y>())[lane_index() * Shape::ROWS + row] =
        reinterpret_cast<const Moved&>(vector);
  }

  // Store what every thread has put there.
  template <class Y>
  __device__ static void store(Y* y, int count) {
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

// Launch: any number of blocks, BlockScan's THREADS each; THREADS * EACH items of the wider type
// in dynamic shared memory. y may be x.
template <class Op, class Shape, class BlockScan, class Chain, class X, class T, class Y>
__device__ void textbook(const X* x /* [n] */, Y* y /* [n] */, const Shard& shard,
                         const Workspace& work, Prefix<T> offset) {
  using Own = Stretch<Shape, larger(sizeof(X), sizeof(Y))>;
  constexpr int EACH = Own::EACH, ITEMS = Shape::ITEMS;
  __shared__ int64 drawn;
  __shared__ T inclusive[Shape::THREADS];  // over the threads' totals
  __shared__ T up_to_tile;
  __shared__ typename BlockScan::Shared scanning;
  const int thread = threadIdx.x;
  Chain chain{offset};

  for (;;) {
    // ---- 1. draw a tile; the counter is zero again when every block has drawn one too many ----
    if (thread == 0)
      drawn = atomicInc(work.tile_counter, static_cast<unsigned>(shard.tiles + gridDim.x - 1));
    __syncthreads();
    const int64 tile = drawn;
    if (tile >= shard.tiles) return;
    const int64 begin = shard.begin<Shape>(tile);
    const int count = static_cast<int>(shard.end<Shape>(tile) - begin);
    const int mine = count - thread * EACH;  // how many of this thread's items exist

    // ---- 2. each thread's total, scanned over the block ---------------------------------------
    Own::fetch(x + begin, count);
    Prefix<T> total;
#pragma unroll
    for (int r = 0; r < Shape::ROWS; ++r) {
      const auto vector = Own::template take<X>(r);
#pragma unroll
      for (int i = 0; i < ITEMS; ++i)
        if (r + i == 0 || r * ITEMS + i < mine) total = join<Op>(total, get<T>(vector, i));
    }
    inclusive[thread] = BlockScan::inclusive(total.value, scanning);
    __syncthreads();

    // ---- 3. what comes before the tile, then before the thread --------------------------------
    if (warp_index() == 0) {
      const Prefix<T> prefix = chain.before(tile, inclusive[(count - 1) / EACH], work);
      if (thread == 0) up_to_tile = prefix.value;
    }
    __syncthreads();
    Prefix<T> before{up_to_tile, offset.some || tile > 0};
    if (thread > 0) before = join<Op>(before, inclusive[thread - 1]);

    // ---- 4. each thread's items behind that ---------------------------------------------------
    Vector<Y, ITEMS> scanned[Shape::ROWS];
    Prefix<T> own;
    T last;
#pragma unroll
    for (int r = 0; r < Shape::ROWS; ++r) {
      const auto vector = Own::template take<X>(r);
      T value[ITEMS];
#pragma unroll
      for (int i = 0; i < ITEMS; ++i) {
        own = join<Op>(own, get<T>(vector, i));
        value[i] = join<Op>(before, own.value).value;
        if (r * ITEMS + i < mine) last = value[i];
      }
      scanned[r] = pack<Y>(value);
    }
    __syncwarp();  // every lane has read its items, where results now go
#pragma unroll
    for (int r = 0; r < Shape::ROWS; ++r) Own::put(r, scanned[r]);
    Own::store(y + begin, count);
    if (work.total.words && tile == shard.tiles - 1 && thread == (count - 1) / EACH)
      publish(work.total, 0, last, work.epoch);
  }
}

}  // namespace distscan
