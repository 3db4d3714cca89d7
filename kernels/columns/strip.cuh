// A tile of a matrix: how it is fetched to a stage in shared memory, loaded and stored by lanes.
#pragma once

#include "../base/fetch.cuh"
#include "../base/fields.cuh"
#include "matrix.cuh"

namespace distscan {

// The rows of a tile in shared or global memory, in the order of the scan, `pitch` bytes apart.
template <class E>
struct RowView {
  E* first;
  int64 pitch;

  __device__ E* row(int r) const {
    using Byte = typename Choose<is_const<E>, const char, char>::type;
    return reinterpret_cast<E*>(reinterpret_cast<Byte*>(first) + r * pitch);
  }
};

// One lane's vectors of a slice of `count` rows, all or none of them aligned; of those that do not
// exist, nothing. WHOLE: all exist.
template <class Shape, bool WHOLE, class X>
__device__ Rows<X, Shape> load_slice(const RowView<const X>& row_view, bool aligned, int count) {
  using Moved = Storage<X, Shape::ITEMS>;
  Rows<X, Shape> rows{};
  if (aligned) {
#pragma unroll
    for (int r = 0; r < Shape::ROWS; ++r)
      if (WHOLE || r < count)
        reinterpret_cast<Moved&>(rows.row[r]) = *reinterpret_cast<const Moved*>(row_view.row(r));
  } else {
#pragma unroll
    for (int r = 0; r < Shape::ROWS; ++r)
#pragma unroll
      for (int i = 0; i < Shape::ITEMS; ++i)
        if (WHOLE || r < count) rows.row[r].item[i] = row_view.row(r)[i];
  }
  return rows;
}

// The same for rows in global memory, from x[at] on, `pitch` elements apart. `at` and `pitch` are
// multiples of ITEMS.
template <class Shape, class X>
__device__ Rows<X, Shape> load_slice(const X* x, int64 at, int64 pitch, int count) {
  return load_slice<Shape, false>(RowView<const X>{x + at, pitch * static_cast<int64>(sizeof(X))},
                                  is_aligned<Shape::ITEMS>(x), count);
}
template <class Shape, class X0>
__device__ Rows<Fields<X0>, Shape> load_slice(const Pointers<const X0>& x, int64 at, int64 pitch,
                                              int count) {
  return together(load_slice<Shape>(x.first, at, pitch, count));
}
template <class Shape, class X0, class X1, class... More>
__device__ Rows<Fields<X0, X1, More...>, Shape> load_slice(
    const Pointers<const X0, const X1, const More...>& x, int64 at, int64 pitch, int count) {
  return together(load_slice<Shape>(x.first, at, pitch, count),
                  load_slice<Shape>(x.rest, at, pitch, count));
}

// Store one vector of one row.
template <int ITEMS, class Y>
__device__ void store_vector(Y* to, const Vector<Y, ITEMS>& vector, bool aligned) {
  using Moved = Storage<Y, ITEMS>;
  if (aligned) {
    *reinterpret_cast<Moved*>(to) = reinterpret_cast<const Moved&>(vector);
  } else {
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) to[i] = item(vector, i);
  }
}

// Store one vector of fields; each array has an alignment of its own.
template <int ITEMS, class Y0, class... More>
__device__ void store_vector(const Pointers<Y0, More...>& to,
                             const Vector<Fields<Y0, More...>, ITEMS>& vector, bool) {
  store_vector(to.first, vector.first, is_aligned<ITEMS>(to.first));
  if constexpr (sizeof...(More) > 0) store_vector(to.rest, vector.rest, true);
}

// The tiles that a block has in dynamic shared memory, one to a stage: rows of a strip, as they lie
// in memory. If there is one strip, a tile is one piece, fetched as a whole. Else rows are fetched
// by whole vectors of 16 bytes, and lie `pitch` bytes apart. Modulo 16, the address of a row is
// that in global memory, and no two rows share a vector.
template <class Shape, class X>
struct Strip {
  static constexpr int BYTES = sizeof(X);

  const X* x;  // [rows][inner]
  const Matrix& matrix;
  const Spot<Shape>& spot;
  int stage_bytes;
  int pitch;
  int offset = 0;  // of the tile in its stage

  // As pitch_of of cuda/columns.py.
  __device__ static int pitch_of(const Matrix& matrix, const Spot<Shape>& spot) {
    const int size = spot.columns * BYTES;
    const int64 row = matrix.inner * BYTES;
    return matrix.strips == 1 ? size : size + 16 + static_cast<int>((row - size) % 16);
  }
  __device__ Tile tile(int64 strip, int64 index) const {
    return Tile(matrix, spot.height, spot.columns, strip, index);
  }
  __device__ unsigned char* memory_of(int stage) const {
    extern __shared__ __align__(128) unsigned char stages[];  // [STAGES][stage_bytes]
    return stages + stage * stage_bytes + offset;
  }
  // The tile in a stage, as it lies in memory.
  __device__ unsigned char* bytes(int stage, const Tile& tile) const {
    return memory_of(stage) + phase(x + tile.corner);
  }
  // The arrivals of one fetch, or of one skip, at its barrier.
  __device__ int arrivals() const { return matrix.strips == 1 ? FETCH_ARRIVALS : 2 * LANES; }

