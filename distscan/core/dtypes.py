"""Which type goes in, accumulates and comes out."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .operators import BUILTIN, Operator


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
    *,
    wide: bool = False,
) -> Types:
    """Choose the types as ``ufunc.accumulate`` does.

    ``dtype`` accumulates and results. Without it, the operator's ufunc chooses by the type of
    ``x``: sum and prod widen bool and narrow integers to the platform's widest, logical operators
    make bool, logaddexp makes floats. With ``out``, it chooses by both types, and nothing is
    widened beyond them; a function of one's own accumulates in their promotion. float16 and
    bfloat16 accumulate in float32 and are rounded on the store; and, if ``wide``, the built-in sum
    of float32 in float64.

    >>> from distscan.operators import BUILTIN
    >>> resolve(BUILTIN["sum"], np.int8).acc, resolve(BUILTIN["max"], np.int8).acc
    (dtype('int64'), dtype('int8'))
    >>> resolve(BUILTIN["sum"], np.float64, out=np.int8).acc
    dtype('float64')
    >>> resolve(BUILTIN["sum"], np.float16)
    Types(x=dtype('float16'), acc=dtype('float32'), out=dtype('float16'))
    >>> resolve(BUILTIN["sum"], np.float32, wide=True)
    Types(x=dtype('float32'), acc=dtype('float64'), out=dtype('float32'))
    """
    x, dtype = np.dtype(x), None if dtype is None else parse(dtype)
    out = None if out is None else np.dtype(out)
    for role, chosen in (("x", x), ("dtype", dtype), ("out", out)):
        if chosen is not None and not is_number(chosen):
            wrong = _wrong_field(chosen)
            if op.is_ufunc or wrong or not chosen.names:
                raise TypeError(
                    f"{role} is {chosen}{wrong}; a scan takes bool, integer, float and complex "
                    "types, and an Operator of your own structures of these"
                )
            others = [other for other in (dtype, out) if other is not None]
            if any(other.newbyteorder("=") != x.newbyteorder("=") for other in others):
                raise TypeError(f"{role} is {chosen}: x, dtype and out must be of one structure")
    if dtype is not None:
        acc = _loop(op, dtype, dtype)
        if acc.newbyteorder("=") != dtype.newbyteorder("="):
            raise TypeError(f"operator {op.name!r} does not accumulate in {dtype}, but in {acc}")
    else:
        acc = _loop(op, out, x)
    # A byte order other than the machine's stops at the file: results are native, as NumPy's.
    acc = acc.newbyteorder("=")
    result = acc if out is None else out.newbyteorder("=")
    if acc == np.float16 or is_bfloat16(acc):
        acc = np.dtype(np.float32)
    elif wide and op == BUILTIN["sum"] and acc == np.float32:
        acc = np.dtype(np.float64)
    return Types(x, acc, result)


def is_number(dtype: np.dtype[Any]) -> bool:
    """Whether a type is bool, integer, float or complex."""
    numpys = dtype.isbuiltin != 2  # 2 is what others have added
    return (numpys and dtype.kind in "biufc") or is_bfloat16(dtype)


def _wrong_field(dtype: np.dtype[Any], where: str = "") -> str:
    """Say which field of a structure holds no numbers, those of fields that have fields too.

    A field may be an array. Empty where there is no such field.

    >>> _wrong_field(np.dtype([("a", "f8", 2), ("b", [("c", "O")])]))
    ", in which field 'b.c' is object"
    """
    for name in dtype.names or ():
        field = dtype[name].base  # of an array, its element
        inside = _wrong_field(field, f"{where}{name}.")
        if inside:
            return inside
        if dtype[name].itemsize == 0 or not (field.names or is_number(field)):
            return f", in which field '{where}{name}' is {dtype[name]}"
    return ""


def is_bfloat16(dtype: np.dtype[Any]) -> bool:
    """Whether a type is the bfloat16 of ml_dtypes, which who has such an array has imported."""
    return dtype.kind == "V" and dtype.name == "bfloat16"


def _loop(op: Operator, earlier: np.dtype[Any] | None, later: np.dtype[Any]) -> np.dtype[Any]:
    """Ask the operator's ufunc in which type it accumulates ``later``; into ``earlier``, if any."""
    if not op.is_ufunc:  # promoted structures would be laid out anew
        return later if earlier is None or later.names else np.result_type(earlier, later)
    ufunc: Any = op.numpy
    try:
        made: np.dtype[Any] = ufunc.resolve_dtypes(
            (earlier, later, None), reduction=True, casting="unsafe"
        )[2]
    except TypeError as error:
        into = "" if earlier in (None, later) else f" into {earlier}"
        raise TypeError(f"operator {op.name!r} does not take {later}{into}") from error
    return made


def cast(value: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Convert as C does: what a type cannot hold is rounded, cut or infinite, without a warning."""
    with np.errstate(all="ignore"):
        return value.astype(dtype)


def parse(dtype: DTypeLike) -> np.dtype[Any]:
    """Return ``numpy.dtype(dtype)``; whatever NumPy raises is a TypeError here."""
    try:
        return np.dtype(dtype)
    except Exception as error:  # np.dtype("f4,(") is a SyntaxError
        raise TypeError(f"dtype {dtype!r} is not understood") from error
