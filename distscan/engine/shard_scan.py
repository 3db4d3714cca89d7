"""One rank's part of a scan, decided once: types, strategy, workspaces, kernels."""

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .. import binding
from ..core import dtypes
from ..core.arrays import HostFields
from ..core.dtypes import Types
from ..core.form import Extents, Form, seed_value
from ..core.operators import Operator
from ..core.segments import check_type, compared, edge_dtype
from ..core.steps import PlanStrategy, Steps
from ..cpu import steps as cpu
from ..cpu import sweeps
from ..fsum.words import CheckedSteps, DigitSum, FixedSum
from ..mpi.agree import Terms
from ..mpi.exscan import Exscan
from ..mpi.handshake import Handshake
from ..options import RunOptions, ScanOptions
from . import digit_steps


class PeerAccess(NamedTuple):
    """Whether the ranks' GPUs can exchange totals themselves, as ``peers.prove`` finds out."""

    fault: str  # why they cannot; empty if they can
    #: Of their hosts, for plans that nobody has asked to be "fused", and whose calls do not agree.
    handshake: Handshake | None
    strategy: PlanStrategy = "fused"  # of GPU_STRATEGIES: what "auto" is, if they can
    links: Any = None  # ``peers.SharedLinks`` of the communicator, for calls that agree


@dataclass(eq=False)
class ShardScan:
    """One rank's part of a scan, ready to run on arrays of one length, type and device."""

    op: Operator
    types: Types
    strategy: str
    reason: str  # why it is this strategy
    form: Form
    across: bool  # whether the hosts exchange totals
    totals: np.dtype[Any]  # of the totals that ranks exchange
    steps: Steps
    exscan: Exscan | Handshake
    terms: Terms  # on which the ranks must agree before they exchange totals
    peers: PeerAccess | None  # of GPUs that exchange totals themselves

    @functools.cached_property
    def has_elements(self) -> bool:
        """Whether the shard has elements."""
        return self.form.extents.size > 0

    @functools.cached_property
    def nbytes(self) -> int:
        """Bytes of memory that are kept between calls, once the first call has run."""
        return self.steps.nbytes + self.exscan.nbytes


