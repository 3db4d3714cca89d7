"""``--block-scans``: the block scans and the chains of the literature, side by side on one GPU.

All of them scan float32 in one pass by ``kernels/textbook/textbook.cuh``. They differ in one part.
This module needs CuPy.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from .. import __version__
from ..core.dtypes import Types
from ..core.form import Extents, Form
from ..core.operators import BUILTIN, Operator
from ..cuda.definitions import register_types
from ..cuda.launches import Scan
from ..cuda.policy import LaunchConfig, per_vector, sm_count
from ..cuda.steps import SinglePass
from ..job.progress import Progress
from ..mpi.communicators import Comm
from . import timing
from .case import Case, Task
from .contenders import CONTENDERS, CaseTrial, Contender
from .timing import Call, Host, Row

THREADS = (64, 128, 256, 512, 1024)
POWER, POWERS = 26, (20, 24, 28)  # 2^26 elements against block size, 2^20 to 2^28 against chains
CHAINS = {"chained": "Chained", "look-back": "LookBack", "look-ahead": "LooksAhead"}


class Counts(NamedTuple):
    """The counts of a block scan of one value per thread."""

    steps: int  # combinations one after the other
    barriers: int
    work: int  # combinations of all threads together


def kogge_stone(n: int) -> Counts:
    """Return the counts of ``kernels/textbook/block_scans/kogge_stone.cuh`` for ``n`` threads.

    >>> kogge_stone(8)
    Counts(steps=3, barriers=3, work=17)
    """
    levels = n.bit_length() - 1
    return Counts(levels, levels, n * levels - (n - 1))


def brent_kung(n: int) -> Counts:
    """Return the counts of ``kernels/textbook/block_scans/brent_kung.cuh`` for ``n`` threads.

    >>> brent_kung(8)
    Counts(steps=5, barriers=6, work=11)
    """
    levels = n.bit_length() - 1
    return Counts(2 * levels - 1, 2 * levels, 2 * (n - 1) - levels)


def blelloch(n: int) -> Counts:
    """Return the counts of ``kernels/textbook/block_scans/blelloch.cuh`` for ``n`` threads.

    >>> blelloch(8)
    Counts(steps=7, barriers=7, work=18)
    """
    levels = n.bit_length() - 1
    return Counts(2 * levels + 1, 2 * levels + 1, 3 * (n - 1) - levels)


def coarsened(n: int) -> Counts:
    """Return the counts of ``kernels/textbook/block_scans/coarsened.cuh`` for ``n`` threads.

    >>> coarsened(64)
    Counts(steps=7, barriers=2, work=291)
    """
    warps = n // 32
    work = warps * kogge_stone(32).work + kogge_stone(warps).work + (n - 32)
    return Counts(n.bit_length() - 1 + (warps > 1), 2, work)


BLOCK_SCANS: dict[str, tuple[str, Callable[[int], Counts]]] = {
    "kogge-stone": ("KoggeStone", kogge_stone),
    "brent-kung": ("BrentKung", brent_kung),
    "blelloch": ("Blelloch", blelloch),
    "coarsened": ("Coarsened", coarsened),
}


# ---- the kernel ----------------------------------------------------------------------------

_RESIDENT = 2048  # the most threads that a multiprocessor holds


class TextbookPolicy(NamedTuple):
    """The parts of the kernel, and its tiles: ``threads * rows`` vectors."""

    block_scan: str  # a struct of kernels/textbook/block_scans
    # A struct of kernels/textbook/chains. This one gives floats the same bits on every run.
    chain: str = "LooksAhead"
    threads: int = 256
    rows: int = 5  # vectors per thread; odd

    @property
    def blocks(self) -> int:
        """Blocks that a multiprocessor must have registers for."""
        return max(512 // self.threads, 1)


class TextbookScan(SinglePass):
    """An inclusive scan of ``n`` elements on one rank: ``single-pass`` by another kernel."""

    def __init__(self, op: Operator, types: Types, n: int, policy: TextbookPolicy) -> None:
        self._policy = policy
        super().__init__(op, types, Form(Extents(length=n)))

    def make_scan(self, op: Operator, types: Types) -> Scan:
        """Make the kernel. Its tiles publish a prefix beside the total, so they need two words."""
        policy, types = self._policy, register_types(op, types)
        tile = policy.threads * policy.rows * per_vector(types.x, types.out)
        config = LaunchConfig(
            "textbook",
            policy._asdict() | {"blocks": policy.blocks},
            tile,
            policy.threads,
            shared=tile * max(types.x.itemsize, types.out.itemsize),
            blocks=_RESIDENT // policy.threads * sm_count(),
            words=2,
        )
        return Scan(op, types, self.n, self.form, config)


# ---- the run and its tables ----------------------------------------------------------------


class Tables(NamedTuple):
    """The results of the block scans and of the chains."""

    block_scans: list[Row]  # names such as "kogge-stone 256", with the number of threads
    chains: list[Row]

    def plain(self) -> dict[str, Any]:
        """Return the results as values for JSON."""
        counts = {
            name: {str(n): of(n)._asdict() for n in THREADS}
            for name, (_, of) in BLOCK_SCANS.items()
        }
        return {
            "counts": counts,
            "block_scans": [row.plain() for row in self.block_scans],
            "chains": [row.plain() for row in self.chains],
        }

    def lines(self) -> list[str]:
        """Return both tables as lines of text."""
        by_name = {row.contender: row for row in self.block_scans}
        lines = [
            "",
            f"block scans: of one value per thread; time of a scan of 2^{POWER} float32 with them",
            f"{'':13}{'threads':>8}{'steps':>8}{'barriers':>10}{'work':>8}{'us':>10}{'of copy':>9}",
        ]
        for name, (_, counts) in BLOCK_SCANS.items():
            for n in THREADS:
                steps, barriers, work = counts(n)
                lines.append(
                    f"{name:13}{n:8}{steps:8}{barriers:10}{work:8}{_result(by_name[f'{name} {n}'])}"
                )
        lines += [f"{name:47}{_result(by_name[name])}" for name in ("single-pass", "copy")]
        lines += ["", "chains: coarsened, 256 threads; us, and share of the copy's speed"]
        sizes = [1 << power for power in POWERS]
        lines.append(f"{'':13}" + "".join(f"{f'2^{power}':>19}" for power in POWERS))
        for name in (*CHAINS, "single-pass", "copy"):
            by_size = {row.n: row for row in self.chains if row.contender == name}
            lines.append(f"{name:13}" + "".join(_result(by_size[n]) for n in sizes))
        wrong = [row for row in (*self.block_scans, *self.chains) if row.status != "timed"]
        return lines + [f"{row.contender}: {row.status}: {row.message}" for row in wrong]


def run(comm: Comm, machine: Host, *, repeat: int, notify: Callable[[Progress], None]) -> Tables:
    """Check and time all block scans and chains, on one rank with a GPU."""
    references = [c for c in CONTENDERS if c.name in ("copy", "single-pass")]
    blocks = [
        _contender(f"{name} {threads}", TextbookPolicy(struct, threads=threads))
        for name, (struct, _) in BLOCK_SCANS.items()
        for threads in THREADS
    ]
    chains = [_contender(name, TextbookPolicy("Coarsened", struct))
              for name, struct in CHAINS.items()]  # fmt: skip
    run_trials = partial(timing.run, comm, machine, repeat=repeat, notify=notify)
    return Tables(
        run_trials([CaseTrial(_case(POWER), [*references, *blocks])]),
        run_trials([CaseTrial(_case(power), [*references, *chains]) for power in POWERS]),
    )


def _case(power: int) -> Case:
    return Case(BUILTIN["sum"], np.dtype("f4"), np.dtype("f4"), 1 << power, 1)


def _contender(name: str, policy: TextbookPolicy) -> Contender:
    prepare = partial(_steps, policy)
    return Contender(name, prepare, lambda: __version__, lambda case: 8, "one", ("cuda",))


def _steps(policy: TextbookPolicy, task: Task) -> list[Call]:
    case = task.case
    types, n = Types(case.x, case.out, case.out), task.pairs[0][0].size
    steps = TextbookScan(case.op, types, n, policy)

    def work(x: Any, out: Any) -> None:
        steps.finish(steps.begin(x, out, overlap=True), None)

    return [partial(work, x, out) for x, out in task.pairs]


def _result(row: Row) -> str:
    if row.device_us is None:
        return f"{row.status:>19}"
    share = "" if row.share is None else f"{row.share:.2f}"
    return f"{row.device_us.median:10.1f}{share:>9}"
