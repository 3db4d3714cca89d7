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

// CUtensorMap of the CUDA driver: tells the copy engine where a matrix lies, and the size of a box.
struct alignas(64) TensorMap {
  unsigned char bytes[128];
};
template <int FIELDS>
struct TensorMapsOf {
  TensorMap of_field[FIELDS];
};
// How the engine fetches tiles: see Boxes of cuda/columns.py.
struct Boxes {
  const TensorMap* maps;  // of each field
  int rows;               // of a box, which divide the rows of a tile; 0: there are no boxes
};

// The tiles that a block has in dynamic shared memory, one to a stage: rows of a strip, as they lie
// in memory. There are four ways to fetch a tile:
//
//   piece     one piece of memory, by the engine, where one strip has all columns
//   boxes     of rows, by the engine, where x, rows and strips are aligned to 16 bytes; rows and
//             columns outside of the matrix are zeros
//   vectors   of 16 bytes, by the lanes
//   elements  by the lanes, where rows and strips are aligned, but x is not
//
// Rows lie `pitch` bytes apart. Modulo 16, the address of a row is that in global memory, and no
// two rows share a vector. So rows that are not aligned have room beside them.
template <class Shape, class X>
struct Strip {
  static constexpr int BYTES = sizeof(X);
  static constexpr int PARTS = BYTES > 8 ? BYTES / 8 : 1;  // of an element, as maps have them

  const X* x;  // [rows][inner]
  const Matrix& matrix;
  const Spot<Shape>& spot;
  Boxes boxes;
  int stage_bytes;
  int offset = 0;  // of the tile in its stage, a multiple of 128
  int pitch = pitch_of(matrix, spot);

  // As pitches of cuda/columns.py.
  __device__ static int pitch_of(const Matrix& matrix, const Spot<Shape>& spot) {
    const int size = spot.columns * BYTES;
    const int64 row = matrix.inner * BYTES;
    const bool packed = matrix.strips == 1 || (size % 16 == 0 && row % 16 == 0);
    return packed ? size : size + 16 + static_cast<int>((row - size) % 16);
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
  __device__ int arrivals() const { return by_engine() ? FETCH_ARRIVALS : 2 * LANES; }

  // Arrive as often with nothing fetched, by one warp.
  __device__ void fetch_nothing(Barrier& full) const {
    if (by_engine()) {
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
#if __CUDA_ARCH__ >= 900
    } else if (boxes.rows > 0) {
      fetch_boxes(memory_of(stage), tile, full);
#endif
    } else {
      if (pitch == spot.columns * BYTES && phase(x) > 0)
        fetch_elements(stage, tile);
      else
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
  // Whether this lane has a slice, and columns that exist.
  __device__ bool works(const Tile& tile) const {
    return spot.slice < spot.slices && spot.column < tile.columns;
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
  __device__ bool by_engine() const { return matrix.strips == 1 || boxes.rows > 0; }

#if __CUDA_ARCH__ >= 900
  // Fetch the boxes of a tile, one per lane, to multiples of 128 bytes. The engine counts whole
  // boxes, wherever the matrix ends.
  __device__ void fetch_boxes(unsigned char* to, const Tile& tile, Barrier& full) const {
    const int lane = lane_index(), bytes = boxes.rows * pitch;
    const int column = static_cast<int>(tile.strip) * spot.columns,
              row = static_cast<int>(tile.row);
    const int count = (tile.count + boxes.rows - 1) / boxes.rows;
    if (lane == 0)
      expect(full, count * bytes);
    else if (lane < ARRIVALS_PER_WARP)
      full.arrive();
    __syncwarp();
    for (int box = lane; box < count; box += LANES)
      asm volatile(
          "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
          "[%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(to + box * bytes)),
          "l"(boxes.maps), "r"(column * PARTS), "r"(row + box * boxes.rows), "r"(full.address())
          : "memory");
  }
#endif

  // Fetch a tile element by element.
  __device__ void fetch_elements(int stage, const Tile& tile) const {
    auto* const to = reinterpret_cast<X*>(bytes(stage, tile));
    for (int row = 0; row < tile.count; ++row)
      for (int column = lane_index(); column < tile.columns; column += LANES)
        to[row * spot.columns + column] = x[tile.corner + row * matrix.inner + column];
  }

  __device__ void fetch_rows(unsigned char* to, const Tile& tile) const {
    const int size = tile.columns * BYTES;
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
