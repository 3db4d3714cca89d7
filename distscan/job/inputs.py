"""The inputs of a job: which files there are, and what they hold. No MPI."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import InputError
from ..core.operators import Operator
from . import files, formats
from .interface import NUMBERS, Source
from .parts import Parts


def inspect(
    paths: Sequence[Path],
    op: Any,
    *,
    raw: np.dtype[Any] | None = None,
    shape: tuple[int, ...] | None = None,
) -> Source:
    """Check the input, and return what it holds; several files are one array.

    ``raw`` is the type of files without a header, ``shape`` their shape. Structures are for
    operators of the caller's own. Raises ``InputError``.
    """
    if not paths:
        raise InputError("input is empty: a job reads at least one file")
    kinds = f"{NUMBERS}V" if isinstance(op, Operator) else NUMBERS
    found = [
        formats.of(path).inspect(path, kinds)
        if raw is None
        else files.inspect_raw(path, raw, shape, kinds)
        for path in paths
    ]
    return found[0] if len(found) == 1 else Parts(found)


def inspect_segments(path: Path | None, source: Source) -> Source | None:
    """Check the file of flags or keys for the elements of ``source``, and return what it holds."""
    if path is None:
        return None
    marks = formats.of(path).inspect(path, kinds=f"{NUMBERS}mMSU")
    if marks.shape not in (source.shape, (source.n,)):
        raise InputError(f"{marks.name} has shape {marks.shape}; {source.name} has {source.shape}")
    return marks
