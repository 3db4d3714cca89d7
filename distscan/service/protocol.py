"""What a service and its clients agree on."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import exact_check
from ..core import dtypes, operators
from ..core.extents import Extents

#: The version of the protocol; a client of another one is refused.
VERSION = 1
#: The states of jobs that have ended.
ENDED = ("done", "failed", "cancelled")


def result_type(x: NDArray[Any], options: Mapping[str, Any]) -> np.dtype[Any]:
    """Return the type of a scan's result."""
    op, given = options.get("op", "sum"), (options.get("dtype"), options.get("out"))
    if op == "fsum":
        dtype, out = (None if each is None else dtypes.parse(each) for each in given)
        return exact_check.result_type(x.dtype, out, dtype)
    return dtypes.resolve(operators.resolve(op), x.dtype, *given).out


def result_shape(x: NDArray[Any], options: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the shape of a scan's result, which is flat without an axis, as in NumPy."""
    return Extents.of(x.shape, options.get("axis")).result_shape
