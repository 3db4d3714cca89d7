"""Predicates: which elements ``select`` keeps, each in a NumPy and a CUDA form."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Predicate:
    """A condition on one element, for ``select``.

    Attributes
    ----------
    name
        The name in errors. It must be the same on every rank.
    numpy
        A function of an array [n] that returns a bool array [n], and does not change its argument.
        It is not called for empty arrays.
    cuda
        CUDA C++ that tells whether the element ``x``, of type ``T``, is kept. It is an expression,
        or, if it contains ``return``, the body of a function. ``T`` is the type of the array:
        ``float`` for float16, bfloat16 and float32; complex numbers have the parts ``x.re`` and
        ``x.im``. None: the predicate works on CPUs only.

    Raises
    ------
    TypeError
        If ``numpy`` is not a function or ``cuda`` is not text. Faults inside ``cuda`` are found
        when it is compiled: then every rank raises ``KernelError``, with the compiler's message and
        the line in ``cuda``.

    Notes
    -----
    Both forms should keep the same elements, also of NaN: NaN > 0 is false in both. NumPy gives no
    warnings while a predicate runs.

    Examples
    --------
    >>> import distscan, numpy
    >>> odd = distscan.Predicate("odd", numpy=lambda x: x % 2 != 0, cuda="x % 2 != 0")
    >>> distscan.select(numpy.array([3, 1, 4, 1, 5]), odd)
    (array([3, 1, 1, 5]), 0)
    """

    name: str
    numpy: Callable[[Any], Any]
    cuda: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(f"name= of a predicate must be text, not {type(self.name).__name__}")
        if not callable(self.numpy):
            raise TypeError(f"predicate {self.name!r}: numpy= must be a function of an array")
        if not isinstance(self.cuda, str | None):
            raise TypeError(f"predicate {self.name!r}: cuda= must be text, or None")

    def mask(self, x: NDArray[Any]) -> NDArray[np.bool_]:
        """Return which elements of ``x`` [n] are kept, as bools [n]; overflow is silent."""
        if x.size == 0:
            return np.zeros(x.shape, np.bool_)
        x = x.view()
        x.flags.writeable = False
        with np.errstate(all="ignore"):
            kept = np.asarray(self.numpy(x))
        if kept.dtype != np.bool_ or kept.shape != x.shape:
            raise TypeError(
                f"predicate {self.name!r} returned {kept.dtype} {kept.shape} for {x.dtype} "
                f"{x.shape}; its result must be bool, of the shape of its argument"
            )
        return kept
