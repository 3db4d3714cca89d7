"""The identities of the built-in operators, for each type."""

from typing import Any

import numpy as np


def zero(dtype: np.dtype[Any]) -> Any:
    """Return 0; for floats -0.0."""
    # -0.0 is the exact identity of float addition: 0.0 would change -0.0 to 0.0.
    if dtype.kind == "c":
        return dtype.type(complex(-0.0, -0.0))
    return dtype.type(-0.0 if dtype.kind == "f" else 0)


def one(dtype: np.dtype[Any]) -> Any:
    """Return 1."""
    return dtype.type(1)


def ones(dtype: np.dtype[Any]) -> Any:
    """Return the value with every bit set."""
    return ~dtype.type(0)


def lowest(dtype: np.dtype[Any]) -> Any:
    """Return the lowest value of a type, the identity of max."""
    if dtype.kind == "c":
        return dtype.type(complex(-np.inf, -np.inf))
    if dtype.kind == "f":
        return dtype.type(-np.inf)
    return dtype.type(0 if dtype.kind == "b" else np.iinfo(dtype).min)


def highest(dtype: np.dtype[Any]) -> Any:
    """Return the highest value of a type, the identity of min."""
    if dtype.kind in "fc":
        return -lowest(dtype)
    return dtype.type(1 if dtype.kind == "b" else np.iinfo(dtype).max)
