// Products. Signed and unsigned integers have the same bits.
#include "table.hpp"

using namespace distscan;

DISTSCAN_TABLE(prod) = {
    kernel<Prod<int8>>("prod", "int8"),
    kernel<Prod<int8>>("prod", "uint8"),
    kernel<Prod<short>>("prod", "int16"),
    kernel<Prod<short>>("prod", "uint16"),
    kernel<Prod<int>>("prod", "int32"),
    kernel<Prod<int>>("prod", "uint32"),
    kernel<Prod<int64>>("prod", "int64"),
    kernel<Prod<int64>>("prod", "uint64"),
    kernel<Prod<int64>, int8, int64>("prod", "int8", "int64", "int64"),
    kernel<Prod<int64>, short, int64>("prod", "int16", "int64", "int64"),
    kernel<Prod<int64>, int, int64>("prod", "int32", "int64", "int64"),
    kernel<Prod<int64>, boolean, int64>("prod", "bool", "int64", "int64"),
    kernel<Prod<int64>, uint8, int64>("prod", "uint8", "uint64", "uint64"),
    kernel<Prod<int64>, uint16, int64>("prod", "uint16", "uint64", "uint64"),
    kernel<Prod<int64>, unsigned, int64>("prod", "uint32", "uint64", "uint64"),
    kernel<Prod<float>>("prod", "float32"),
    kernel<Prod<double>>("prod", "float64"),
    kernel<Prod<complex<float>>>("prod", "complex64"),
    kernel<Prod<complex<double>>>("prod", "complex128"),
    kernel<Prod<float>, half, half>("prod", "float16", "float32", "float16"),
    kernel<Prod<float>, bfloat16, bfloat16>("prod", "bfloat16", "float32", "bfloat16"),
    {},
};
