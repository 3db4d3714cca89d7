"""Calls of the Python functions of operators: their results are checked, their faults named."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray


def combined(
    name: str, function: Callable[..., Any], earlier: NDArray[Any], later: NDArray[Any]
) -> Any:
    """Return what the function of operator ``name`` makes of two arrays of one shape.

    The operands are read-only to the function. Raises TypeError or ValueError if the result has
    another shape, or a type that does not fit.
    """
    later = _read_only(later)  # the result of broadcast_to is read-only already
    return _checked(name, later, _called(name, "numpy", lambda: function(earlier, later)))


@np.errstate(all="ignore")
def load_into(name: str, load: Callable[..., Any], x: NDArray[Any], to: NDArray[Any]) -> None:
    """Store elements, as operator ``name`` loads them, to ``to``, whose type ``load`` takes."""
    to[...] = x
    if x.size > 0:
        given = _read_only(to)
        to[...] = _checked(name, given, _called(name, "load", lambda: load(given)))


def combined_fields(
    name: str, function: Callable[..., Any], earlier: NDArray[Any], later: NDArray[Any]
) -> NDArray[Any]:
    """Return what the function of operator ``name`` makes of two tuples of arrays.

    The fields of two structured arrays are passed as tuples, and the results come back as one
    structured array. Raises TypeError or ValueError as ``combined`` does.
    """
    names = later.dtype.names or ()
    operands = [tuple(_read_only(array[name]) for name in names) for array in (earlier, later)]
    results = _called(name, "numpy", lambda: function(*operands))
    if not isinstance(results, tuple | list | np.ndarray) or len(results) != len(names):
        found = f"{len(results)} arrays" if hasattr(results, "__len__") else type(results).__name__
        raise TypeError(f"operator {name!r} returned {found}; it must return {len(names)} arrays")
    out = np.empty(later.shape, later.dtype)
    for i, (field, result) in enumerate(zip(names, results, strict=True)):
        out[field] = _checked(f"{name}, array {i}", operands[1][i], result)
    return out


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    array = array.view()
    array.flags.writeable = False
    return array


def _called(name: str, argument: str, call: Callable[[], Any]) -> Any:
    """Return the result of a call; known faults name the operator, and which of its functions."""
    try:
        return call()
    except (ValueError, TypeError) as error:
        named = _named(name, argument, error)
        if named is None:
            raise
        raise named from error


def _checked(name: str, operand: NDArray[Any], result: Any) -> Any:
    """Return a result; check that it has the type and shape of the operand."""
    if np.shape(result) != operand.shape:
        raise ValueError(
            f"operator {name!r} returned shape {np.shape(result)} for operands of shape "
            f"{operand.shape}"
        )
    kind = _kind(result)
    if result is None or not (kind.hasobject or np.can_cast(kind, operand.dtype, "same_kind")):
        raise TypeError(
            f"operator {name!r} returned {result if result is None else kind} for "
            f"{operand.dtype}; its result must be of the type of its operands"
        )
    # The caller casts the result. The cast of a NumPy scalar out of bounds would raise.
    return np.asarray(result) if isinstance(result, np.generic) else result


def _named(name: str, argument: str, error: TypeError | ValueError) -> Exception | None:
    """Return a clearer exception for a known fault of an operator's function; else None."""
    if "read-only" in str(error):
        return ValueError(
            f"operator {name!r} writes into an operand ({error}); "
            "it must leave both alone and return a new array"
        )
    if "arrays can be converted to" in str(error) or "truth value of an array" in str(error):
        kind = TypeError if isinstance(error, TypeError) else ValueError
        return kind(
            f"operator {name!r}: its {argument}= function does not take arrays ({error}); "
            "numpy.vectorize or numpy.frompyfunc makes one that does"
        )
    return None


def _kind(result: Any) -> np.dtype[Any]:
    """Return the type of a result; for Python's objects, the type that NumPy gives their values.

    >>> _kind(np.zeros(3, "f4")), _kind(np.array([1, 2], object)), _kind([1j])
    (dtype('float32'), dtype('uint8'), dtype('complex128'))
    """
    if isinstance(result, np.ndarray | np.generic) and result.dtype != object:
        return result.dtype
    values = np.array(np.asarray(result, object).tolist())
    # Python's integers fit every integer type; a value out of bounds is an OverflowError later.
    return np.dtype(np.uint8) if values.dtype.kind in "iu" else values.dtype
