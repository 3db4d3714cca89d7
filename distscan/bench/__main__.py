"""``python -m distscan.bench``: the run and its exit status."""

import argparse
import json
import platform
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np

from .. import __version__, binding, command
from ..command import Progress
from ..core.operators import BUILTIN
from ..cpu import library
from ..mpi import communicators, faults
from ..mpi.agree import agreed
from ..mpi.communicators import Comm
from . import (
    against,
    arguments,
    block_scans,
    forms,
    plot,
    report,
    suite,
    uses,
    uses_data,
    uses_peers,
)
from .case import Case
from .contenders import CONTENDERS, Contender, lesser_levels
from .machine import Gpu, Host
from .report import Report


def main(argv: Sequence[str] | None = None) -> int:
    """Run on every rank; return the exit status, which is the same on all ranks."""
    return command.run("distscan.bench", _main, argv)


def _main(comm: Comm, argv: Sequence[str]) -> int:
    args = command.arguments(comm, argv, arguments.parser(), arguments.check)
    if args is None:
        return 0
    progress = Progress(quiet=comm.rank > 0)
    bound = binding.bind(comm, args.backend, progress.warn)
    name, _, reason = bound.device.partition(": ")
    if reason:
        progress.warn(f"runs on the CPU: {reason}")
    sharing = _sharing(comm, bound)
    with agreed(comm):
        machine = Gpu(name, sharing) if bound.name == "cuda" else Host(_cpu(name), sharing)
    if args.list:
        _list(comm)
        return 0
    if args.block_scans and (machine.backend, comm.size) != ("cuda", 1):
        where = f"{comm.size} of backend {machine.backend}"
        raise faults.mark_collective(
            ValueError(f"--block-scans is for one rank with a GPU, not {where}")
        )
    if not (args.forms or args.uses or args.by_size) and machine.backend == "cpu":
        args.forms = forms.MIB
    if (args.forms or args.levels) and machine.backend != "cpu":
        raise faults.mark_collective(ValueError("--forms and --levels are for CPUs"))
    chosen = _chosen(args, machine.backend, comm.size)
    able, versions, missing = suite.present(comm, chosen)
    cases = _cases(comm, args)
    used = uses_data.uses(machine.backend, _most(args, machine.backend)) if args.uses else []
    peers = uses_peers.suited(machine.backend, comm.size) if args.uses else []
    peers, more_versions, more_missing = suite.present(comm, peers)
    op = "forms" if args.forms else "uses" if args.uses else args.op
    planned = {against.Key(case.type, c.name, case.n) for case in cases for c in able}
    planned |= {against.Key(use.title, uses.OURS, use.n) for use in used}
    setting = against.setting(machine.backend, comm.size, op)
    baseline = _baseline(comm, args.against, setting, planned)
    try:
        measuring = {"repeat": args.repeat, "progress": progress.show}
        rows = suite.run(comm, machine, able, cases, **measuring)
        rows += uses.run(comm, machine, peers, used, **measuring)
        tables = block_scans.run(comm, machine, **measuring) if args.block_scans else None
    finally:
        progress.clear()
    done = Report(
        command=" ".join(["python -m distscan.bench", *argv]),
        date=time.strftime("%Y-%m-%d"),
        chip=machine.name,
        backend=machine.backend,
        ranks=comm.size,
        nodes=bound.nodes,
        mpi=communicators.mpi_version(),
        versions=_versions(machine) | _of_libraries(versions | more_versions),
        missing=missing | more_missing,
        op=op,
        repeat=args.repeat,
        cache_bytes=machine.cache,
        peak=machine.peak,
        results=rows,
        block_scans=tables,
        idioms={case.type: case.idiom for case in cases} if args.forms else None,
        clocks=uses.clocks(used, machine.backend, comm.size) if args.uses else None,
    )
    fell = False
    with agreed(comm):
        if comm.rank == 0:
            _write(done, args.json, args.plot)
            if baseline is not None:
                lines, fell = against.compare(baseline, done, _limit(args, machine.backend))
                print("\n".join(lines), file=sys.stderr if args.json == "-" else None, flush=True)
    return int(comm.bcast(fell))


