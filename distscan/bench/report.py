"""The report of rank 0: a header and tables for each type as text, all as JSON, or a picture."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from math import nan
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from .contenders import CONTENDERS
from .timing import Row, Stats, clock
from .uses import OURS

if TYPE_CHECKING:
    from .textbook import Tables  # which needs CuPy

_WIDTH = 100  # characters
_NAME = 15  # characters of a contender's name
_COLUMNS = 9  # sizes side by side: as many as fit the width


@dataclass
class Report:
    """All facts and results of a run."""

    command: str
    date: str  # such as "2026-11-22"
    chip: str
    backend: str
    ranks: int
    nodes: int
    mpi: str
    versions: dict[str, str]
    missing: dict[str, str]  # contenders that cannot run here, and why
    op: str
    repeat: int
    cache_bytes: int
    peak: float | None  # bytes per second of the chip's memory
    results: list[Row]
    cpu_time: bool = False  # whether the wall clock's times are the processors'
    block_scans: "Tables | None" = None  # with --block-scans; there are no other results then
    idioms: dict[str, str] | None = None  # with --forms: NumPy's way of each form
    clocks: dict[str, str] | None = None  # with --uses: the time of each use that counts

    def plain(self) -> dict[str, Any]:
        """Return the report as values for JSON."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["results"] = [row.plain() for row in self.results]
        tables = values.pop("block_scans")
        for name in ("idioms", "clocks"):
            if values[name] is None:
                del values[name]
        return values | ({} if tables is None else {"block_scans": tables.plain()})


def text(report: Report) -> str:
    """Return the report as text for people."""
    lines = _header(report)
    if report.idioms is not None:
        return "\n".join(lines + form_lines(report.results, report.idioms))
    if report.clocks is not None:
        return "\n".join(lines + use_lines(report.results, report.clocks))
    for name in dict.fromkeys(row.type for row in report.results):
        rows = [row for row in report.results if row.type == name]
        lines += ["", *_tables(rows, report.ranks), *_copy(rows, report), *_remarks(rows)]
    if report.block_scans is not None:
        lines += report.block_scans.lines()
    return "\n".join(lines)


def _header(report: Report) -> list[str]:
    nodes = f" on {report.nodes} nodes" if report.nodes > 1 else ""
    facts = {
        "chip": f"{report.chip}, last cache {report.cache_bytes / 2**20:.0f} MiB",
        "ranks": f"{report.ranks}{nodes}, {report.mpi}",
        "versions": ", ".join(" ".join(item) for item in report.versions.items()),
        "command": f"{report.command}  ({report.date})",
    } | ({"clock": "the wall clock is the processors' time"} if report.cpu_time else {})
    # Not wrapped, so that the command can be copied.
    lines = [f"{name:9}{value}" for name, value in facts.items()]
    lines += [f"{name}: {reason}" for name, reason in report.missing.items()]
    lines += [f"{report.op}: medians of {report.repeat}, by elements per rank"]
    return lines


def _tables(rows: Sequence[Row], ranks: int) -> list[str]:
    """Return tables of device time, wall clock and share of the copy's speed.

    A table has a line for each contender and a column for each size.
    """

    def time(which: str) -> Callable[[Row], str]:
        def cell(row: Row) -> str:
            stats: Stats | None = getattr(row, which)
            return _microseconds(stats.median) if stats else ""

        return cell

    def share(row: Row) -> str:
        return "" if row.share is None else f"{row.share:.2f}"

    which = clock(rows, ranks)
    kinds = [
        ("device time, us", time("device_us")),
        ("wall clock of one call, us", time("wall_us")),
        (f"share of the copy's speed by {'device time' if which == 'device_us' else 'wall clock'}"
         "; moved: bytes per element", share),
    ]  # fmt: skip
    if not any(row.device_us for row in rows):
        del kinds[0]
    sizes = sorted({row.n for row in rows})
    lines = []
    for begin in range(0, len(sizes), _COLUMNS):
        columns = sizes[begin : begin + _COLUMNS]
        width = max(8, 2 + max(len(size_text(n)) for n in columns))
        for title, cell in kinds:
            last = title.startswith("share")
            lines.append(f"{rows[0].type}  {title}")
            head = "".join(f"{size_text(n):>{width}}" for n in columns)
            lines.append(f"{'':{_NAME}}{head}{'  moved' if last else ''}")
            for name in dict.fromkeys(row.contender for row in rows):
                by_size = {row.n: row for row in rows if row.contender == name}
                cells = "".join(f"{_cell(by_size.get(n), cell):>{width}}" for n in columns)
                moved = _moved_text(by_size.values()) if last else ""
                lines.append(f"{name:{_NAME}}{cells}{moved:>7}".rstrip())
    return lines