def make(
    extents: Extents,
    x: np.dtype[Any],
    gpu: int | None,
    options: ScanOptions,
    run_options: RunOptions,
    *,
    out: np.dtype[Any] | None = None,
    ranks: int,
    peers: PeerAccess | None = None,
) -> ShardScan:
    """Decide everything about the scan of a shard of type ``x``; local, no exchange.

    ``extents`` has the axis. ``gpu`` is the number of the current GPU, None for the CPU. ``out`` is
    the type of the result, as in ``dtypes.resolve``. Without ``peers`` the strategy is none of
    GPU_STRATEGIES. If it is, the caller must ``connect`` the GPUs of the ranks. Raises TypeError,
    ValueError and OverflowError for options that cannot be had, and MemoryError if the workspace
    does not fit.
    """
    op, segments = options.op, options.segments
    narrow = dtypes.resolve(op, x, options.dtype, out)
    wide = dtypes.resolve(op, x, options.dtype, out, wide=True).acc
    types = narrow if gpu is not None else narrow._replace(acc=wide)
    first = seed_value(op, wide, options.initial, exclusive=options.exclusive)
    if first is not None and first.ndim > 0:
        rows = extents.inner > 1 and extents.goes_on
        if not rows or first.shape != (extents.inner,):
            raise ValueError(f"initial must be one value, not an array of shape {first.shape}")
    # Ranks on CPUs and ranks on GPUs exchange single totals in one type. Rows of totals are not
    # widened, so ranks whose types differ refuse to scan together.
    totals = types.acc if extents.has_rows else wide
    form = Form(
        exclusive=options.exclusive,
        reverse=options.reverse,
        segmented=segments is not None,
        extents=extents,
        seed=first if first is None or first.dtype == types.acc else dtypes.cast(first, types.acc),
        keys=None if segments is None else compared(segments),
    )
    if segments is not None:
        check_type(segments, extents)
    strategy, reason = _strategy(
        run_options.strategy,
        ranks=ranks,
        # By NumPy both strategies take the same time. scan-add associates floats in one way, so
        # ranks leave no trace in the roundings. A result that is rounded on the store would need a
        # buffer as large as the shard; tuples of arrays have it. Compiled kernels move 3 n by
        # reduce-scan, 4 n by scan-add: .69 and .58 of a copy's speed at 2 ranks on a Xeon, 2^24
        # float64 each; .82, .69 at 8.
        add=gpu is None
        and (types.acc == types.out or op.arity > 1)
        and not sweeps.is_compiled(op, types),
        segmented=form.segmented,
        local=not extents.goes_on,
        alone=_FOR_GPUS
        if gpu is None
        else _fault_of_gpus(peers, _fault_of_scan(op, types, form, segments)),
        best="fused" if peers is None else peers.strategy,
    )
    follows_hosts = strategy == "fused" and run_options.strategy == "auto"
    if isinstance(op, DigitSum):
        made: Steps = getattr(digit_steps, _STEPS[strategy])(op, types, form, gpu=gpu)
    elif gpu is None:
        threads = binding.threads(run_options.threads)
        made = getattr(cpu, _STEPS[strategy])(op, types, form, threads=threads)
    else:
        made = _on_gpu(op, types, form, strategy, ranks=ranks, follows_hosts=follows_hosts)
    if isinstance(op, FixedSum) and op.check is not None:
        made = CheckedSteps(made, op.check)
    across = extents.goes_on and ranks > 1
    exscan: Exscan | Handshake
    if follows_hosts and peers is not None and peers.handshake is not None:
        exscan = peers.handshake
    else:
        across = across and strategy not in GPU_STRATEGIES
        edges = edge_dtype(segments)
        exscan = Exscan(op, totals, form, edges=edges, seeds=types.acc, across=across)
    shown = None if first is None else _shown(first)
    resolved = options._replace(op=op.name, axis=extents.axis, dtype=types.out, initial=shown)
    terms = Terms(
        {
            "the function": "scan",
            "op": op.name,  # before the types: it decides on them
            "the dtype of x": types.x,
            "the operator's MPI form": types.acc.kind in op.mpi_kinds and op.mpi,
            "the accumulating dtype": narrow.acc,
            "the dtype of totals": totals,
            "the shape beyond axis 0": extents.shape[1:],
            **resolved.compared(),
        }
    )
    return ShardScan(
        op,
        types,
        strategy,
        reason,
        form,
        across,
        totals,
        made,
        exscan,
        terms,
        peers,
    )


def _on_gpu(
    op: Operator,
    types: Types,
    form: Form,
    strategy: PlanStrategy,
    *,
    ranks: int,
    follows_hosts: bool,
) -> Steps:
    """Return the steps of a scan on a GPU."""
    inner, name = form.extents.inner, _STEPS[strategy]
    if strategy == "scan-add" and (inner > 1 or types.x.names):
        what = "tuples of arrays" if types.x.names else "axis=0"
        raise ValueError(f"strategy 'scan-add' takes no {what} on a GPU; use 'reduce-scan'")
    made: Steps
    if strategy not in GPU_STRATEGIES:
        from ..cuda import steps  # noqa: PLC0415 - a CPU job need not have CuPy

        made = getattr(steps, name)(op, types, form)
        return made
    from ..cuda import exchange_steps  # noqa: PLC0415

    sizes: Any = {"ranks": ranks} if strategy == "nccl" else {"follows_hosts": follows_hosts}
    made = getattr(exchange_steps, f"{name}Rows" if inner > 1 else name)(op, types, form, **sizes)
    return made


