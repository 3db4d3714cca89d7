"""The types of running values in registers, and how numbers on the host become such values."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.dtypes import Types
from ..core.operators import BUILTIN, LOGICAL, Operator

# LogSum of kernels/base/types.cuh. The number is max + log(1 + rest).
_LOG_SUMS = {
    real: np.dtype([("max", real), ("rest", real)])
    for real in (np.dtype(np.float32), np.dtype(np.float64))
}


def register_types(op: Operator, types: Types) -> Types:
    """Return the types in registers.

    Built-in operators scan narrow integers and bools in 32 bits. The low bits of the results are
    the same. There are two exceptions. If x must first be cut to the narrow type: the maximum of
    300 and 50 as int8 is 50. If the result shows more than the low bits: 100 + 100 as int8 is -56,
    also in an int64.

    The operator logaddexp keeps sums of exponentials, and takes no logarithm before the store.
    """
    x, acc, out = types.x, types.acc, types.out
    if BUILTIN.get(op.name) is not op:
        return types
    if op.numpy is np.logaddexp:
        return Types(x, _LOG_SUMS[acc], out)
    low = out.kind in "iu" and out.itemsize <= acc.itemsize
    narrow = acc.kind in "iu" and acc.itemsize < 4 and np.can_cast(x, acc) and low
    # The sum of bools is an exception: 2 ** 32 times True would make 0.
    truths = acc == np.bool_ and (op in LOGICAL or (x == acc and op.name != "sum"))
    if not (narrow or truths):
        return types
    return Types(x, np.dtype(np.int32 if acc.kind == "i" else np.uint32), out)


def is_log_sum(dtype: np.dtype[Any]) -> bool:
    """Return whether values of a type are sums of exponentials."""
    return dtype in _LOG_SUMS.values()


def settable(values: NDArray[Any]) -> NDArray[Any]:
    """Return the part of some running values to which numbers are assigned."""
    if not is_log_sum(values.dtype):
        return values
    values["rest"] = 0
    return values["max"]


def as_numbers(values: NDArray[Any]) -> NDArray[Any]:
    """Return running values as numbers; narrow integers stay in 32 bits."""
    if not is_log_sum(values.dtype):
        return values
    with np.errstate(all="ignore"):
        numbers: NDArray[Any] = values["max"] + np.log1p(values["rest"])
    return numbers
