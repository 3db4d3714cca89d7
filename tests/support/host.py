"""Results in host memory."""

from typing import Any

import numpy as np


def host(array: Any) -> np.ndarray:
    """The array in host memory, whichever library it is of."""
    return array.get() if hasattr(array, "get") else np.asarray(array)
