"""The bits of the elements of a CuPy array, by the kernel that reduces shards."""

from typing import Any

import cupy
import numpy as np

from ..core.bit_range import BitRange, bit_range_operator
from ..core.dtypes import Types
from ..core.form import PLAIN
from . import epochs
from .kernel import launch
from .launches import HostTotal, Reduce
from .workspace import is_capturing


class BitRangeOf:
    """The bits of arrays of one type and length, on the GPU and the stream that are current."""

    def __init__(self, dtype: np.dtype[Any], n: int) -> None:
        """Compile the kernel, and allocate its memory, for arrays [n] of floats."""
        self._op = bit_range_operator(max(dtype.itemsize, 4))
        types = Types(dtype, self._op.acc, dtype)
        self._reduce, self._total = Reduce(self._op, types, n, PLAIN), HostTotal(types.acc)
        self._round = 0

    @property
    def nbytes(self) -> int:
        """Bytes of memory that are kept between calls."""
        return self._reduce.nbytes + self._total.nbytes

    def __call__(self, x: Any) -> BitRange:
        """Return the bit range of ``x`` [n], contiguous; the host waits for it."""
        number, stream = next(epochs.calls), cupy.cuda.get_current_stream()
        if is_capturing(stream):
            raise RuntimeError("a CUDA graph cannot capture an exact sum: the host waits for bits")
        if number >> epochs.BITS != self._round:  # epochs repeat
            self._round, self._total = number >> epochs.BITS, HostTotal(self._op.acc)
        epoch = number & epochs.LAST
        self._reduce.prepare(x, self._total.pointer, epoch)
        launch(self._reduce, stream)
        return self._op.decode(self._total.wait(epoch, stream))
