"""What a job does, decided once before any work: types, operator, form, and each rank's part."""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from .. import build
from ..build import Strategy
from ..core import operators
from ..core.dtypes import Types
from ..core.extents import Extents
from ..core.form import Form
from ..core.operators import Operator
from ..core.shards import bounds
from ..mpi.communicators import Comm
from ..options import RunOptions, ScanOptions
from .interface import Source


class Decided(NamedTuple):
    """The scan of one rank's part of a source.

    With an axis, a rank has whole rows. In Fortran order, these are the rows of the array whose
    axes are reversed. A flattened source is divided by elements.
    """

    scan: ScanOptions  # of fsum: by the operator of a window
    run: RunOptions
    op: Operator
    types: Types
    strategy: str
    totals: np.dtype[Any]  # of the running value between chunks and ranks
    form: Form  # of this rank's shard
    goes_on: bool  # whether the scan goes on from chunk to chunk
    across: bool  # whether ranks exchange totals
    shape: tuple[int, ...]  # of the whole result
    fortran: bool  # whether the result is in Fortran order
    row: tuple[int, ...]  # the shape of a row of the scan; () if the source is flattened
    start: int  # the index of this rank's first element, as the source is read

    def compile(self, extents: Extents, strategy: Strategy, gpu: int | None) -> build.CompiledScan:
        """Make the scan of a chunk."""
        return _make(self.scan, self.run, self.types.x, extents, gpu, strategy=strategy, ranks=1)

    @property
    def chunk_strategy(self) -> Strategy:
        """The strategy of a chunk that goes on from another."""
        return "scan-add" if self.strategy == "scan-add" else "reduce-scan"


def decide(
    scan: ScanOptions, run: RunOptions, source: Source, gpu: int | None, comm: Comm
) -> Decided:
    """Check the options, and decide the part of this rank; local, without memory for a shard.

    ``gpu`` is the number of the current GPU; None decides for CPUs.
    """
    rows, axis = len(source.shape) > 1 and scan.axis is not None, scan.axis
    whole = source.shape if rows else (source.n,)
    fortran, shape = rows and source.fortran, whole
    if fortran:
        shape = shape[::-1]
        axis = len(shape) - 1 - normalize_axis_index(axis or 0, len(shape))
    low, high = bounds(shape[0], comm.size, comm.rank)
    mine = (high - low, *shape[1:])
    if source.n == 0:  # there is nothing to scan, whatever the number of rows or columns
        mine = tuple(min(length, 1) for length in mine)
    x = source.dtype.newbyteorder("=")
    # The scan of no rows decides as that of all rows does, and has no memory.
    no_rows = Extents.of((0, *mine[1:]), axis)
    none = _make(scan, run, x, no_rows, gpu, strategy=run.strategy, ranks=comm.size)
    extents = Extents.of(mine, axis)
    return Decided(
        scan,
        run,
        none.op,
        none.types,
        none.strategy,
        none.totals,
        none.form._replace(extents=extents),
        extents.goes_on,
        extents.goes_on and comm.size > 1,
        whole,
        fortran,
        shape[1:],
        low * math.prod(shape[1:]),
    )


def _make(
    scan: ScanOptions,
    run: RunOptions,
    x: np.dtype[Any],
    extents: Extents,
    gpu: int | None,
    *,
    strategy: Strategy,
    ranks: int,
) -> build.CompiledScan:
    return build.make(
        extents,
        x,
        gpu,
        operators.resolve(scan.op),
        exclusive=scan.exclusive,
        initial=scan.initial,
        reverse=scan.reverse,
        dtype=scan.dtype,
        segments=None if scan.segments is None else scan.segments.newbyteorder("="),
        strategy=strategy,
        threads=run.threads,
        ranks=ranks,
    )
