"""``--block-scans``: the block scans and the chains of the literature, side by side on one GPU.

All of them scan float32 in one pass by ``kernels/textbook/textbook.cuh``. They differ in one part.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import __version__
from ..core.dtypes import Types
from ..core.operators import BUILTIN
from ..mpi.communicators import Comm
from . import suite
from .case import Case, Task
from .contenders import CONTENDERS, Contender
from .suite import Row
from .timing import Call, Host

if TYPE_CHECKING:
    from .textbook import TextbookPolicy

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
        found = {row.contender: row for row in self.block_scans}
        lines = [
            "",
            f"block scans: of one value per thread; time of a scan of 2^{POWER} float32 with them",
            f"{'':13}{'threads':>8}{'steps':>8}{'barriers':>10}{'work':>8}{'us':>10}{'of copy':>9}",
        ]
        for name, (_, counts) in BLOCK_SCANS.items():
            for n in THREADS:
                steps, barriers, work = counts(n)
                lines.append(
                    f"{name:13}{n:8}{steps:8}{barriers:10}{work:8}{_result(found[f'{name} {n}'])}"
                )
        lines += [f"{name:47}{_result(found[name])}" for name in ("single-pass", "copy")]
        lines += ["", "chains: coarsened, 256 threads; us, and share of the copy's speed"]
        sizes = [1 << power for power in POWERS]
        lines.append(f"{'':13}" + "".join(f"{f'2^{power}':>19}" for power in POWERS))
        for name in (*CHAINS, "single-pass", "copy"):
            own = {row.n: row for row in self.chains if row.contender == name}
            lines.append(f"{name:13}" + "".join(_result(own[n]) for n in sizes))
        wrong = [row for row in (*self.block_scans, *self.chains) if row.status != "timed"]
        return lines + [f"{row.contender}: {row.status}: {row.message}" for row in wrong]


def run(
    comm: Comm, machine: Host, *, repeat: int, progress: Callable[[str, int, int], None]
) -> Tables:
    """Check and time all block scans and chains, on one rank with a GPU."""
    from .textbook import TextbookPolicy  # noqa: PLC0415 - a CPU run need not have CuPy

    beside = [c for c in CONTENDERS if c.name in ("copy", "single-pass")]
    blocks = [
        _contender(f"{name} {threads}", TextbookPolicy(struct, threads=threads))
        for name, (struct, _) in BLOCK_SCANS.items()
        for threads in THREADS
    ]
    chains = [_contender(name, TextbookPolicy("Coarsened", struct))
              for name, struct in CHAINS.items()]  # fmt: skip
    go = partial(suite.run, comm, machine, repeat=repeat, progress=progress)
    return Tables(
        go([*beside, *blocks], [_case(POWER)]),
        go([*beside, *chains], [_case(power) for power in POWERS]),
    )


def _case(power: int) -> Case:
    return Case(BUILTIN["sum"], np.dtype("f4"), np.dtype("f4"), 1 << power, 1)


def _contender(name: str, policy: "TextbookPolicy") -> Contender:
    prepare = partial(_steps, policy)
    return Contender(name, prepare, lambda: __version__, lambda case: 8, "one", ("cuda",))


def _steps(policy: "TextbookPolicy", task: Task) -> list[Call]:
    from .textbook import TextbookScan  # noqa: PLC0415

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