def _copy(rows: Sequence[Row], report: Report) -> list[str]:
    """Return the speed of the largest copy, and its share of the memory's peak."""
    which = clock(rows, report.ranks)
    copies = [row for row in rows if row.contender == "copy" and getattr(row, which) and row.moved]
    if not copies:
        return []
    row = max(copies, key=lambda row: row.n)
    rate = (row.moved or 0) / getattr(row, which).median * 1e6
    number = f"{rate / 1e12:.2f} TB/s" if rate >= 1e12 else f"{rate / 1e9:.1f} GB/s"
    share = f", {rate / report.peak:.2f} of the memory's peak" if report.peak else ""
    return [f"copy at {size_text(row.n)}: {number}{share}"]


def _cell(row: Row | None, cell: Callable[[Row], str]) -> str:
    if row is None:
        return ""
    if row.status == "timed":
        return cell(row)
    return "-" if row.status == "skipped" else row.status


def _moved_text(rows: Any) -> str:
    """Return the bytes per element that a contender moves; empty if they are not known."""
    return next((f"{row.moved // row.n}" for row in rows if row.moved), "")


def _remarks(rows: Sequence[Row]) -> list[str]:
    """Return remarks: the faults, once for each contender and reason, and the spread of samples."""
    failures: dict[tuple[str, str, str], list[int]] = {}
    for row in rows:
        if row.status != "timed":
            who = "" if row.status == "skipped" else row.contender
            failures.setdefault((who, row.status, row.message), []).append(row.n)
    lines = []
    for (who, status, message), sizes in failures.items():
        where = ", ".join(dict.fromkeys(size_text(n) for n in sizes))
        lines.append(f"{who or 'all'}: {status} at {where}: {message}")
    for title, which in (("device time", "device_us"), ("wall clock", "wall_us")):
        spreads = [
            ((stats.q3 - stats.q1) / stats.median, f" ({row.contender}, {size_text(row.n)})")
            for row in rows
            if (stats := getattr(row, which))
        ]
        lines += _spread_line(title, spreads)
    batched = sorted({(row.batch, row.n) for row in rows if row.device_us and row.batch > 1})
    if batched:
        most, last = batched[-1][0], max(n for _, n in batched)
        lines.append(
            f"device time up to {size_text(last)}: of up to {most} calls back to back, "
            "divided by their number"
        )
    return [line for long in lines for line in wrap(long, _WIDTH, subsequent_indent="  ")]


def _spread_line(title: str, spreads: Sequence[tuple[float, str]]) -> list[str]:
    """Return a line about the distances of quartiles, each with the name of its row."""
    if not spreads:
        return []
    (middle, _), (widest, name) = sorted(spreads)[len(spreads) // 2], max(spreads)
    return [
        f"quartiles of the {title} apart: {middle:.0%} of the median as a rule, "
        f"at most {widest:.0%}{name}"
    ]


def _microseconds(us: float) -> str:
    return f"{us:.1f}" if us < 9999.95 else f"{us:.0f}"


def size_text(n: int) -> str:
    """Return a number of elements as text.

    >>> size_text(1024), size_text(1000)
    ('2^10', '1000')
    """
    return f"2^{n.bit_length() - 1}" if n & (n - 1) == 0 else str(n)


# ---- the table of forms ---------------------------------------------------------------------


def form_lines(rows: Sequence[Row], idioms: Mapping[str, str]) -> list[str]:
    """Return the table: shares of the copy's speed, and times NumPy."""
    by_key = {(row.type, row.contender): row for row in rows}
    names = [name for name in dict.fromkeys(row.contender for row in rows) if name != "copy"]
    base = "numpy" if "numpy" in names else "by-hand"
    names.sort(key=lambda name: name != base)  # stable: the base comes first
    table = [
        "",
        f"share of the copy's speed, and times {base}; copy: GB/s of a rank, both ways",
        f"{'':30}{'copy':>6}" + "".join(f"{name:>{_width(name, base)}}" for name in names),
    ]
    for title in idioms:
        cells = [f"{_copy_speed(by_key.get((title, 'copy'))):>6}"]
        for name in names:
            row = by_key.get((title, name))
            cells.append(f"{_form_cell(row, timed=name != base):>{_width(name, base)}}")
        table.append(f"{title:30}{''.join(cells)}".rstrip())
    spreads = [(row.spread, "") for row in rows if row.spread and row.contender != "copy"]
    table += _spread_line("shares", spreads)
    table += [f"{row.contender}, {row.type}: {row.status}: {row.message}"
             for row in rows if row.status != "timed"]  # fmt: skip
    if base != "numpy":
        return table
    table += ["", "numpy:"]
    for idiom in dict.fromkeys(idioms.values()):
        titles = "; ".join(title for title, other in idioms.items() if other == idiom)
        table += wrap(f"{titles}: {idiom}", _WIDTH, subsequent_indent="    ")
    return table


def _form_cell(row: Row | None, *, timed: bool) -> str:
    if row is None:
        return ""
    if row.share is None:
        return row.status
    return f"{row.share:.2f}" + (f"{row.times:6.1f}x" if timed and row.times else "")


def _width(name: str, base: str) -> int:
    return 9 if name == base else 14


def _copy_speed(copy: Row | None) -> str:
    if copy is None or copy.wall_us is None or copy.moved is None:
        return ""
    return f"{copy.moved / copy.wall_us.median / 1e3:.1f}"


# ---- the table of uses ----------------------------------------------------------------------

_TITLE = 43  # characters


def use_lines(rows: Sequence[Row], clocks: dict[str, str]) -> list[str]:
    """Return the table: a line for each use, then for each row without a time."""
    table = [
        "",
        "copy: of the bytes that the use must read and write; share: the copy's time by distscan's",
        f"{'us of a call':{_TITLE}}{'copy':>8}{'best peer':>17}{'distscan':>10}{'share':>7}"
        f"{'clock':>8}  other peers",
    ]
    for title, which in clocks.items():
        by_name = {row.contender: row for row in rows if row.type == title}
        row, copy = by_name.pop(OURS), by_name.pop("copy", None)
        times = {name: _us(row, which) for name, row in by_name.items() if row.status == "timed"}
        peers = [
            f"{name} {_microseconds(us)}" for name, us in sorted(times.items(), key=lambda i: i[1])
        ]
        share = "" if row.share is None else f"{row.share:.2f}"
        copied = _microseconds(_us(copy, "device_us")) if copy and copy.status == "timed" else ""
        time = _microseconds(_us(row, which)) if row.status == "timed" else row.status
        table.append(
            f"{title:{_TITLE}}{copied:>8}{peers[0] if peers else '-':>17}{time:>10}{share:>7}"
            f"{which.removesuffix('_us'):>8}  {', '.join(peers[1:])}".rstrip()
        )
    return table + [f"{row.contender}, {row.type}: {row.status}: {row.message}"
                   for row in rows if row.status != "timed"]  # fmt: skip


def _us(row: Row, which: str) -> float:
    """Return the time of a row on a clock; on the wall's where there is no device's."""
    time: Stats | None = getattr(row, which) or row.wall_us
    return time.median if time else nan


# ---- a picture: share of the copy's speed against size, a panel for each type ---------------

# Colours by Okabe and Ito, and by Tol, that the colour-blind can tell apart. The copy is black.
_COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#999933",
            "#44AA99", "#332288", "#661100", "#6699CC", "#888888", "#DDCC77"]  # fmt: skip
