"""The kernels of compactions as they are asked for, for a GPU that is not there."""

from collections.abc import Iterable

import numpy as np

from distscan.core.operators import Predicate
from support.compiling import KernelRequest, absent_gpu, compaction

SIZES = (1, 2, 4, 8, 16)  # bytes
PREDICATES = [
    ("bool", 1, "x"),
    ("signed char", 1, "x > 0"),
    ("half", 2, "x > 0"),
    ("bfloat16", 2, "x > 0"),
    ("int", 4, "{ return x % 3 == 1; }"),
    ("float", 4, "x != x"),
    ("double", 8, "x > 0 && x < 1"),
    ("complex<double>", 16, "x.re * x.re + x.im * x.im < 1"),
]


def compactions(
    arch: str, sizes: Iterable[int] = SIZES, predicates: Iterable[tuple[str, int, str]] = ()
) -> list[KernelRequest]:
    """Compactions of few and many elements, and what copies rows."""
    units, policy = compaction._UNITS, compaction.compact_policy
    kinds = [compaction.Selection("Masked", units[size], size) for size in sizes]
    kinds += [
        compaction.Selection("Indices", units[size], size) for size in sizes if size in (4, 8)
    ]
    kinds += [
        compaction.Selection("Selected", dtype, size, Predicate("mine", np.isnan, text))
        for dtype, size, text in predicates
    ]
    with absent_gpu(arch) as kernels:
        for selection in kinds:
            for n in (1000, 1 << 21, 1 << 30):
                chosen = policy(selection.size, n, arch, 100, masked=selection.masked)
                compaction.Compact(selection, chosen, n)
        for size in sizes:
            for index in (np.uint32, np.uint64):
                compaction.Gather(size, np.dtype(index))
    return list(kernels)
