"""The plan of a job, made before any work: the scan, each rank's shard, its chunks, its memory."""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from ..core.dtypes import Types
from ..core.form import Extents, Form, bounds
from ..core.operators import Operator
from ..core.steps import PlanStrategy, Strategy
from ..engine.shard_scan import ShardScan, make
from ..fsum.request import FsumRequest
from ..fsum.window import Window
from ..mpi.communicators import Comm
from ..options import RunOptions, ScanOptions
from .chunks import Block, Order, Tiles, Turns, cut
from .formats.interface import (
    READERS,
    REMOTE_READERS,
    REMOTE_WRITERS,
    WINDOW,
    WRITERS,
    Source,
    option,
)

MIB = 1 << 20
#: Rows of a rank in a round, at least: see ``JobPlan.turn``.
ROWS = 64
#: Bytes that are read at a time, at least, of a row that is divided among ranks. A read of so many
#: takes ten times as long as its call.
RUN = 1 << 16


class JobPlan(NamedTuple):
    """The scan of one rank's shard of a source: decided once, from the header.

    With an axis, a shard has whole rows. In Fortran order, these are the rows of the array whose
    axes are reversed. A flattened source is divided by elements.
    """

    scan: ScanOptions  # of fsum: by the operator of a window
    run: RunOptions
    op: Operator
    types: Types
    strategy: str
    totals: np.dtype[Any]  # of the running value between chunks and ranks
    form: Form  # of this rank's shard
    gpu: int | None  # the number of the current GPU; None on CPUs
    goes_on: bool  # whether the scan goes on from chunk to chunk
    across: bool  # whether ranks exchange totals
    shape: tuple[int, ...]  # of the whole result
    axis: int  # the scanned one of these
    fortran: bool  # whether the result is in Fortran order
    row: tuple[int, ...]  # the shape of a row of the scan; () if the source is flattened
    start: int  # the index of this rank's first element, as the source is read
    turns: Turns  # how ranks that exchange totals share the elements of the source
    grain: int = 1  # chunks of a source of one axis begin at multiples of it
    whole: bool = False  # whether all chunks have whole tiles, because they are written
    tiles: Tiles | None = None  # those of this rank, if it reads and writes boxes

    @classmethod
    def of(cls, scan: ScanOptions, run: RunOptions, source: Source, comm: Comm) -> "JobPlan":
        """Check the options, and plan the shard of this rank for CPUs; local, without memory."""
        rows, axis = len(source.shape) > 1 and scan.axis is not None, scan.axis
        result = source.shape if rows else (source.n,)
        fortran, shape = rows and source.fortran, result
        if fortran:
            shape = shape[::-1]
            axis = len(shape) - 1 - normalize_axis_index(axis or 0, len(shape))
        low, high = bounds(shape[0], comm.size, comm.rank)
        shard = (high - low, *shape[1:])
        if source.n == 0:  # there is nothing to scan, whatever the number of rows or columns
            shard = tuple(min(length, 1) for length in shard)
        extents = Extents.of(shard, axis)
        across = extents.goes_on and comm.size > 1
        x = source.dtype.newbyteorder("=")
        return cls(
            **_by_operator(scan, run, x, extents, None, ranks=comm.size),
            run=run,
            goes_on=extents.goes_on,
            across=across,
            shape=result,
            axis=normalize_axis_index(scan.axis or 0, len(result)) if rows else 0,
            fortran=fortran,
            row=shape[1:],
            start=low * math.prod(shape[1:]),
            turns=Turns(comm.size, comm.rank) if across else Turns(),
        )

    def divide(self, source: Source, target: Source, comm: Comm, *, has_state: bool) -> "JobPlan":
        """Return the plan of a rank that reads whole tiles of the source, and writes whole ones.

        To decompress a tile on two ranks costs twice the time. Two writers of one tile would lose
        data. So shards begin where tiles do. Of an array of several axes, each rank scans some
        columns of tiles, and waits for no other rank. If that leaves more ranks without work, or
        with a state, it scans some rows of tiles, in all columns. Long rows of an array without
        tiles are divided likewise.
        """
        tile = target.tile or source.tile
        if math.prod(self.shape) == 0:
            return self
        if not tile and self.across and not self.fortran and not has_state:
            tile = self._part_of_row(comm.size)
        if not tile:
            windows = self.across and source.needs_window(flattened=len(self.shape) == 1)
            grain = WINDOW // source.dtype.itemsize if windows else 1
            return self._replace(turns=self.turns._replace(grain=grain))
        if len(self.shape) > 1:
            tiles = Tiles.of(self.shape, tile, self.axis)
            columns, rows = tiles.columns[1], -(-self.shape[self.axis] // tiles.tile[self.axis])
            by_rows = has_state or min(rows, comm.size) > min(columns, comm.size)
            tiles = tiles.of_rank(comm, by_rows=by_rows, whole=bool(target.tile))
            across = by_rows and comm.size > 1
            turns = Turns(comm.size, comm.rank, whole=bool(target.tile) or rows >= comm.size)
            return self._replace(
                form=self.form._replace(extents=tiles.extents),
                across=across,
                goes_on=self.goes_on or across,
                turns=turns if across else Turns(),
                whole=bool(target.tile),
                tiles=tiles,
            )
        (n,), flattened = self.shape, len(tile) > 1
        grain = min(tile[0] * math.prod(source.shape[1:]) if flattened else tile[0], n)
        low, high = bounds(n, comm.size, comm.rank, grain, whole=bool(target.tile))
        whole = bool(target.tile) or -(-n // grain) >= comm.size
        return self._replace(
            form=self.form._replace(extents=Extents.of((high - low,), None)),
            start=low,
            turns=self.turns._replace(grain=grain, whole=whole),
            grain=1 if flattened else grain,
            whole=bool(target.tile),
        )

    def _part_of_row(self, ranks: int) -> tuple[int, ...]:
        """Return the shape of a part of a row: the shortest run of bytes that is read at a time.

        It is () if some ranks would have no part.
        """
        lengths, run = [1] * len(self.shape), max(1, RUN // self.types.x.itemsize)
        for i in range(len(self.shape) - 1, 0, -1):
            lengths[i] = min(self.shape[i], run)
            run = -(-run // self.shape[i])
        parts = math.prod(-(-self.shape[i] // lengths[i]) for i in range(1, len(self.shape)))
        return tuple(lengths) if parts >= ranks else ()

    def rows_of_chunk(self, elements: int) -> int:
        """Return the rows of a chunk of so many elements, about."""
        rows = elements // max(1, self.form.extents.inner)
        return max(1, rows, 0 if self.tiles is None else self.tiles.tile[self.axis])

    def turn(self, chunk: int, *, gpu: bool) -> int:
        """Return the number of chunks of a rank in a round, if there is memory for them.

        An exchange of rows takes as long as the scan of some rows, so a round has many. Ranks that
        decompress tiles have whole ones. GPUs have memory for all: to read a file and then to write
        one is faster than both at once, 0.8 s and 1.3 s for 4 GiB of two ranks on a host of 16
        cores. But a journal is written between rounds.
        """
        if not self.across:
            return 1
        rows = 1 if self.form.extents.inner == 1 else -(-ROWS // self.rows_of_chunk(chunk))
        wanted = max(rows, -(-self.turns.grain // chunk) if self.tiles is None else 1)
        every = -(-math.prod(self.shape) // (self.turns.size * chunk)) + 1
        return every if gpu and not self.run.resume else min(wanted, every)

    def bytes_of_row(self, chunk: int) -> int:
        """Return the bytes of the total of a chunk; 0 if it is one value."""
        inner = self.form.extents.inner
        return min(inner, chunk) * self.totals.itemsize if self.across and inner > 1 else 0

    @property
    def fewest(self) -> int:
        """The fewest elements that a chunk should have, or must, to be read or written whole."""
        if self.tiles is not None:
            return math.prod(self.tiles.tile)
        return self.grain if self.whole else 1

    def blocks(self, most: int, turn: int) -> list[Block]:
        """Return the blocks of the scan: this rank's chunks have at most ``most`` elements.

        If ranks exchange totals, each has ``turn`` chunks in a round.
        """
        if not self.across:
            return self.blocks_of_shard(most)
        extents, turns = self.form.extents, self.turns._replace(chunks=turn)
        shape = math.prod(self.shape) // max(1, extents.inner), *extents.shape[1:]
        every_row = self.tiles and self.tiles.of_all_ranks
        return self._blocks(most, Extents.of(shape, extents.axis), 0, every_row, turns)

    def runs(self, most: int) -> Iterator[tuple[int, int]]:
        """Yield the runs of elements that this rank reads and writes, in order: (first, last).

        A chunk has ``most`` elements, about: its size is decided when the backend has started.
        """
        for block in self.blocks(most, self.turn(most, gpu=True)):
            for chunk in block:
                runs = chunk.runs() if chunk.box is None else chunk.box.runs(self.shape)
                for index, low, high in runs:
                    yield index, index + high - low

    def blocks_of_shard(self, most: int) -> list[Block]:
        """Return the blocks of this rank's shard, which is one part of the array."""
        return self._blocks(most, self.form.extents, self.start, self.tiles, Turns())

    def _blocks(
        self, most: int, extents: Extents, start: int, tiles: Tiles | None, turns: Turns
    ) -> list[Block]:
        assert most >= self.fewest or not self.whole, "a part of a tile would be written"
        order = Order(self.goes_on, self.form.reverse, turns)
        if tiles is not None:
            none = Block(Extents.of((0,), None), 1, (0, 1), order)
            return tiles.blocks(most, order) or [none]  # other ranks have all columns
        grain = self.grain if most >= self.grain else 1  # there is no memory for it
        return cut(extents, start, most - most % grain, order)

    def by(self, scan: ScanOptions, gpu: int | None, ranks: int) -> "JobPlan":
        """Return the same plan by the operator of ``scan``, and on a GPU."""
        fields = _by_operator(scan, self.run, self.types.x, self.form.extents, gpu, ranks=ranks)
        return self._replace(**fields)

    def compile(self, extents: Extents, strategy: Strategy) -> ShardScan:
        """Make the scan of a chunk."""
        x = self.types.x
        return _make(self.scan, self.run, x, extents, self.gpu, strategy=strategy, ranks=1)

    @property
    def chunk_strategy(self) -> Strategy:
        """The strategy of a chunk that goes on from another."""
        return "scan-add" if self.strategy == "scan-add" else "reduce-scan"


def _by_operator(
    scan: ScanOptions,
    run: RunOptions,
    x: np.dtype[Any],
    extents: Extents,
    gpu: int | None,
    *,
    ranks: int,
) -> dict[str, Any]:
    """Return the fields of a plan that depend on the operator and on the backend."""
    # The scan of no rows has the same types and strategy as that of all rows, and no memory.
    no_rows = Extents.of((0, *extents.shape[1:]), extents.axis)
    empty = _make(scan, run, x, no_rows, gpu, strategy=run.strategy, ranks=ranks)
    return {
        "scan": scan,
        "op": empty.op,
        "types": empty.types,
        "strategy": empty.strategy,
        "totals": empty.totals,
        "form": empty.form._replace(extents=extents),
        "gpu": gpu,
    }


def _make(
    scan: ScanOptions,
    run: RunOptions,
    x: np.dtype[Any],
    extents: Extents,
    gpu: int | None,
    *,
    strategy: PlanStrategy,
    ranks: int,
) -> ShardScan:
    marks = None if scan.segments is None else scan.segments.newbyteorder("=")
    run = run._replace(strategy=strategy)
    return make(extents, x, gpu, scan._replace(segments=marks), run, ranks=ranks)


# ---- exact sums: their operator is known when the window of all elements is ------------------


def fsum_request(
    scan: ScanOptions, run: RunOptions, source: Source, ranks: int, *, has_state: bool
) -> FsumRequest | None:
    """Check the options of ``fsum``; None for another operator. Raises TypeError and ValueError."""
    if scan.op != "fsum":
        return None
    if has_state:
        raise ValueError(
            f"{option('state', argument='')} does not take fsum: "
            "its running value has the window of one job"
        )
    if run.check:
        raise ValueError(f"{option('check')} has no reference for fsum: leave it out")
    return FsumRequest.of(
        source.dtype,
        dtype=scan.dtype,
        initial=scan.initial,
        window=scan.window,
        strategy=run.strategy,
        ranks=ranks,
    )


def by_window(
    scan: ScanOptions, request: FsumRequest, window: Window, x: Any, **how: Any
) -> ScanOptions:
    """Return the options of the scan, by the operator for elements ``x`` of a window.

    ``how`` is as in ``FsumRequest.operator``.
    """
    op, initial = request.operator(window, x, **how)
    return scan._replace(op=op, initial=initial, dtype=request.result)


# ---- memory: the size and the number of chunks ------------------------------------------------


class Budget(NamedTuple):
    """The memory that a rank uses, decided before any work.

    Attributes
    ----------
    chunk
        Elements of a chunk, at most.
    readers, writers
        The threads that read and that write. 0: the rank's own thread does.
    slots
        The number of chunks on the device at a time.
    window
        Bytes of memory for what a source keeps: ``Source.reading``.
    turn
        The number of chunks of a rank in a round: see ``Turns``.
    """

    chunk: int
    readers: int
    writers: int
    slots: int
    window: int = 0
    turn: int = 1


_ROWS = 8  # of totals that a rank has at a time, beside those of chunks
#: Bytes of a chunk on CPUs: it stays in the caches. With 1 MiB a scan of float64 took twice as
#: long, with 16 MiB 1.4 times (one core of a Xeon with AVX-512). It does not depend on the number
#: of threads, so they change no bit of a result.
CPU_CHUNK = 4 * MIB
#: Bytes of a chunk on a GPU. Smaller ones cost more of Python's time (0.1 ms each), larger ones
#: more pinned memory (0.4 s for a GiB).
GPU_CHUNK = 8 * MIB


def decide_budget(
    *,
    size: int,
    element: int,
    result: int,
    mark: int,
    in_place: bool,
    gpu: bool,
    threads: int,
    turn: Callable[[int], int],
    row: Callable[[int], int] = lambda chunk: 0,
    parallel: bool,
    limit: int | None,
    free_host: int,
    free_device: int,
    windows: int = 0,
    fewest: int = 1,
    whole: bool = False,
    remote: bool = False,
    remote_target: bool = False,
) -> Budget:
    """Decide the memory of a rank.

    ``size`` is the number of elements of its shard; ``element``, ``result`` and ``mark`` are the
    bytes of an element, of a result, and of a flag or a key, 0 without segments. Results are
    ``in_place`` if their type is that of elements. ``threads`` are those that the rank may use.
    ``turn`` returns the number of chunks that a round of ranks should have for each of them, and
    ``row`` the bytes of the total of such a chunk, if that is a row.
    ``parallel`` says that several threads write faster than one.
    ``limit`` is the caller's, in bytes, for the host and for the GPU each. ``free_host`` and
    ``free_device`` are this rank's shares of what is free.
    ``windows`` is the number of sources that keep what they have read or unpacked. ``remote`` says
    that a source is in a store, ``remote_target`` that results are written into one. ``fewest`` is
    the number of elements of a tile, which chunks should have; if they must, because tiles are
    ``whole``, ValueError is raised if there is no memory for one.
    """
    host = free_host // 2 if limit is None else min(limit, free_host)
    window = 0
    if windows:
        shard = size * max(element, mark)  # a larger window has elements of other ranks
        window = min(WINDOW, shard + 2 * MIB, host // (4 * windows))
        host -= windows * window
    device = free_device * 4 // 5 if limit is None else min(limit, free_device)
    if not gpu:
        device = host
    large = max(element, result, mark)
    item = (element if in_place else element + result) + mark  # bytes of a slot's element
    nbytes = GPU_CHUNK if gpu else CPU_CHUNK
    readers, writers = min(READERS, threads), min(WRITERS, threads) if parallel else 1
    if threads == 1 and not gpu:  # one thread would only interrupt itself
        readers = writers = 0
    if remote:
        readers, writers = REMOTE_READERS, max(1, min(writers, READERS + WRITERS - REMOTE_READERS))
    if remote_target:
        writers = REMOTE_WRITERS
    # Each has the bytes of a chunk, as they arrive or leave.
    requests = REMOTE_READERS * remote + REMOTE_WRITERS * remote_target
    slots, most = readers + writers + 1, READERS + WRITERS + 1
    # As if there were the most threads, so that their number changes no bit of a result.
    if gpu:  # every thread has pinned memory for a chunk
        chunk = min(nbytes, host // (READERS + WRITERS + requests)) // large
        chunk = min(chunk, device // (most * item))
    else:
        chunk = min(nbytes // large, host // (most * item + requests * large))
    chunk = max(1, chunk)
    if chunk < fewest:  # as many tiles at a time as there is memory for
        tiles = min(slots, device // (fewest * item))
        lanes = host // (fewest * large) if gpu else tiles
        if tiles > 0 and lanes > 0:
            chunk, slots = fewest, tiles
            readers, writers = min(readers, lanes // 2), min(writers, lanes // 2)
        elif whole:
            raise ValueError(
                f"{option('memory', argument='')}: a tile of the file, with its result, takes "
                f"{fewest * item} bytes of each rank, and there are {min(host, device)}"
            )
    if size <= chunk:  # one chunk has nothing that could overlap
        return Budget(chunk, 0, 0, 1, window)
    room = device if gpu else device - requests * chunk * large
    # Each chunk of a round has a total; so have the round, the exchange and the state.
    room -= slots * chunk * item + _ROWS * row(chunk)
    chunks = min(turn(chunk), 1 + max(0, room // (chunk * item + row(chunk))))
    return Budget(chunk, readers, writers, slots + chunks - 1, window, chunks)