_MARKERS = "osD^vP*Xh<p>d8"


def plot(report: Report, path: Path) -> None:
    """Write the picture to ``path``. Its background is white, also for dark pages."""
    import matplotlib  # noqa: PLC0415 - only plots need it

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    types = list(dict.fromkeys(row.type for row in report.results))
    names = list(dict.fromkeys(row.contender for row in report.results))
    style = {  # the same in every plot
        contender.name: {
            "color": _COLOURS[i % len(_COLOURS)],
            "marker": _MARKERS[i % len(_MARKERS)],
        }
        for i, contender in enumerate(CONTENDERS[1:])
    }
    across = min(2, len(types))
    down = -(-len(types) // across)
    with plt.rc_context({"font.size": 10, "svg.fonttype": "path"}):
        figure, axes = plt.subplots(
            down, across, figsize=(5.2 * across, 3.4 * down + 1), squeeze=False, sharey=True,
            facecolor="white", layout="constrained",
        )  # fmt: skip
        for ax in axes.flat[len(types) :]:
            ax.set_visible(False)
        lines: dict[str, Any] = {}
        for ax, name in zip(axes.flat, types, strict=False):
            lines |= _panel(ax, report, name, style)
        best = max((row.share for row in report.results if row.share is not None), default=1)
        axes[0, 0].set_ylim(0, 1.05 * max(best, 1))
        which = clock(report.results, report.ranks).split("_")[0]
        ranks = f", {report.ranks} ranks" * (report.ranks > 1)
        figure.suptitle(
            f"{report.op} scan, {report.chip}{ranks}\n"
            f"share of the speed of a {'device-to-device ' * (report.backend == 'cuda')}copy, "
            f"by {'device time' if which == 'device' else 'wall clock'}"
        )
        order = [name for name in names if name in lines]
        figure.legend(
            [lines[name] for name in order],
            order,
            loc="outside lower center",
            ncols=5,
            frameon=False,
        )
        figure.savefig(path, format="svg", facecolor="white", metadata={"Date": None})
        plt.close(figure)


def _panel(ax: Any, report: Report, name: str, style: dict[str, dict[str, str]]) -> dict[str, Any]:
    """Draw the panel of one type. Return the line of each contender, for the legend."""
    lines = {"copy": ax.axhline(1, color="black", linewidth=1, linestyle="--")}
    rows = [row for row in report.results if row.type == name and row.share is not None]
    for contender, look in style.items():
        points = sorted((row.n, row.share) for row in rows if row.contender == contender)
        if points:
            n, share = zip(*points, strict=True)
            (lines[contender],) = ax.plot(n, share, linewidth=1.6, markersize=5, **look)
    ax.set_xscale("log", base=2)
    ax.set_title(name.replace(":", " to "))
    ax.set_xlabel("elements per rank")
    ax.set_ylabel("share of copy (1 = as fast)")
    ax.grid(color="0.88", linewidth=0.6)
    ax.spines[["top", "right"]].set_visible(False)
    return lines
