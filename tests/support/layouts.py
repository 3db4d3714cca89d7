"""The same elements in memory, one after the other or not."""

import numpy as np


def contiguous(xp, x):
    return xp.asarray(x.copy())


def fortran(xp, x):
    # asfortranarray of CuPy changes bits of NaNs
    return x.copy(order="F") if xp is np else xp.asarray(x.T.copy()).T


def transposed(xp, x):
    """The first axis is the innermost."""
    return xp.moveaxis(xp.asarray(np.moveaxis(x, 0, -1).copy()), -1, 0)


def every_second(xp, x):
    return xp.asarray(x.repeat(2, axis=-1))[..., ::2]


def backwards(xp, x):
    return xp.asarray(x[::-1].copy())[::-1]


def byte_swapped(xp, x):
    return x.astype(x.dtype.newbyteorder())


def misaligned(xp, x):
    """One byte off."""
    moved = np.empty(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape)
    moved[...] = x
    return moved


def read_only(xp, x):
    frozen = x.copy()
    frozen.flags.writeable = False
    return frozen


# Those of results are without "read-only".
LAYOUTS = {
    "contiguous": contiguous,
    "Fortran": fortran,
    "transposed": transposed,
    "every second": every_second,
    "backwards": backwards,
    "byte-swapped": byte_swapped,
    "misaligned": misaligned,
    "read-only": read_only,
}
ON_GPUS = [*LAYOUTS][:5]


def lay_out(xp, x, layout):
    """A copy of ``x``; where CuPy has no such layout, or text no bytes, it is contiguous."""
    has_it = xp is np or layout in ON_GPUS
    return LAYOUTS[layout if has_it and x.ndim > 0 else "contiguous"](xp, x)
