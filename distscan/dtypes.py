"""Which type goes in, accumulates and comes out."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from .operators import Operator


@dataclass(frozen=True)
class Types:
    """The three types of one scan: of the shard, of the running value, of the result."""

    x: np.dtype[Any]
    acc: np.dtype[Any]
    out: np.dtype[Any]


def resolve(
    op: Operator,
    x: DTypeLike,
    dtype: DTypeLike | None = None,
    out: DTypeLike | None = None,
) -> Types:
    """Choose the types as ``numpy.cumsum`` and ``ufunc.accumulate`` do.

    ``dtype``, else the type of ``out``, else the type of ``x`` accumulates; of the latter, sum
    and prod widen bool and narrow integers to the platform's widest. float16 accumulates in
    float32 and is rounded on the store.

    >>> from distscan.operators import BUILTIN
    >>> resolve(BUILTIN["sum"], np.int8).acc, resolve(BUILTIN["max"], np.int8).acc
    (dtype('int64'), dtype('int8'))
    >>> resolve(BUILTIN["sum"], np.float16)
    Types(x=dtype('float16'), acc=dtype('float32'), out=dtype('float16'))
    """
    x, dtype = np.dtype(x), None if dtype is None else parse(dtype)
    for role, chosen in (("x", x), ("dtype", dtype), ("out", out)):
        if chosen is not None and np.dtype(chosen).kind not in "biufc":
            raise TypeError(
                f"{role} is {np.dtype(chosen)}; a scan takes bool, integer, float and complex types"
            )
    if dtype is not None:
        acc = np.dtype(dtype)
    elif out is not None:
        acc = np.dtype(out)
    else:
        acc = _widened(x) if op.promotes else x
    result = np.dtype(out) if out is not None else acc
    # A byte order other than the machine's stops at the file: results are native, as NumPy's.
    acc, result = acc.newbyteorder("="), result.newbyteorder("=")
    return Types(x, np.dtype(np.float32) if acc == np.float16 else acc, result)


def parse(dtype: DTypeLike) -> np.dtype[Any]:
    """Return ``numpy.dtype(dtype)``; whatever NumPy raises is a TypeError here."""
    try:
        return np.dtype(dtype)
    except Exception as error:  # np.dtype("f4,(") is a SyntaxError
        raise TypeError(f"dtype {dtype!r} is not understood") from error


def _widened(dtype: np.dtype[Any]) -> np.dtype[Any]:
    if dtype.kind in "bi" and dtype.itemsize < np.dtype(np.int_).itemsize:
        return np.dtype(np.int_)
    if dtype.kind == "u" and dtype.itemsize < np.dtype(np.uint).itemsize:
        return np.dtype(np.uint)
    return dtype
