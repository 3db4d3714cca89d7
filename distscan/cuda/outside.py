"""The word in which a kernel tells the host that an element is outside of the named window."""

from typing import Any

import cupy
import numpy as np
from numpy.typing import NDArray

from ..core.dtypes import Types
from ..core.form import Form
from ..core.operators import Operator
from ..fsum.words import checks


class Outside:
    """A word in pinned host memory: the last launch that has seen such an element."""

    nbytes = 4

    def __init__(self, arguments: Any) -> None:
        """Allocate the word, and set it in the arguments of the kernel that checks elements."""
        self._pinned = cupy.cuda.alloc_pinned_memory(self.nbytes)
        self._word: NDArray[np.uint32] = np.frombuffer(self._pinned, np.uint32, 1)
        self._word[0] = 0
        self._unit = arguments.unit  # sets the arguments
        self._unit.outside = self._pinned.ptr

    def begin(self, epoch: int) -> None:
        """Set the epoch of the next launch."""
        self._unit.epoch = epoch

    def since(self, epoch: int) -> bool:
        """Return whether the launch of ``epoch``, which has ended, or a later one has seen any.

        The epochs of one workspace rise. So a later launch hides none.
        """
        return bool(self._word[0] >= epoch)


def sees_outside(types: Types, form: Form) -> bool:
    """Return whether kernels check elements at a lower price than a pass over them.

    Of float16 they do not: see ``fixed_policy.py``. Nor of rows and segments, of which scanners
    would check the elements, too: rows of 1024 float32, 2^28 elements, took 1516 us with the pass,
    and 2710 with checks inside (H100).
    """
    one_scan = form.extents.outer == form.extents.inner == 1 and not form.segmented
    return one_scan and types.x.itemsize >= 4


def outside(op: Operator, kernel: Any) -> Outside | None:
    """Return the word of a kernel; None if it checks nothing."""
    return Outside(kernel.arguments) if checks(op) else None