def _baseline(
    comm: Comm,
    path: Path | None,
    given: dict[str, object],
    planned: set[against.Key],
) -> against.Baseline | None:
    """Read the file of ``--against`` on rank 0, before any measurement; collective."""
    if path is None:
        return None
    baseline = None
    with agreed(comm):
        if comm.rank == 0:
            baseline = against.read(path, given, planned)
    return baseline


def _most(args: argparse.Namespace, backend: str) -> int:
    return uses.MOST[backend] if args.most is None else int(args.most)


def _limit(args: argparse.Namespace, backend: str) -> float:
    return against.LIMITS[backend] if args.limit is None else float(args.limit)


def _write(done: Report, to_json: str | None, to_plot: Path | None) -> None:
    if to_json == "-":
        print(json.dumps(done.plain()), flush=True)
    else:
        print(report.text(done), flush=True)
        if to_json:
            Path(to_json).write_text(json.dumps(done.plain(), indent=1) + "\n")
    if to_plot:
        plot.write(done, to_plot)


def _list(comm: Comm) -> None:
    """Print a table of all contenders: their backends, ranks, operators, and versions here."""
    _, versions, missing = suite.present(comm, CONTENDERS)
    lines = [f"{'':16}{'backends':10}{'ranks':9}{'operators':19}here"]
    for contender in CONTENDERS:
        here = versions.get(contender.name) or missing[contender.name]
        lines.append(
            f"{contender.name:16}{','.join(contender.backends):10}{contender.ranks:9}"
            f"{','.join(contender.ops):19}{here}"
        )
    _print(comm, "\n".join(lines))


def _chosen(args: argparse.Namespace, backend: str, ranks: int) -> list[Contender]:
    """Return the contenders of ``--contenders``, and the copy, the measure for all of them."""
    if args.uses:
        return []
    suited = [c for c in CONTENDERS if c.suits(backend, ranks, args.op)]
    levels = lesser_levels() if args.levels else []
    if args.contenders is None:
        one = {"reduce-scan", "scan-add"} if ranks == 1 else set()  # these are for several ranks
        shown = [c for c in suited if c.name in forms.SHOWN and c.name not in one]
        return [*shown, *levels] if args.forms else suited
    names = {contender.name for contender in suited}
    for name in args.contenders:
        if name not in names:
            raise faults.mark_collective(
                ValueError(f"{name} does not run {args.op} on {ranks} ranks of backend {backend}")
            )
    return [*(c for c in suited if c.name in (*args.contenders, "copy")), *levels]


def _cases(comm: Comm, args: argparse.Namespace) -> list[Case]:
    if args.block_scans or args.uses:
        return []
    if args.forms:
        return forms.cases(args.forms, comm.size, min(comm.allgather(binding.threads(None))))
    return [
        Case(BUILTIN[args.op], x, out, 1 << power, comm.size)
        for x, out in args.types
        for power in args.sizes
    ]


# ---- the facts of this run, for the report -------------------------------------------------


def _sharing(comm: Comm, bound: binding.Binding) -> int:
    """Return the number of ranks that share the memory of one device."""
    on_a_node = -(-comm.size // bound.nodes)
    if bound.name == "cpu":
        return on_a_node
    from ..cuda import gpus  # noqa: PLC0415 - a CPU run need not have CuPy

    fewest: int = min(comm.allgather(gpus.count()))
    return -(-on_a_node // fewest)


def _cpu(fallback: str) -> str:
    """Return the name of the processor, the level of the compiled kernels, and the threads."""
    found, count = library.load(), binding.threads(None)
    level = "NumPy" if found is None else found.name
    return f"{_processor(fallback)}, {level}, {count} thread{'s' * (count > 1)} a rank"


def _processor(fallback: str) -> str:
    """Return the name of the processor from ``/proc/cpuinfo``; ``fallback`` if it has none."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return fallback
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else fallback


def _versions(machine: Host) -> dict[str, str]:
    return {
        "distscan": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "mpi4py": version("mpi4py"),
    } | machine.versions()


def _of_libraries(versions: dict[str, str]) -> dict[str, str]:
    """Return the versions of the peers that ``_versions`` does not have."""
    named = ("cub", "by-hand-expert", "torch", "tbb", "heat", "scipy")
    return {name: versions[name] for name in named if name in versions}


def _print(comm: Comm, text: str) -> None:
    if comm.rank == 0:
        print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
