// Sums in which NaN counts as 0, and products in which it counts as 1.
#include "table.hpp"

using namespace distscan;

namespace {

template <class E, class X = E, class Out = X>
constexpr Kernel sum(const char* x, const char* acc, const char* out) {
  return kernel<Sum<E>, NanAs<X, 0>, Out>("nansum", x, acc, out);
}
template <class E, class X = E>
constexpr Kernel prod(const char* x, const char* acc) {
  return kernel<Prod<E>, NanAs<X, 1>, X>("nanprod", x, acc, x);
}

}  // namespace

DISTSCAN_TABLE(nan) = {
    sum<double, float>("float32", "float64", "float32"),
    sum<double, float, double>("float32", "float64", "float64"),
    sum<double>("float64", "float64", "float64"),
    sum<complex<float>>("complex64", "complex64", "complex64"),
    sum<complex<double>>("complex128", "complex128", "complex128"),
    sum<float, half>("float16", "float32", "float16"),
    sum<float, bfloat16>("bfloat16", "float32", "bfloat16"),
    prod<float>("float32", "float32"),
    prod<double>("float64", "float64"),
    prod<complex<float>>("complex64", "complex64"),
    prod<complex<double>>("complex128", "complex128"),
    prod<float, half>("float16", "float32"),
    prod<float, bfloat16>("bfloat16", "float32"),
    {},
};
