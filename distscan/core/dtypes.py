"""The types of a scan: of the input, of the accumulation, of the result."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import DTypeLike, NDArray

from .operators import BUILTIN, Operator, TypedOperator, unloaded


class Types(NamedTuple):
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
    """Return the types that ``ufunc.accumulate`` would choose, with these rules.

    - With ``dtype``, that type accumulates, and is the type of the result.
    - Without it, the operator's ufunc chooses by the type of ``x``: sum and prod widen bool and
      narrow integers to the platform's widest, logical operators give bool, logaddexp gives floats.
    - With ``out``, the ufunc chooses by both types, and nothing is widened beyond them. A Python
      function accumulates in their promotion.
    - float16 and bfloat16 accumulate in float32, and are rounded on the store.
    - With ``wide``, the built-in sum of float32, also after a ``load``, accumulates in float64.

    Raises TypeError for types that the operator does not take.

    >>> from distscan.core.operators import BUILTIN
    >>> resolve(BUILTIN["sum"], np.int8).acc, resolve(BUILTIN["max"], np.int8).acc
    (dtype('int64'), dtype('int8'))
    >>> resolve(BUILTIN["sum"], np.float64, out=np.int8).acc
    dtype('float64')
    >>> resolve(BUILTIN["sum"], np.float16)
    Types(x=dtype('float16'), acc=dtype('float32'), out=dtype('float16'))
    >>> resolve(BUILTIN["sum"], np.float32, wide=True)
    Types(x=dtype('float32'), acc=dtype('float64'), out=dtype('float32'))
    """
    if op.arity > 1:
        return _of_fields(op, np.dtype(x), dtype, out)
    if isinstance(op, TypedOperator):
        return Types(np.dtype(x), op.acc, np.dtype(x if dtype is None else dtype))
    x, dtype = np.dtype(x), None if dtype is None else parse(dtype)
    out = None if out is None else np.dtype(out)
    for role, kind in (("x", x), ("dtype", dtype), ("out", out)):
        if kind is not None and not (is_number(kind) or is_time(kind)):
            wrong = _wrong_field(kind)
            if op.is_ufunc or wrong or not kind.names:
                raise TypeError(
                    f"{role} is {kind}{wrong}; a scan takes bool, integer, float and complex "
                    "types, times, and an Operator of your own structures of these"
                )
            others = [other for other in (dtype, out) if other is not None]
            if any(other.newbyteorder("=") != x.newbyteorder("=") for other in others):
                raise TypeError(
                    f"{role} is {kind}: x, dtype and out must have the same structured type"
                )
    if dtype is not None:
        acc = _loop(op, dtype, dtype)
        if acc.newbyteorder("=") != dtype.newbyteorder("="):
            raise TypeError(f"operator {op.name!r} does not accumulate in {dtype}, but in {acc}")
    else:
        acc = _loop(op, out, x)
    # The input may have another byte order. Results have the machine's own, as NumPy's have.
    acc = acc.newbyteorder("=")
    result = acc if out is None else out.newbyteorder("=")
    if _is_half(acc):
        acc = np.dtype(np.float32)
    elif wide and unloaded(op) is BUILTIN["sum"] and acc == np.float32:
        acc = np.dtype(np.float64)
    return Types(x, acc, result)


# Of a tuple: arrays, and bytes of an element: a head and an affine map of 4 float64 are the most.
_MOST_ARRAYS, _MOST_STATE = 64, 168


def fields(dtypes: Sequence[np.dtype[Any]]) -> np.dtype[Any]:
    """Return the type of an element that is spread over arrays: its fields are x0, x1, ...

    >>> fields([np.dtype("f4"), np.dtype("i8")])
    dtype([('x0', '<f4'), ('x1', '<i8')])
    """
    return np.dtype([(f"x{i}", dtype) for i, dtype in enumerate(dtypes)])


def _of_fields(
    op: Operator, x: np.dtype[Any], acc: DTypeLike | None, out: DTypeLike | None
) -> Types:
    """Return the types of a scan of a tuple of arrays: each field keeps its own."""
    names = x.names or ()
    for i, name in enumerate(names):
        if not is_number(x[name]):
            raise TypeError(f"x[{i}] is {x[name]}; a scan takes bool, integers, floats and complex")
    native = [(name, x[name].newbyteorder("=")) for name in names]
    wide = [(name, np.dtype(np.float32) if _is_half(field) else field) for name, field in native]
    if acc is not None:
        accumulating: np.dtype[Any] = np.dtype(acc)
        wide = [(name, accumulating[name]) for name in names]
    result = np.dtype(native if out is None else out)
    types = Types(x, np.dtype(wide, align=True), result)
    if types.acc.itemsize > _MOST_STATE or len(names) > _MOST_ARRAYS:
        raise TypeError(
            f"operator {op.name!r}: an element has {types.acc.itemsize} bytes in {len(names)} "
            f"arrays, at most {_MOST_STATE} bytes in {_MOST_ARRAYS} arrays are possible"
        )
    return types


def _is_half(dtype: np.dtype[Any]) -> bool:
    return dtype == np.float16 or is_bfloat16(dtype)


def is_number(dtype: np.dtype[Any]) -> bool:
    """Return whether a type is bool, integer, float or complex."""
    of_numpy = dtype.isbuiltin != 2  # 2: another library has added the type
    return (of_numpy and dtype.kind in "biufc") or is_bfloat16(dtype)


def is_time(dtype: np.dtype[Any]) -> bool:
    """Return whether a type is timedelta64 or datetime64, which NumPy scans, on CPUs."""
    return dtype.kind in "mM"


def _wrong_field(dtype: np.dtype[Any], where: str = "") -> str:
    """Return text about the first field of a structure that does not hold numbers, or "".

    A field may be an array, or a structure itself.

    >>> _wrong_field(np.dtype([("a", "f8", 2), ("b", [("c", "O")])]))
    ", in which field 'b.c' is object"
    """
    for name in dtype.names or ():
        field = dtype[name].base  # if the field is an array: the type of its elements
        inside = _wrong_field(field, f"{where}{name}.")
        if inside:
            return inside
        if dtype[name].itemsize == 0 or not (field.names or is_number(field)):
            return f", in which field '{where}{name}' is {dtype[name]}"
    return ""


def is_bfloat16(dtype: np.dtype[Any]) -> bool:
    """Return whether a type is the bfloat16 of ml_dtypes; does not import ml_dtypes."""
    return dtype.kind == "V" and dtype.name == "bfloat16"


def _loop(op: Operator, earlier: np.dtype[Any] | None, later: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type in which the operator accumulates ``later``, into ``earlier`` if given."""
    if not op.is_ufunc:  # promotion would change the layout of structures
        return later if earlier is None or later.names else np.result_type(earlier, later)
    ufunc: Any = op.numpy
    try:
        result: np.dtype[Any] = ufunc.resolve_dtypes(
            (earlier, later, None), reduction=True, casting="unsafe"
        )[2]
    except TypeError as error:
        into = "" if earlier in (None, later) else f" into {earlier}"
        raise TypeError(
            f"operator {op.name!r} does not take {later}{into}; convert the elements, "
            "or choose another operator"
        ) from error
    return result


