"""``python -m distscan bench``: its arguments, the run, the comparison with an earlier one."""

import argparse
import importlib.util
import json
import platform
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .. import __version__, binding, cli
from ..cli import Parser, ProgressBar
from ..core.errors import DistscanError
from ..core.operators import BUILTIN
from ..cpu import compiled, library, stores
from ..mpi import agree, communicators
from ..mpi.agree import agreed
from ..mpi.communicators import Comm
from . import gradients, report, timing, uses
from .case import form_cases, sized_cases
from .contenders import ALL_OPS, CONTENDERS, CaseTrial, Contender, find_present, lesser_levels
from .report import Report, size_text
from .timing import Gpu, Host, Trial
from .uses import UseTrial

# ---- arguments ------------------------------------------------------------------------------

_LEAST = 11  # samples
_LARGEST = 36  # 2^36 elements
# The options of tables by size alone.
_SIZED = ("exclusive", "segments", "rows", "graphs", "cached")
_SEGMENTS = {"flags": np.dtype(np.bool_), "keys": np.dtype(np.int32)}
_BARRED = {  # for each mode, the options that it does not have
    "forms": ("sizes", "types", "op", "plot", "block_scans", *_SIZED),
    "uses": ("types", "op", "plot", "block_scans", "forms", "contenders", *_SIZED),
    "gradients": ("types", "op", "plot", "block_scans", "forms", "uses", "contenders", *_SIZED),
    "block_scans": ("against", "plot", *_SIZED),
}
# The options that ask for tables by size.
_BY_SIZE = ("sizes", "types", "op", "plot", "against", "block_scans", *_SIZED)
_SIZES, _TYPES = "10:28:2", "float32,float64,int32,int64"
MIB = 128  # of the wider array, with --forms
OF_FORMS = ("copy", "numpy", "single-pass", "reduce-scan", "scan-add", "by-hand", "torch", "tbb")


def parser() -> Parser:
    """Return the parser of the command line."""
    command = Parser(
        "bench",
        description="distscan, a plain copy and the peers that are installed, side by side.",
        epilog="example: mpirun -n 4 python -m distscan bench --sizes 20:30 --plot bench.svg",
    )
    add = command.add_argument
    add("--sizes", type=_sizes, metavar="A[:B[:STEP]],...",
        help="elements per rank, powers of two (default: 10:28:2)")  # fmt: skip
    add("--types", type=_types, metavar="T[:OUT],...",
        help=f"of input and result, such as int8:int64 (default: {_TYPES})")  # fmt: skip
    add("--op", choices=ALL_OPS, help="the operator (default: sum)")
    add("--exclusive", action="store_true", help="scan exclusively")
    add("--segments", choices=_SEGMENTS,
        help="scan segments of 64 elements on average, by head flags or by int32 keys")  # fmt: skip
    add("--rows", type=_row, metavar="N", help="on one rank: scan along rows of N elements")
    add("--forms", type=_mib, nargs="?", const=MIB, metavar="MIB",
        help="instead: every form of a scan on CPUs, beside NumPy, in arrays of so many MiB "
        f"(default: {MIB}); on CPUs without --sizes, --types, --op, --against and --plot, "
        "this is the default")  # fmt: skip
    add("--levels", action="store_true",
        help="with --forms: also the lesser levels of instructions that are built")  # fmt: skip
    add("--uses", action="store_true",
        help="instead: what scans are used for, such as segments by key, beside what users would "
        "take; --sizes A leaves at most 2^A elements to each rank")  # fmt: skip
    add("--gradients", action="store_true",
        help="instead: forward and backward passes of distscan.torch, beside torch's")  # fmt: skip
    add("--contenders", type=_names, metavar="A,B,...",
        help="only these, and the copy; --list names them")  # fmt: skip
    add("--backend", choices=("auto", "cpu", "cuda"), default="auto",
        help="auto takes the GPUs if every rank has one (default: auto)")  # fmt: skip
    add("--repeat", type=_repeat, default=_LEAST, metavar="N",
        help=f"samples of each, {_LEAST} or more (default: {_LEAST})")  # fmt: skip
    add("--json", metavar="FILE", help="everything as JSON; - is stdout, instead of the tables")
    add("--plot", type=Path, metavar="FILE.svg", help="share of the copy's speed against size")
    add("--against", type=Path, metavar="FILE",
        help="an earlier --json; status 1 where a share of the copy fell")  # fmt: skip
    add("--limit", type=_percent, metavar="PERCENT",
        help="that a share may fall by (default: 5 on GPUs, 20 on CPUs)")  # fmt: skip
    add("--graphs", action="store_true",
        help="on GPUs: the device's time of calls in a CUDA graph, without the host's; only of "
        "contenders whose calls a graph can hold")  # fmt: skip
    add("--cached", action="store_true",
        help="on GPUs: all calls have the same buffers, which stay in the cache if they "
        "fit")  # fmt: skip
    add("--cpu-time", action="store_true",
        help="on CPUs: the processors' time of a rank's threads, not the wall clock's, for a "
        "machine that others use, too")  # fmt: skip
    add("--block-scans", action="store_true",
        help="instead: the block scans and the chains of the literature, on one GPU")  # fmt: skip
    add("--list", action="store_true", help="list the contenders, and their versions here")
    return command


