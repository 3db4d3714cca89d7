"""Single values that callers pass, converted without loss: initial values, identities, counts."""

import reprlib
import sys
from contextlib import suppress
from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray


def integer(value: Any, name: str, least: int) -> int:
    """Return ``value`` as an integer; raise TypeError or ValueError that name the argument.

    >>> integer(np.int8(3), "parts", least=1)
    3
    """
    number = None
    with suppress(TypeError):
        number = index(value)
    if number is None or number < least:
        kind = TypeError if number is None else ValueError
        text = reprlib.repr(value)  # it shortens long ones
        raise kind(f"{name} must be an integer of at least {least}, not {text}")
    return number


def masked_array() -> Any:
    """Return NumPy's type of masked arrays, for ``isinstance``.

    Who has such an array has imported the type. Else this returns (), since the import takes 40 ms.
    """
    return getattr(sys.modules.get("numpy.ma"), "MaskedArray", ())


def scalar(value: Any, name: str) -> NDArray[Any]:
    """Return ``value`` as a 0-d array; raise ValueError for masked values and for arrays.

    ``name`` is the argument's name in messages.
    """
    if isinstance(value, masked_array()) and np.ma.is_masked(value):
        raise ValueError(f"{name} is masked; a number is needed")
    array = np.asarray(value)
    if array.ndim > 0:
        raise ValueError(f"{name} must be one value, not an array of shape {array.shape}")
    return array


def exact_scalar(value: Any, dtype: np.dtype[Any], name: str) -> NDArray[Any]:
    """Return ``value`` in a type, without loss. Only floats may be rounded, also to infinity.

    Each field of a structure is converted in this way. ``value`` may then be an array of
    structures.

    Raises
    ------
    OverflowError
        If an integer is out of the range of the type.
    ValueError
        If the type does not have the value, such as 1.5 if it has integers, or if it is masked.
    TypeError
        If the value is no number, or a complex one for a real type.

    >>> exact_scalar(0.1, np.dtype(np.float32), "initial")
    array(0.1, dtype=float32)
    >>> exact_scalar((1, 2.5), np.dtype("i8,i8"), "initial")
    Traceback (most recent call last):
    ValueError: initial has 2.5, which int64 does not have
    """
    if dtype.names is None:
        value = scalar(value, name)
    if getattr(value, "dtype", None) == dtype:
        return np.array(value)
    return _exact(np.array(value, _of_objects(dtype)), dtype, name)


def _of_objects(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return a type with Python objects in place of numbers."""
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return np.dtype((_of_objects(base), shape))
    if dtype.names is None:
        return np.dtype(object)
    return np.dtype([(name, _of_objects(dtype[name])) for name in dtype.names])


def _exact(objects: NDArray[Any], dtype: np.dtype[Any], name: str) -> NDArray[Any]:
    """Return objects, or structures of these, in a type; see ``exact_scalar``."""
    exact = np.empty(objects.shape, dtype)
    if dtype.names is not None:
        for field in dtype.names:
            exact[field] = _exact(objects[field], dtype[field].base, name)
        return exact
    for at, number in np.ndenumerate(objects):
        exact[at] = _exact_number(number, dtype, name)
    return exact


def _exact_number(number: Any, dtype: np.dtype[Any], name: str) -> NDArray[Any]:
    scalar(number, name)
    if isinstance(number, np.bool_ | np.integer):
        number = number.item()  # NumPy checks the range of Python's integers alone
    text = f"{name} has {number!r}" if not isinstance(number, int) else f"{name} has "
    if isinstance(number, int):
        bits = number.bit_length()  # Python writes no integers of many thousand digits
        text += str(number) if bits <= 128 else f"an integer of {bits} bits"
    if isinstance(number, str | bytes):
        raise TypeError(f"{text}, which is no number")
    if dtype.kind != "c" and isinstance(number, complex | np.complexfloating):
        raise TypeError(f"{text}, which is complex, and {dtype} is not")
    try:
        with np.errstate(all="ignore"):
            exact = np.array(number, dtype)
    except OverflowError as error:
        raise OverflowError(
            f"{text}, which is out of bounds for {dtype}; name a wider dtype"
        ) from error
    except ValueError as error:  # an integer of NaN
        raise ValueError(f"{text}, which {dtype} does not have") from error
    if dtype.kind in "iu" and exact.item() != number:
        raise ValueError(f"{text}, which {dtype} does not have")
    return exact