def cast(value: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return ``value`` converted as C does: rounded, truncated or infinite, without a warning."""
    with np.errstate(all="ignore"):
        return value.astype(dtype)


def parse(dtype: DTypeLike) -> np.dtype[Any]:
    """Return ``numpy.dtype(dtype)``; every exception of NumPy becomes a TypeError."""
    try:
        return np.dtype(dtype)
    except Exception as error:  # np.dtype("f4,(") is a SyntaxError
        raise TypeError(
            f"dtype {dtype!r} is not understood; a type is such as float32, int64 or >i8"
        ) from error


def to_json(dtype: np.dtype[Any]) -> Any:
    """Return a type in a form that JSON has: text, or of structures a list of fields.

    >>> to_json(np.dtype("i4")), to_json(np.dtype([("a", ">f4", 2)]))
    ('int32', [('a', '>f4', (2,))])
    """
    return str(dtype) if dtype.names is None else npy.dtype_to_descr(dtype)


def of_json(text: Any) -> np.dtype[Any]:
    """Return the type that ``to_json`` has described.

    >>> of_json("int32"), of_json([["a", ">f4", [2]]])
    (dtype('int32'), dtype([('a', '>f4', (2,))]))
    """
    return parse(text) if isinstance(text, str) else npy.descr_to_dtype(_descr(text))


def _descr(text: Any) -> Any:
    """Return the description of a structure's fields, whose tuples JSON has made lists."""
    if isinstance(text, str):
        return text
    return [
        (tuple(name) if isinstance(name, list) else name, _descr(kind), *map(tuple, shape))
        for name, kind, *shape in text
    ]
