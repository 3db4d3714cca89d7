"""Sums and products without NaN: it is replaced as elements are read."""

from dataclasses import replace
from typing import Any

import numpy as np

from .operators import BUILTIN, Operator


def _skipping(op: str, instead: int, cuda: str) -> Operator:
    """Return the operator ``op`` on elements of which ``instead`` replaces every NaN."""

    def load(x: Any) -> Any:
        replaced = x.copy()
        np.putmask(replaced, np.isnan(x), instead)  # a third faster than np.where
        return replaced

    return replace(BUILTIN[op], load=load, cuda_load=f"is_nan(x) ? {cuda} : x")


#: The operators by the names of those that they are without NaN.
SKIPPING_NAN = {"sum": _skipping("sum", 0, "T{}"), "prod": _skipping("prod", 1, "convert<T>(1)")}