  // Arrive as often with nothing fetched, by one warp.
  __device__ void fetch_nothing(Barrier& full) const {
    if (matrix.strips == 1) {
      distscan::fetch_nothing(full);
    } else {
      full.arrive();
      full.arrive();
    }
  }
  // Fetch a tile, by one warp; `full` then passes.
  __device__ void fetch(int stage, const Tile& tile, Barrier& full) const {
    if (matrix.strips == 1) {
      distscan::fetch(memory_of(stage), x, matrix.rows * matrix.inner, tile.corner,
                      tile.corner + tile.count * matrix.inner, full);
    } else {
      fetch_rows(bytes(stage, tile), tile);
      asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(full.address())
                   : "memory");
      full.arrive();
    }
  }

  // This lane's vectors of a tile that was fetched; the results may take their place.
  __device__ RowView<X> row_view(int stage, const Tile& tile, int row) const {
    const int at = matrix.reverse ? tile.count - 1 - row : row;
    return {reinterpret_cast<X*>(bytes(stage, tile) + at * pitch) + spot.column,
            matrix.reverse ? -pitch : pitch};
  }
  // The columns of a strip; the last strip may have fewer than others.
  __device__ int columns(int64 strip) const {
    const int64 left = matrix.inner - strip * spot.columns;
    return left < spot.columns ? static_cast<int>(left) : spot.columns;
  }
  // Whether this lane has a slice, and columns that exist.
  __device__ bool works(const Tile& tile) const {
    return spot.slice < spot.slices && spot.column < columns(tile.strip);
  }
  // The rows of this lane's slice, which begins at row `row`.
  __device__ int mine(const Tile& tile, int row) const {
    return works(tile) ? tile.rows_of(row, Shape::ROWS) : 0;
  }
  // This lane's rows of its slice of a warp tile.
  template <bool WHOLE>
  __device__ Rows<X, Shape> load(int stage, const Tile& tile, int warp) const {
    const int row = spot.row(warp);
    const RowView<X> rows = row_view(stage, tile, row);
    const bool aligned =
        is_aligned<Shape::ITEMS>(rows.first) && pitch % alignof(Vector<X, Shape::ITEMS>) == 0;
    if (WHOLE && !works(tile)) return {};
    return load_slice<Shape, WHOLE>(RowView<const X>{rows.first, rows.pitch}, aligned,
                                    WHOLE ? Shape::ROWS : mine(tile, row));
  }

 private:
  __device__ void fetch_rows(unsigned char* to, const Tile& tile) const {
    const int size = columns(tile.strip) * BYTES;
    const Address low = reinterpret_cast<Address>(x);
    const Address high = low + matrix.rows * matrix.inner * BYTES;
    const Address corner = low + tile.corner * BYTES;
    const Address last = corner + (tile.count - 1) * matrix.inner * BYTES;  // row in memory
    if (corner / 16 * 16 >= low && (last + size + 15) / 16 * 16 <= high) {
      fetch_vectors(to, corner, size, tile.count, [](Address) { return true; });
      return;
    }
    // At the ends of x vectors stick out of it: there, in bytes.
    const Address begin = (low + 15) / 16 * 16, stop = high / 16 * 16;
    fetch_vectors(to, corner, size, tile.count,
                  [=](Address at) { return at >= begin && at < stop; });
    unsigned char* to_last = to + (tile.count - 1) * pitch;
    for (int i = lane_index(); i < size; i += LANES) {
      if (corner + i < begin) to[i] = *reinterpret_cast<const unsigned char*>(corner + i);
      if (last + i >= stop) to_last[i] = *reinterpret_cast<const unsigned char*>(last + i);
    }
  }

  // Fetch the vectors of `count` rows of `size` bytes, of which the first lies at `corner`, as far
  // as they are `inside`. Rows `alike` apart lie alike to boundaries of vectors, so each lane's do.
  template <class Inside>
  __device__ void fetch_vectors(unsigned char* to, Address corner, int size, int count,
                                const Inside& inside) const {
    const int64 row_bytes = matrix.inner * BYTES;
    const int across = (size + 15) / 16, lane = lane_index();
    const int alike = 16 / static_cast<int>(row_bytes % 16 ? row_bytes & -row_bytes : 16);
    const int step = LANES / across / alike * alike, first = lane / across;

    // ---- 1. from each row's first vector on, some rows at once ---------------------------------
    if (first < step) fetch_every(step, to, corner, first, lane % across, count, inside);

    // ---- 2. one more of rows that stick out, a row to each lane --------------------------------
    if ((corner + lane * row_bytes) % 16 + size > across * 16)
      fetch_every(LANES, to, corner, lane, across, count, inside);
  }

  // Fetch vector `ahead` of rows row, row + step, ... below `count`.
  template <class Inside>
  __device__ void fetch_every(int step, unsigned char* to, Address corner, int row, int ahead,
                              int count, const Inside& inside) const {
    constexpr int AT_ONCE = 8;
    Address from = corner + row * matrix.inner * BYTES;
    const int offset = ahead * 16 - static_cast<int>(from % 16);
    from += offset;
    unsigned at = shared_address(to) + row * pitch + offset;
    const int down = step * pitch;
    const int64 far = step * matrix.inner * BYTES;
    for (; row < count; row += AT_ONCE * step) {
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i)
        copy_if(row + i * step < count && inside(from + i * far), at + i * down, from + i * far);
      from += AT_ONCE * far;
      at += AT_ONCE * down;
    }
  }
  // Copy 16 bytes on condition, without a branch.
  __device__ static void copy_if(bool condition, unsigned to, Address from) {
    asm volatile(
        "{ .reg .pred p; setp.ne.s32 p, %2, 0; @p cp.async.cg.shared.global [%0], [%1], 16; }" ::
            "r"(to),
        "l"(from), "r"(static_cast<int>(condition))
        : "memory");
  }
};

}  // namespace distscan
