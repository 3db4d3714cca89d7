// Sums. Signed and unsigned integers have the same bits.
#include "table.hpp"

using namespace distscan;

DISTSCAN_TABLE(sum) = {
    kernel<Sum<int8>>("sum", "int8"),
    kernel<Sum<int8>>("sum", "uint8"),
    kernel<Sum<short>>("sum", "int16"),
    kernel<Sum<short>>("sum", "uint16"),
    kernel<Sum<int>>("sum", "int32"),
    kernel<Sum<int>>("sum", "uint32"),
    kernel<Sum<int64>>("sum", "int64"),
    kernel<Sum<int64>>("sum", "uint64"),
    kernel<Sum<int64>, int8, int64>("sum", "int8", "int64", "int64"),
    kernel<Sum<int64>, short, int64>("sum", "int16", "int64", "int64"),
    kernel<Sum<int64>, int, int64>("sum", "int32", "int64", "int64"),
    kernel<Sum<int64>, boolean, int64>("sum", "bool", "int64", "int64"),
    kernel<Sum<int64>, uint8, int64>("sum", "uint8", "uint64", "uint64"),
    kernel<Sum<int64>, uint16, int64>("sum", "uint16", "uint64", "uint64"),
    kernel<Sum<int64>, unsigned, int64>("sum", "uint32", "uint64", "uint64"),
    kernel<Sum<float>>("sum", "float32"),
    kernel<Sum<double>>("sum", "float64"),
    kernel<Sum<complex<float>>>("sum", "complex64"),
    kernel<Sum<complex<double>>>("sum", "complex128"),
    kernel<Sum<double>, float, float>("sum", "float32", "float64", "float32"),
    kernel<Sum<double>, float, double>("sum", "float32", "float64", "float64"),
    kernel<Sum<float>, half, half>("sum", "float16", "float32", "float16"),
    kernel<Sum<float>, half, float>("sum", "float16", "float32", "float32"),
    kernel<Sum<float>, bfloat16, bfloat16>("sum", "bfloat16", "float32", "bfloat16"),
    kernel<Sum<float>, bfloat16, float>("sum", "bfloat16", "float32", "float32"),
    {},
};