def check_arguments(args: argparse.Namespace) -> None:
    """Refuse arguments that contradict each other, and a plot without matplotlib; set defaults.

    ``args.by_size`` is whether the arguments ask for tables by size.
    """
    for mode, barred in _BARRED.items():
        for name in barred if getattr(args, mode) else ():
            if getattr(args, name):
                raise ValueError(f"--{name} is not for --{mode}".replace("_", "-"))
    args.of_uses = args.uses or args.gradients
    args.by_size = not (args.forms or args.of_uses) and any(getattr(args, n) for n in _BY_SIZE)
    args.most = max(args.sizes) if args.sizes else None  # for --uses and --gradients
    if args.gradients and importlib.util.find_spec("torch") is None:
        raise DistscanError("--gradients needs PyTorch; install it: pip install '.[torch]'")
    if args.levels and (args.by_size or args.of_uses):
        raise ValueError("--levels is for --forms: add --forms, or leave --levels out")
    if args.rows and args.segments:
        raise ValueError("--rows is not for --segments")
    if args.limit is not None and args.against is None:
        raise ValueError("--limit is for --against: name an earlier report by --against FILE")
    args.sizes, args.types = args.sizes or _sizes(_SIZES), args.types or _types(_TYPES)
    args.op = args.op or "sum"
    if args.op in {"sum", "prod"} and any(out == np.float16 for _, out in args.types):
        raise ValueError(f"{args.op} in float16 is not exact, so cannot be checked")
    if args.plot and importlib.util.find_spec("matplotlib") is None:
        raise DistscanError("--plot needs matplotlib; install it: pip install '.[bench]'")


def _sizes(text: str) -> list[int]:
    """Read powers of two and ranges of them.

    >>> _sizes("10,20:24:2")
    [10, 20, 22, 24]
    """
    powers: set[int] = set()
    for part in text.split(","):
        numbers = [int(number) if number.isdecimal() else -1 for number in part.split(":")]
        low, high, step = (numbers + [numbers[0], 1][len(numbers) - 1 :])[:3]
        if len(numbers) > 3 or not 0 <= low <= high <= _LARGEST or step < 1:
            raise argparse.ArgumentTypeError(
                f"sizes are powers A or ranges A:B[:STEP], 0 <= A <= B <= {_LARGEST}, not {text!r}"
            )
        powers.update(range(low, high + 1, step))
    return sorted(powers)


def _number(kind: type, least: float, most: float, rule: str) -> Callable[[str], Any]:
    """Return the reader of a number that is in a range; the rule is in the message of others."""

    def number(text: str) -> Any:
        if not least <= kind(text) <= most:
            raise argparse.ArgumentTypeError(f"{rule}, not {text!r}")
        return kind(text)

    return number


_row = _number(int, 1, 1 << _LARGEST, f"rows have 1 to 2^{_LARGEST} elements")
_mib = _number(int, 1, 1 << 16, "arrays have 1 to 65536 MiB")
_repeat = _number(int, _LEAST, 1 << 32, f"a median needs {_LEAST} samples or more")
_percent = _number(float, 0, 100, "a share falls by 0 to 100 %")


def _types(text: str) -> list[tuple[np.dtype[Any], np.dtype[Any]]]:
    pairs = []
    for name in text.split(","):
        x, _, out = name.partition(":")
        try:
            pair = np.dtype(x), np.dtype(out or x)
        except TypeError as error:
            raise argparse.ArgumentTypeError(f"{name!r} is no type and no pair X:OUT") from error
        if not all(dtype.kind in "iuf" for dtype in pair):
            raise argparse.ArgumentTypeError(f"{name!r}: integers and floats are timed")
        if np.result_type(*pair) != pair[1]:
            raise argparse.ArgumentTypeError(f"{name!r}: the result cannot hold the input")
        pairs.append(pair)
    return pairs


