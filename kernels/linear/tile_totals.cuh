// The total of each tile of a shard, by one pass that reads, and the scan of these totals.
//
//   level   a part is                 its total travels by   who combines
//   warp    one lane's vectors        shuffles               the warp
//   block   one warp's vectors        shared memory          one thread
//   device  one tile, of one block    global memory          the block that ends last
#pragma once

#include "reduce.cuh"
#include "weights.cuh"

namespace distscan {

// Integers below 8 bytes are summed exactly, anything else in double.
template <class X>
using SumOf =
    typename Choose<(is_integer<X> || same<X, boolean>) && sizeof(X) < 8, int64, double>::type;

// The sum of a vector. signed char: [1 2 3 ... 16] -> 136
template <class X, int ITEMS>
__device__ SumOf<X> sum_of(const Vector<X, ITEMS>& vector) {
  // 16 bytes of narrow integers do not overflow 32 bits.
  using Partial = typename Choose<same<SumOf<X>, int64> && sizeof(X) <= 2, int, SumOf<X>>::type;
  return convert<SumOf<X>>(reduce<Plus, Partial>(vector));
}

template <class X>
inline constexpr bool has_sign =
    !(same<X, boolean> || same<X, unsigned char> || same<X, unsigned short> || same<X, unsigned> ||
      same<X, unsigned long long>);

// Not 0 if the sign bit of an item is set: it may be negative. It may also be -0.0.
template <class X, int ITEMS>
__device__ unsigned signs_of(const Vector<X, ITEMS>& vector) {
  constexpr int WORDS = sizeof(vector) / 4, EACH = sizeof(X) == 8 ? 2 : 1;
  constexpr unsigned MASK = sizeof(X) == 1 ? 0x80808080 : sizeof(X) == 2 ? 0x80008000 : 0x80000000;
  const auto& word = reinterpret_cast<const unsigned (&)[WORDS]>(vector);
  unsigned signs = 0;
#pragma unroll
  for (int w = EACH - 1; w < WORDS; w += EACH) signs |= word[w];
  return has_sign<X> ? signs & MASK : 0;
}

// Scan `values` in place, by one block; return the total.
// [3 1 4] -> [3 4 8], 8
template <int THREADS, int EACH>
__device__ double scan_by_block(double* values /* [count] */, int64 count) {
  double before = 0;
  for (int64 low = 0; low < count; low += THREADS * EACH) {
    const int64 at = low + threadIdx.x * EACH;
    double value[EACH];
#pragma unroll
    for (int i = 0; i < EACH; ++i) value[i] = at + i < count ? values[at + i] : 0;
#pragma unroll
    for (int i = 1; i < EACH; ++i) value[i] += value[i - 1];
    const double earlier = sum_of_earlier<THREADS / LANES>(value[EACH - 1], before);
#pragma unroll
    for (int i = 0; i < EACH; ++i)
      if (at + i < count) values[at + i] = earlier + value[i];
  }
  return before;
}

// Launch: a block per tile. `length` is a multiple of Shape::SIZE. Tile 0 begins `lead` elements
// before x: see weights.cuh. ends[i] becomes the sum of tiles 0 to i; the last one goes to the
// host, too. It is NaN if a weight is NaN, or has its sign bit set; NaN or infinite if a weight is
// infinite.
template <class Shape, class X>
__device__ void tile_totals(const X* x /* [n] */, int64 n, int64 lead, int64 length,
                            double* ends /* [tiles] */, unsigned* arrived /* [1], zero */,
                            const Totals& total /* [1], in pinned host memory */, unsigned epoch) {
  constexpr int ROWS = Shape::ROWS, ITEMS = Shape::ITEMS;
  const int64 begin = blockIdx.x * length - lead;
  const int64 end = begin + length < n ? begin + length : n;

  // ---- 1. the tile, as many rows of vectors at a time as are in flight -------------------------
  SumOf<X> sum = 0;
  unsigned signs = 0;
  const auto add = [&](const Vector<X, ITEMS>& vector) {
    sum += sum_of(vector);
    signs |= signs_of(vector);
  };
#pragma unroll 1
  for (int64 at = begin; at < end; at += Shape::SIZE) {
    if (at >= 0 && at + Shape::SIZE <= n) {
      Vector<X, ITEMS> row[ROWS];
#pragma unroll
      for (int r = 0; r < ROWS; ++r)
        row[r] = load_packed<ITEMS>(x + at + position<Shape>(warp_index(), r));
#pragma unroll
      for (int r = 0; r < ROWS; ++r) add(row[r]);
    } else {  // at the ends of x
#pragma unroll 1
      for (int r = 0; r < ROWS; ++r)
        add(load_existing<ITEMS>(x, n, at + position<Shape>(warp_index(), r)));
    }
  }

  // ---- 2. the tile's total -------------------------------------------------------------------
  Prefix<double> own{warp_reduce<Plus>(convert<double>(sum)), true};
  own = combine_warps<Plus, Shape::WARPS>(own);
  const bool may_be_negative = __syncthreads_or(signs != 0);
  if (threadIdx.x == 0)
    ends[blockIdx.x] = may_be_negative ? __longlong_as_double(0x7ff8000000000000) : own.value;

  // ---- 3. the totals' scan -------------------------------------------------------------------
  if (!arrives_last(arrived)) return;
  const double all = scan_by_block<Shape::THREADS, 4>(ends, gridDim.x);
  if (threadIdx.x == 0) publish(total, 0, all, epoch);
}

}  // namespace distscan
