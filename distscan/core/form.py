"""The form of a scan: which elements it combines, and in which order."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .extents import EMPTY, Extents
from .field_arrays import HostFields
from .operators import Operator
from .scalars import exact_scalar, scalar


class Form(NamedTuple):
    """How the elements of a shard are combined.

    Attributes
    ----------
    extents
        The view of the shard as [outer, n, inner], scanned along n. Rows (outer) and columns
        (inner) are independent scans.
    exclusive
        Whether element i of the result leaves out element i of the input.
    reverse
        Whether the scan goes from the last element to the first. "Before" means before in this
        order.
    segmented
        Whether each call passes segments.
    first
        The value before each row, column and segment, 0-d: the caller's ``initial``, or the
        operator's identity for an exclusive scan without ``initial``. None: there is no value. Of
        structures it may be [inner], a value for each column of a scan across ranks. A long row is
        a view of the caller's arrays.
    keys
        The type of keys that kernels compare themselves: see ``segments.compared``. None: segments
        are flags, or become flags before a kernel reads them.
    """

    extents: Extents = EMPTY
    exclusive: bool = False
    reverse: bool = False
    segmented: bool = False
    first: Any = None
    keys: np.dtype[Any] | None = None

    def seed(self, columns: slice) -> NDArray[Any] | None:
        """Return the value before some columns, 0-d or a row; None if there is none."""
        first = self.first
        if first is None:
            return None
        return np.asarray(first if first.ndim == 0 else first[columns])


PLAIN = Form()


def first_value(op: Operator, acc: np.dtype[Any], initial: Any, *, exclusive: bool) -> Any:
    """Return ``first`` of a form, 0-d, in the accumulating type; None if there is none."""
    if initial is not None:
        return starting_value(initial, acc)
    if not exclusive:
        return None
    if op.identity is None:
        raise ValueError(f"operator {op.name!r} has no identity: exclusive=True needs initial=")
    identity = np.asarray(op.identity(acc))
    # The identity of sums is -0.0, but an exclusive scan begins with 0.0, as in NumPy.
    return np.zeros((), acc) if acc.kind in "fc" and identity == 0 else identity


def starting_value(initial: Any, acc: np.dtype[Any]) -> Any:
    """Return ``initial`` as a 0-d array of the accumulating type.

    Raises OverflowError for an integer out of the type's range, TypeError for a value of a higher
    kind, such as a float if integers accumulate, and ValueError for a masked value or an array.

    >>> starting_value(3, np.dtype(np.float32))
    array(3., dtype=float32)
    """
    if isinstance(initial, HostFields):
        return initial
    if acc.names is not None:
        value = exact_scalar(initial, acc, "initial")
        return value.reshape(()) if value.size == 1 else value  # an array: see ``Form.first``
    value = scalar(initial, "initial")
    if not (isinstance(value.item(), int) or np.can_cast(value.dtype, acc, "same_kind")):
        raise TypeError(f"initial is {value.dtype}; the scan accumulates in {acc}")
    return exact_scalar(value, acc, "initial")
