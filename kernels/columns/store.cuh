// What a scan down columns stores, row by row: its results, or gradients that it finds with them.
#pragma once

#include "strip.cuh"

namespace distscan {

// Results of type Y, which lane by lane go to slices of rows. EARLY: what is read beside the
// elements is in registers before the first row is stored.
template <class Y, class Shape, bool EARLY>
struct Store {
  template <class To>
  __device__ Store(const To&, int64, int, unsigned long long) {}

  // Store row r to `to`: the scan has `value` there, and x the elements `row`.
  template <class To, class T, class X>
  __device__ void row(int r, const To& to, bool aligned, const T (&value)[Shape::ITEMS],
                      const Vector<X, Shape::ITEMS>& row) const {
    store_vector(to, pack<Y>(value), aligned);
  }
};

// The gradients da and db of a recurrence h[t] = a[t] h[t-1] + b[t], from dh. Their scan goes from
// the last t to the first, is exclusive, and has the elements a, dh, which are read as the maps of
//
//   g[t] = a[t] (dh[t] + g[t+1])
//
// So the scan has g[t+1] in row t, and db[t] = dh[t] + g[t+1], da[t] = db[t] h[t-1].
//
//   a [2 3 5], h [1 4 9], dh [1 1 1]: g [2 (1 + 18) = 38, 3 (1 + 5) = 18, 5 (1 + 0) = 5]
//   db [1 + 18, 1 + 5, 1 + 0] = [19 6 1], da [19 * 0, 6 * 1, 1 * 4] = [0 6 4]
template <class H>
struct Gradients {};

template <class H>
struct PointerTo<Gradients<H>> {
  using Mutable = Pointers<H, H, const H>;  // da, db, h
};

template <class H, class Shape, bool EARLY>
struct Store<Gradients<H>, Shape, EARLY> {
  static constexpr int ITEMS = Shape::ITEMS;
  using To = typename PointerTo<Gradients<H>>::Mutable;
  using OneRow = distscan::Shape<Shape::THREADS, 1, ITEMS>;

  int64 pitch;               // from one row to the next, in the order of the scan
  int count;                 // rows of the slice after which there is a row in memory
  unsigned long long heads;  // bit r: the row after row r is of another scan, before which h is 0
  Rows<H, Shape> early;      // h[t-1], if there is a row after

  // Of the slice whose first row goes to `to`.
  __device__ Store(const To& to, int64 pitch, int count, unsigned long long heads)
      : pitch(pitch), count(count), heads(heads) {
    if constexpr (EARLY) early = load_slice<Shape>(to.rest.rest.first, pitch, pitch, count);
  }
  template <class T, class A>
  __device__ void row(int r, const To& to, bool, const T (&value)[ITEMS],
                      const Vector<Fields<A, H>, ITEMS>& row) const {
    using Number = decltype(value[0].x1);
    const bool some = r < count && !(heads >> r & 1);
    Vector<H, ITEMS> h{};
    if constexpr (!EARLY)
      h = load_slice<OneRow>(to.rest.rest.first, pitch, pitch, some ? 1 : 0).row[0];
    else if (some)
      h = early.row[r];
    Number da[ITEMS], db[ITEMS];
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      db[i] = get<Number>(row.rest.first, i) + value[i].x1;
      da[i] = db[i] * get<Number>(h, i);
    }
    store_vector(to.first, pack<H>(da), is_aligned<ITEMS>(to.first));
    store_vector(to.rest.first, pack<H>(db), is_aligned<ITEMS>(to.rest.first));
  }
};

}  // namespace distscan
