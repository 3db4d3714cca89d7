"""What a service and its clients agree on."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core import dtypes, operators
from ..core.extents import Extents

#: The version of the protocol; a client of another one is refused.
VERSION = 1
#: The states of jobs that have ended.
ENDED = ("done", "failed", "cancelled")


def result_type(x: NDArray[Any], options: Mapping[str, Any]) -> np.dtype[Any]:
    """Return the type of a scan's result."""
    op = operators.resolve(options.get("op", "sum"))
    return dtypes.resolve(op, x.dtype, options.get("dtype"), options.get("out")).out


def result_shape(x: NDArray[Any], options: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the shape of a scan's result, which is flat without an axis, as in NumPy."""
    return Extents.of(x.shape, options.get("axis")).result_shape
