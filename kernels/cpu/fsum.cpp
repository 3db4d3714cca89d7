// Exact sums: floats as integers of one word or two, each result rounded once.
#include "fixed_columns.hpp"
#include "fixed_rows.hpp"
#include "table.hpp"

using namespace distscan;

namespace {

template <class X, class Out, int WORDS>
constexpr Kernel fsum(const char* x, const char* out) {
  using R = FixedRows<X, Out, WORDS>;
  using C = FixedColumns<X, Out, WORDS>;
  using T = Chain<typename Running<WORDS>::Op>;
  const char* const acc = WORDS == 1 ? "int64" : "fixed128";
  return {"fsum", x, acc, out, R::scan, R::reduce, C::scan, C::reduce, T::total, T::seed};
}

}  // namespace

#define TO_ALL(X, x)                                                       \
  fsum<X, half, 1>(x, "float16"), fsum<X, bfloat16, 1>(x, "bfloat16"),     \
      fsum<X, float, 1>(x, "float32"), fsum<X, double, 1>(x, "float64"),   \
      fsum<X, half, 2>(x, "float16"), fsum<X, bfloat16, 2>(x, "bfloat16"), \
      fsum<X, float, 2>(x, "float32"), fsum<X, double, 2>(x, "float64")

DISTSCAN_TABLE(fsum) = {
    TO_ALL(half, "float16"),
    TO_ALL(bfloat16, "bfloat16"),
    TO_ALL(float, "float32"),
    TO_ALL(double, "float64"),
    {},
};
