"""What a scan combines with: one associative operator in its NumPy, CUDA and MPI forms."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

Combine = Callable[..., Any]  # combine(earlier, later) -> array, element by element


@dataclass(frozen=True, eq=False)
class Operator:
    """An associative operator; it need not be commutative, operands are always (earlier, later).

    Attributes
    ----------
    name
        What errors and reports call it.
    numpy
        A ufunc, or any function of two arrays of one shape that combines them element by element.
        A ufunc's ``accumulate`` decides the types; any other function keeps that of the array.
    cuda
        A CUDA C++ expression of ``a`` (earlier) and ``b`` (later), both of type ``T``.
    identity
        ``identity(dtype)`` gives the value that leaves every other unchanged, as an empty shard's
        total must.
    mpi, mpi_kinds
        The name of MPI's own operator of this meaning, and each ``dtype.kind`` on which it gives
        NumPy's bits. For other kinds MPI is handed the NumPy form.
    commutative
        Whether operands may be exchanged; the reduction of a shard is then a little faster.

    Example
    -------
    >>> latest = Operator("latest", numpy=lambda a, b: b, cuda="b", identity=lambda dtype: 0)
    >>> latest.numpy(1, 2)
    2
    """

    name: str
    numpy: Combine
    cuda: str
    identity: Callable[[np.dtype[Any]], Any]
    mpi: str = ""
    mpi_kinds: str = ""
    commutative: bool = False

    def combine(self, earlier: Any, later: Any, out: NDArray[Any] | None = None) -> Any:
        """Combine two arrays; integers wrap and floats overflow in silence, as inside a scan."""
        with np.errstate(all="ignore"):
            if self.is_ufunc:
                return self.numpy(earlier, later, out=out)
            result = self.numpy(earlier, later)
            shape = np.broadcast_shapes(np.shape(earlier), np.shape(later))
            if np.shape(result) != shape:
                raise ValueError(
                    f"operator {self.name!r} made shape {np.shape(result)} of two of {shape}"
                )
            if out is None:
                return result
            out[...] = result
            return out

    @cached_property
    def is_ufunc(self) -> bool:
        """Whether NumPy can reduce and accumulate in numbers; frompyfunc's make objects."""
        return isinstance(self.numpy, np.ufunc) and self.numpy.types != ["OO->O"]


# ---- identities ----------------------------------------------------------------------------


def _zero(dtype: np.dtype[Any]) -> Any:
    # -0.0 is the exact identity of float addition: 0.0 would turn -0.0 into 0.0.
    if dtype.kind == "c":
        return dtype.type(complex(-0.0, -0.0))
    return dtype.type(-0.0 if dtype.kind == "f" else 0)


def _one(dtype: np.dtype[Any]) -> Any:
    return dtype.type(1)


def _ones(dtype: np.dtype[Any]) -> Any:
    """Every bit set."""
    return ~dtype.type(0)


def _lowest(dtype: np.dtype[Any]) -> Any:
    """The value of a type that every other beats."""
    if dtype.kind == "c":
        return dtype.type(complex(-np.inf, -np.inf))
    if dtype.kind == "f":
        return dtype.type(-np.inf)
    return dtype.type(0 if dtype.kind == "b" else np.iinfo(dtype).min)


def _highest(dtype: np.dtype[Any]) -> Any:
    if dtype.kind in "fc":
        return -_lowest(dtype)
    return dtype.type(1 if dtype.kind == "b" else np.iinfo(dtype).max)


# ---- the built-in operators ----------------------------------------------------------------


_builtin = partial(Operator, commutative=True)

# MPI_MAX need not propagate NaN, MPI_PROD of complex follows C's rules for infinities, and
# neither MPI_MAX of complex nor arithmetic on bool exists: there MPI combines by the NumPy form.
BUILTIN = {
    operator.name: operator
    for operator in (
        _builtin("sum", np.add, "plus(a, b)", _zero, "SUM", "iufc"),
        _builtin("prod", np.multiply, "times(a, b)", _one, "PROD", "iuf"),
        _builtin("max", np.maximum, "maximum(a, b)", _lowest, "MAX", "iu"),
        _builtin("min", np.minimum, "minimum(a, b)", _highest, "MIN", "iu"),
        _builtin("logaddexp", np.logaddexp, "log_add_exp(a, b)", _lowest),
        _builtin("bitwise_and", np.bitwise_and, "a & b", _ones, "BAND", "iu"),
        _builtin("bitwise_or", np.bitwise_or, "a | b", _zero, "BOR", "iu"),
        _builtin("bitwise_xor", np.bitwise_xor, "a ^ b", _zero, "BXOR", "iu"),
        # These accumulate bool, of which the bits are the truth.
        _builtin("logical_and", np.logical_and, "a & b", _ones, "LAND", "b"),
        _builtin("logical_or", np.logical_or, "a | b", _zero, "LOR", "b"),
        _builtin("logical_xor", np.logical_xor, "a ^ b", _zero, "LXOR", "b"),
    )
}
_BY_UFUNC = {operator.numpy: operator for operator in BUILTIN.values()}


def resolve(op: "str | np.ufunc | Operator") -> Operator:
    """Return the operator that a name, a NumPy ufunc or an ``Operator`` stands for.

    >>> resolve("sum") is resolve(np.add)
    True
    """
    if isinstance(op, Operator):
        return op
    name = op.__name__ if isinstance(op, np.ufunc) else op
    if isinstance(op, np.ufunc) and op in _BY_UFUNC:
        return _BY_UFUNC[op]
    if not isinstance(name, str):
        raise TypeError(
            f"op must be a name, a ufunc, an MPI op or an Operator, not {type(op).__name__}"
        )
    if name in BUILTIN:
        return BUILTIN[name]
    raise ValueError(f"unknown operator {name!r}; choose from {', '.join(BUILTIN)}")
