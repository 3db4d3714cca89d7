"""Keys of segments, of every type."""

import numpy as np

from support.bfloat16 import BFLOAT16

# Those that kernels compare on GPUs and CPUs; on CPUs only, or not at all.
TYPES = ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8"]
HOST_TYPES = [BFLOAT16, np.dtype("M8[s]"), np.dtype("m8[ns]"), np.dtype(">i4"), np.dtype(">f8"),
              np.dtype("g"), np.dtype("F")]  # fmt: skip


def keys_of(rng, n, density, dtype):
    """Keys [n] that change at random places."""
    return keys_at(rng, rng.random(n) < density, dtype)


def keys_at(rng, heads, dtype):
    """Keys that change where heads are; among floats are zeros of both signs, and NaN."""
    dtype, n = np.dtype(dtype), heads.size
    values = rng.permutation(5).astype("i8")[(np.cumsum(heads) * 2 + 1) % 5]
    if dtype.kind in "mM":
        values[values == 4] = np.iinfo("i8").min  # NaT
        return values.view(dtype)
    keys = values.astype(dtype)
    if dtype.kind in "iu":
        return keys * dtype.type(51 if dtype.itemsize == 1 else 13107)
    signs = np.where(rng.random(n) < 0.5, -0.0, 0.0).astype(dtype)
    keys = np.where(values == 0, signs, keys)
    keys[values == 4] = np.nan
    return keys
