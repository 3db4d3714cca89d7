// Linear recurrences. Half types accumulate in float.
#include "recurrence.hpp"

#include "recurrence_columns.hpp"
#include "table.hpp"

using namespace distscan;

namespace {

template <class E, class X>
constexpr Kernel recurrence(const char* x, const char* acc) {
  using R = Recurrence<E, X>;
  using C = RecurrenceColumns<E, X>;
  const auto seed = C::template seed<true>;
  return {"linear_recurrence", x, acc, x, R::scan, R::reduce, C::scan, C::reduce, C::total, seed};
}
template <class E>
constexpr Kernel recurrence(const char* type) {
  return recurrence<E, E>(type, type);
}

// Of columns: the first elements of segments contain what comes before them.
template <class E, class X>
constexpr Kernel in_segments(const char* x, const char* acc) {
  using C = RecurrenceColumns<E, X>;
  const auto seed = C::template seed<false>;
  return {"linear_recurrence in segments",
          x,
          acc,
          x,
          C::scan,
          C::reduce,
          C::scan,
          C::reduce,
          C::total,
          seed};
}
template <class E>
constexpr Kernel in_segments(const char* type) {
  return in_segments<E, E>(type, type);
}

}  // namespace

DISTSCAN_TABLE(recurrence) = {
    recurrence<float>("float32"),
    recurrence<double>("float64"),
    recurrence<complex<float>>("complex64"),
    recurrence<complex<double>>("complex128"),
    recurrence<float, half>("float16", "float32"),
    recurrence<float, bfloat16>("bfloat16", "float32"),
    in_segments<float>("float32"),
    in_segments<double>("float64"),
    in_segments<complex<float>>("complex64"),
    in_segments<complex<double>>("complex128"),
    in_segments<float, half>("float16", "float32"),
    in_segments<float, bfloat16>("bfloat16", "float32"),
    {},
};
