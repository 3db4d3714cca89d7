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

DISTSCAN_TABLE(fsum) = {
    fsum<half, half, 1>("float16", "float16"),
    fsum<half, bfloat16, 1>("float16", "bfloat16"),
    fsum<half, float, 1>("float16", "float32"),
    fsum<half, double, 1>("float16", "float64"),
    fsum<bfloat16, half, 1>("bfloat16", "float16"),
    fsum<bfloat16, bfloat16, 1>("bfloat16", "bfloat16"),
    fsum<bfloat16, float, 1>("bfloat16", "float32"),
    fsum<bfloat16, double, 1>("bfloat16", "float64"),
    fsum<float, half, 1>("float32", "float16"),
    fsum<float, bfloat16, 1>("float32", "bfloat16"),
    fsum<float, float, 1>("float32", "float32"),
    fsum<float, double, 1>("float32", "float64"),
    fsum<double, half, 1>("float64", "float16"),
    fsum<double, bfloat16, 1>("float64", "bfloat16"),
    fsum<double, float, 1>("float64", "float32"),
    fsum<double, double, 1>("float64", "float64"),
    fsum<half, half, 2>("float16", "float16"),
    fsum<half, bfloat16, 2>("float16", "bfloat16"),
    fsum<half, float, 2>("float16", "float32"),
    fsum<half, double, 2>("float16", "float64"),
    fsum<bfloat16, half, 2>("bfloat16", "float16"),
    fsum<bfloat16, bfloat16, 2>("bfloat16", "bfloat16"),
    fsum<bfloat16, float, 2>("bfloat16", "float32"),
    fsum<bfloat16, double, 2>("bfloat16", "float64"),
    fsum<float, half, 2>("float32", "float16"),
    fsum<float, bfloat16, 2>("float32", "bfloat16"),
    fsum<float, float, 2>("float32", "float32"),
    fsum<float, double, 2>("float32", "float64"),
    fsum<double, half, 2>("float64", "float16"),
    fsum<double, bfloat16, 2>("float64", "bfloat16"),
    fsum<double, float, 2>("float64", "float32"),
    fsum<double, double, 2>("float64", "float64"),
    {},
};