def _names(text: str) -> list[str]:
    names, available = text.split(","), [contender.name for contender in CONTENDERS]
    for name in names:
        if name not in available:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(available)}")
    return names


# ---- --against FILE: the comparison of this run with an earlier one -------------------------
# Both runs have shares of the speed of their own copy. A machine that is slower in everything has
# the same shares, so it does not fail.

OURS = (
    "single-pass",
    "reduce-scan",
    "scan-add",
    "distscan.scan",
    "distscan",
)  # only these can fail
LIMITS = {"cuda": 5.0, "cpu": 20.0}  # the most per cent that a share may fall, for each backend


class Key(NamedTuple):
    """The key of a share: shares with the same key are compared."""

    type: str  # as on the command line
    contender: str
    n: int  # elements per rank


class Baseline(NamedTuple):
    """An earlier run, as ``--json`` wrote it."""

    path: str
    date: str
    chip: str
    command: str
    setting: dict[str, object]  # must be the same in both runs: else shares cannot be compared
    shares: dict[Key, float]  # of all contenders that were timed


def setting_of(backend: str, ranks: int, op: str) -> dict[str, object]:
    """Return the facts that must be the same in two runs that are compared."""
    return {"backend": backend, "ranks": ranks, "op": op}


def read_baseline(path: Path, setting: dict[str, object], planned: Iterable[Key]) -> Baseline:
    """Read a report of an earlier run.

    ``setting`` and ``planned`` are the setting of this run and the keys that it will measure.
    Raises ValueError if the file is not a report, or cannot be compared with this run.
    """
    try:
        stored = json.loads(path.read_text())
        rows = [row for row in stored["results"] if row["contender"] != "copy"]
        baseline = Baseline(
            str(path),
            str(stored.get("date", "no date")),
            str(stored["chip"]),
            str(stored["command"]),
            setting_of(stored["backend"], stored["ranks"], stored["op"]),
            {
                Key(row["type"], row["contender"], row["n"]): float(row["share"])
                for row in rows
                if row["share"]
            },
        )
    except OSError as error:
        raise ValueError(f"--against: {error.strerror}: {path}; --json FILE writes one") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"--against: {path} is no report that --json wrote") from error
    for name, value in setting.items():
        if baseline.setting[name] != value:
            raise ValueError(
                f"--against: {path} has {name} {baseline.setting[name]}, this run {value}"
            )
    if baseline.shares.keys().isdisjoint(planned):
        raise ValueError(
            f"--against: {path} has nothing that this run measures; it was made by: "
            f"{baseline.command}"
        )
    return baseline


def compare(baseline: Baseline, report: Report, limit: float) -> tuple[list[str], bool]:
    """Return the lines of the table, and whether the comparison fails.

    The comparison fails if a share of ``OURS`` fell by more than ``limit`` per cent, and if no
    share of ``OURS`` could be compared.
    """
    rows = {Key(row.type, row.contender, row.n): row for row in report.results}
    rows = {key: row for key, row in rows.items() if key.contender != "copy"}
    lines = [
        "",
        f"against {baseline.path} ({baseline.date}, {baseline.chip})",
        f"{'share of the copy':24}{'size':>8}{'old':>8}{'new':>8}{'change':>9}",
    ]
    compared = fell = 0
    for key, row in rows.items():
        old = baseline.shares.get(key)
        if old is None or row.status == "skipped":
            continue
        change = -1.0 if row.share is None else row.share / old - 1
        down = key.contender in OURS and change * 100 < -limit
        new = row.status if row.share is None else f"{row.share:.2f}"
        compared, fell = compared + (key.contender in OURS), fell + down
        lines.append(
            f"{key.contender:15}{key.type:9}{size_text(key.n):>8}{old:8.2f}{new:>8}"
            f"{change:+9.0%}{'  fell' if down else ''}"
        )
    here = {key for key, row in rows.items() if row.status != "skipped"}
    lines += _list_keys("only in the baseline", [key for key in baseline.shares if key not in here])
    lines += _list_keys("only in this run", [key for key in rows if key not in baseline.shares])
    lines.append(f"{fell} of {compared} shares of distscan fell by more than {limit:g} %")
    return lines, fell > 0 or compared == 0


def _list_keys(title: str, keys: Sequence[Key]) -> list[str]:
    """List the keys that only one of the runs has: a line for each contender and type."""
    sizes_by_row: dict[tuple[str, str], list[str]] = {}
    for key in keys:
        sizes_by_row.setdefault((key.contender, key.type), []).append(size_text(key.n))
    return [f"{title}: {' '.join(row)} {', '.join(sizes)}" for row, sizes in sizes_by_row.items()]