#: The classes of the steps, in the modules of the backends. CPUs have no GPU_STRATEGIES, of which
#: rows of totals have classes of their own.
_STEPS: dict[str, str] = {
    "scan-add": "ScanAdd",
    "reduce-scan": "ReduceScan",
    "single-pass": "SinglePass",
    "fused": "Fused",
    "nccl": "Nccl",
}


def adds_exactly(x: np.dtype[Any], out: np.dtype[Any], gpu: int | None) -> bool:
    """Return whether kernels add elements of type ``x`` by a ``FixedSum``, and store ``out``."""
    if x.kind in "biu":
        return False
    return gpu is not None or sweeps.adds_exactly(x, out)


def _shown(first: Any) -> Any:
    """Return the value before a scan as ranks compare it: a structure in full, or a digest."""
    return f"a row, {first.digest()}" if isinstance(first, HostFields) else first.tolist()


# ---- what is decided -----------------------------------------------------------------------


#: The strategies of which the GPUs exchange totals themselves.
GPU_STRATEGIES = {"fused", "nccl"}
#: The longest row of totals, in bytes, that GPUs exchange themselves. Up to here, one block does it
#: in some microseconds, and an inbox has two megabytes at most for 8 ranks.
LONGEST_ROW = 64 << 10
_FOR_GPUS = "it is for GPUs"
_FOR_PLANS = "it is for PyTorch, and for plans whose calls do not agree on faults"


def _fault_of_gpus(peers: PeerAccess | None, fault_of_scan: str) -> str:
    """Return why GPUs cannot exchange the totals of a shard themselves; empty if they can."""
    return fault_of_scan or (_FOR_PLANS if peers is None else peers.fault)


def _fault_of_scan(op: Operator, types: Types, form: Form, segments: np.dtype[Any] | None) -> str:
    """Return why GPUs exchange no totals of such scans themselves; empty if they do."""
    rows = form.extents.inner > 1
    if isinstance(op, DigitSum | FixedSum):
        return "it has no exact sums"
    if form.segmented and form.keys is None and segments != np.bool_:
        return f"its kernels do not compare keys of type {segments}"
    if form.segmented and form.keys is None and form.reverse:
        return "it takes no flags of segments in a reverse scan, only keys"
    if form.seed is not None and form.seed.ndim > 0:
        return "it takes one initial value, not a row"
    if form.extents.inner * types.acc.itemsize > LONGEST_ROW:
        return f"a row of totals has more than {LONGEST_ROW >> 10} KiB"
    return "it takes tuples of arrays in columns only" if types.x.names and not rows else ""


def _strategy(
    strategy: PlanStrategy,
    *,
    ranks: int,
    add: bool,
    segmented: bool,
    local: bool,
    alone: str,
    best: PlanStrategy,
) -> tuple[PlanStrategy, str]:
    """Return the strategy, and why: check the one that was asked for, or choose for "auto".

    ``alone`` is why the GPUs cannot exchange totals without their hosts. If they can, ``best`` is
    the strategy for it.
    """
    if strategy == "scan-add" and segmented:
        raise ValueError("strategy 'scan-add' does not take segments=; use 'reduce-scan'")
    if local:
        return "single-pass", "the axis needs no exchange"
    if ranks == 1 and strategy in {"auto", "single-pass", *GPU_STRATEGIES}:
        return "single-pass", "there is one rank"
    if strategy == "single-pass":
        raise ValueError(
            f"strategy 'single-pass' is for one rank, not {ranks}; several use 'reduce-scan'"
        )
    if strategy in GPU_STRATEGIES and alone:
        raise ValueError(f"strategy {strategy!r} cannot be had: {alone}; use 'reduce-scan'")
    if strategy != "auto":
        return strategy, "it was asked for"
    if not alone:
        return best, "the ranks' GPUs reach each other's memory" if best == "fused" else "by NCCL"
    if add and not segmented:
        return "scan-add", "NumPy does the work, in one association for any ranks"
    why_not = f", and 'fused' cannot be had: {alone}" if alone != _FOR_GPUS else ""
    return "reduce-scan", "it moves least memory on several ranks" + why_not