# ---- the run, and its exit status -----------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Run on every rank; return the exit status, which is the same on all ranks."""
    return cli.run("distscan", _main, argv)


def _main(comm: Comm, argv: Sequence[str]) -> int:
    args = cli.arguments(comm, argv, parser(), check_arguments)
    if args is None:
        return 0
    bar = ProgressBar(quiet=comm.rank > 0)
    bound = binding.bind(comm, args.backend, bar.warn)
    name, _, reason = bound.device.partition(": ")
    if reason:
        bar.warn(f"runs on the CPU: {reason}")
    sharing = _count_sharing(comm, bound)
    with agreed(comm):
        how = {"graphs": args.graphs, "cached": args.cached}
        if bound.name == "cuda":
            machine: Host = Gpu(name, sharing, **how)
        else:
            machine = Host(_cpu(), sharing, cpu_time=args.cpu_time)
    if args.list:
        _list(comm)
        return 0
    _check_machine(args, machine.backend, comm.size)
    if not (args.forms or args.of_uses or args.by_size) and machine.backend == "cpu":
        args.forms = MIB
    trials, versions, missing = _trials(comm, args, machine.backend)
    modes = [mode for mode in ("forms", "uses", "gradients") if getattr(args, mode)]
    op = modes[0] if modes else _form(args)
    planned = {Key(trial.title, name, trial.n) for trial in trials for name in trial.names}
    setting = setting_of(machine.backend, comm.size, op)
    with agreed(comm):
        baseline = None
        if args.against and comm.rank == 0:
            baseline = read_baseline(args.against, setting, planned)
    try:
        options = {"repeat": args.repeat, "notify": bar.show}
        rows = timing.run(comm, machine, trials, **options)
        tables = None
        if args.block_scans:
            from . import textbook  # noqa: PLC0415 - a CPU run need not have CuPy

            tables = textbook.run(comm, machine, **options)
    finally:
        bar.clear()
    result = Report(
        command=" ".join(["python -m distscan bench", *argv]),
        date=time.strftime("%Y-%m-%d"),
        chip=machine.name,
        backend=machine.backend,
        ranks=comm.size,
        nodes=bound.nodes,
        mpi=communicators.mpi_version(),
        versions=_versions(machine) | _library_versions(versions),
        missing=missing,
        op=op,
        repeat=args.repeat,
        cache_bytes=machine.cache,
        peak=machine.peak,
        results=rows,
        cpu_time=args.cpu_time,
        block_scans=tables,
        idioms={t.title: t.case.idiom for t in trials if isinstance(t, CaseTrial)}
        if args.forms
        else None,
        clocks={
            t.title: t.clock(machine.backend, comm.size) for t in trials if isinstance(t, UseTrial)
        }
        or None,
    )
    fell = False
    with agreed(comm):
        if comm.rank == 0:
            _write(result, args.json, args.plot)
            if baseline is not None:
                limit = LIMITS[machine.backend] if args.limit is None else args.limit
                lines, fell = compare(baseline, result, limit)
                print("\n".join(lines), file=sys.stderr if args.json == "-" else None, flush=True)
    return int(comm.bcast(fell))


def _form(args: argparse.Namespace) -> str:
    """Return what the tables by size are of, such as "exclusive sum by keys"."""
    words = ["exclusive"] if args.exclusive else []
    words += [args.op]
    words += [f"by {args.segments}"] if args.segments else []
    words += [f"in rows of {args.rows}"] if args.rows else []
    return " ".join(words)


def _check_machine(args: argparse.Namespace, backend: str, ranks: int) -> None:
    """Refuse, on all ranks, arguments that are for another backend or another number of ranks."""
    if args.block_scans and (backend, ranks) != ("cuda", 1):
        where = f"{ranks} of backend {backend}"
        raise agree.mark_collective(
            ValueError(f"--block-scans is for one rank with a GPU, not {where}")
        )
    if args.rows and ranks > 1:
        raise agree.mark_collective(ValueError(f"--rows is for one rank, not {ranks}"))
    for option in ("cached", "graphs"):
        if getattr(args, option) and backend != "cuda":
            raise agree.mark_collective(ValueError(f"--{option} is for GPUs"))
    if args.cpu_time and backend != "cpu":
        raise agree.mark_collective(ValueError("--cpu-time is for CPUs"))
    if (args.forms or args.levels) and backend != "cpu":
        raise agree.mark_collective(ValueError("--forms and --levels are for CPUs"))


def _write(result: Report, to_json: str | None, to_plot: Path | None) -> None:
    if to_json == "-":
        print(json.dumps(result.plain()), flush=True)
    else:
        print(report.text(result), flush=True)
        if to_json:
            Path(to_json).write_text(json.dumps(result.plain(), indent=1) + "\n")
    if to_plot:
        report.plot(result, to_plot)


def _list(comm: Comm) -> None:
    """Print a table of all contenders: their backends, ranks, operators, and versions here."""
    _, versions, missing = find_present(comm, CONTENDERS)
    lines = [f"{'':16}{'backends':10}{'ranks':9}{'operators':19}here"]
    for contender in CONTENDERS:
        here = versions.get(contender.name) or missing[contender.name]
        lines.append(
            f"{contender.name:16}{','.join(contender.backends):10}{contender.ranks:9}"
            f"{','.join(contender.ops):19}{here}"
        )
    if comm.rank == 0:
        print("\n".join(lines), flush=True)


def _contenders(args: argparse.Namespace, backend: str, ranks: int) -> list[Contender]:
    """Return the contenders of ``--contenders``, and the copy, the measure for all of them."""
    suited = [c for c in CONTENDERS if c.suits(backend, ranks, args.op)]
    suited = [c for c in suited if c.capturable or not args.graphs]
    levels = lesser_levels() if args.levels else []
    if args.contenders is None:
        one = {"reduce-scan", "scan-add"} if ranks == 1 else set()  # these are for several ranks
        of_forms = [c for c in suited if c.name in OF_FORMS and c.name not in one]
        return [*of_forms, *levels] if args.forms else suited
    names = {contender.name for contender in suited}
    for name in args.contenders:
        if name not in names:
            raise agree.mark_collective(
                ValueError(
                    f"{name} does not run {args.op} on {ranks} ranks of backend {backend}"
                    + " in a CUDA graph" * args.graphs
                )
            )
    return [*(c for c in suited if c.name in (*args.contenders, "copy")), *levels]


def _trials(
    comm: Comm, args: argparse.Namespace, backend: str
) -> tuple[list[Trial], dict[str, str], dict[str, str]]:
    """Return the trials, the versions of their contenders, and the faults of others."""
    if args.of_uses:
        any_ranks, among = comm.size > 1, gradients.PEERS if args.gradients else uses.PEERS
        suited = [p for p in among if backend in p.backends and p.any_ranks >= any_ranks]
        peers, versions, missing = find_present(comm, suited)
        most = uses.MOST[backend] if args.most is None else args.most
        if args.gradients:
            every = gradients.all_passes(comm.size, most)
        else:
            every = uses.all_uses(backend, most)
        return [UseTrial(use, peers) for use in every], versions, missing
    contenders, versions, missing = find_present(comm, _contenders(args, backend, comm.size))
    cases = sized_cases(
        BUILTIN[args.op],
        args.types,
        args.sizes,
        comm.size,
        exclusive=args.exclusive,
        segments=args.segments and _SEGMENTS[args.segments],
        row=args.rows or 0,
    )
    if args.forms:
        cases = form_cases(args.forms, comm.size, min(comm.allgather(binding.threads(None))))
    if args.block_scans:
        cases = []
    return [CaseTrial(case, contenders) for case in cases], versions, missing


# ---- the facts of this run, for the report -------------------------------------------------


def _count_sharing(comm: Comm, bound: binding.Binding) -> int:
    """Return the number of ranks that share the memory of one device."""
    on_a_node = -(-comm.size // bound.nodes)
    if bound.name == "cpu":
        return on_a_node
    from ..cuda import memory  # noqa: PLC0415 - a CPU run need not have CuPy

    fewest: int = min(comm.allgather(memory.count()))
    return -(-on_a_node // fewest)


def _cpu() -> str:
    """Return the name of the processor, how its kernels work, and the threads."""
    kernels, count = library.load(), binding.threads(None)
    how = "NumPy"
    if kernels is not None:
        levels = ", ".join(library.built_levels())
        way = "past" if compiled.go_past_caches() else "through"
        how = f"{kernels.name} of {levels}, large results {way} the caches"
    return f"{stores.processor()}, {how}, {count} thread{'s' * (count > 1)} a rank"


def _versions(machine: Host) -> dict[str, str]:
    return {
        "distscan": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "mpi4py": version("mpi4py"),
    } | machine.versions()


def _library_versions(versions: dict[str, str]) -> dict[str, str]:
    """Return the versions of the peers that ``_versions`` does not have."""
    named = ("cub", "by-hand-expert", "torch", "jax", "dask", "tbb", "heat", "scipy")
    return {name: versions[name] for name in named if name in versions}


if __name__ == "__main__":
    sys.exit(main())
