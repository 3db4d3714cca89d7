"""The pictures of the docs, drawn from the scans that they show.

``python docs/pictures.py`` writes docs/pictures/*.svg, which are checked in, so that the pages show
them without a build. Each scan is computed step by step and compared with the plain sum, so that
no picture shows a wrong number. One picture shows times that were measured.
"""

import json
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

from drawing import COLOURS, LINE, PLAIN, Move, arrow, box, picture, row, steps
from matplotlib import rc_context
from matplotlib.figure import Figure

VALUES = [3, 1, 7, 0, 4, 1, 6, 3]
N = len(VALUES)
MEASURED = Path(__file__).resolve().parent / "measured"
Row = tuple[str, list[Any], list[Move]]


# ---- the block scans of the literature -----------------------------------------------------


def hillis_steele() -> list[Row]:
    """Fewest steps: in the step of distance d every value takes in the one d before it."""
    rows: list[Row] = [("", VALUES, [])]
    for d in (1, 2, 4):
        old = rows[-1][1]
        new = [old[i - d] + old[i] if i >= d else old[i] for i in range(N)]
        moves = [(i - shift, i) for i in range(d, N) for shift in (d, 0)]
        rows.append((f"distance {d}", new, moves))
    return rows


def _up_sweep() -> list[Row]:
    rows: list[Row] = [("", VALUES, [])]
    for d in (1, 2, 4):
        rows.append(_step(rows[-1], f"up, {d}", [(i - d, i) for i in range(2 * d - 1, N, 2 * d)]))
    return rows


def _step(last: Row, label: str, pairs: list[Move]) -> Row:
    """Let the second place of each pair take in the first."""
    new = list(last[1])
    for begin, end in pairs:
        new[end] = last[1][begin] + last[1][end]
    return label, new, [move for begin, end in pairs for move in ((begin, end), (end, end))]


def brent_kung() -> list[Row]:
    """Least work: a tree of totals upwards, then the gaps between them downwards."""
    rows = _up_sweep()
    for d in (2, 1):
        pairs = [(i, i + d) for i in range(2 * d - 1, N - d, 2 * d)]
        rows.append(_step(rows[-1], f"down, {d}", pairs))
    return rows


def blelloch() -> list[Row]:
    """An exclusive scan: what comes before each part goes down the tree."""
    rows = _up_sweep()
    rows.append(("nothing before all", [*rows[-1][1][:-1], 0], [(N - 1, N - 1)]))
    for d in (4, 2, 1):
        old = rows[-1][1]
        new, moves = list(old), []
        for end in range(2 * d - 1, N, 2 * d):
            left = end - d
            new[left], new[end] = old[end], old[left] + old[end]
            moves += [(end, left), (left, end), (end, end)]
        rows.append((f"down, {d}", new, moves))
    assert rows[-1][1] == [0, *accumulate(VALUES)][:-1]
    inclusive = [before + own for before, own in zip(rows[-1][1], VALUES, strict=True)]
    rows.append(("with its own", inclusive, [(i, i) for i in range(N)]))
    return rows


def coarsened() -> list[Row]:
    """What is nearest first: here warps of 4, and one value per warp in shared memory."""
    half = N // 2
    warps = [*accumulate(VALUES[:half]), *accumulate(VALUES[half:])]
    first = warps[half - 1]
    pairs = [(half - 1, i) for i in range(half, N)]
    return [
        ("", VALUES, []),
        ("each warp", warps, [(i, i) for i in range(N)]),
        ("behind totals", [*warps[:half], *(first + x for x in warps[half:])], pairs),
    ]


BLOCK_SCANS: list[Callable[[], list[Row]]] = [hillis_steele, brent_kung, blelloch, coarsened]


# ---- levels, tiles, ranks ------------------------------------------------------------------

LEVELS = [
    ("node and cluster", "shard of rank", "MPI_Exscan"),
    ("device", "tile", "global memory"),
    ("block", "warp", "shared memory"),
    ("warp", "lane", "shuffles"),
    ("lane", "item", "registers"),
]


def hierarchy(path: Path) -> None:
    """From lane to node: a part of one level is the whole of the next."""
    with picture(path, 15, 8.6) as ax:
        ax.text(12.2, 0.35, "totals travel by", va="center", style="italic")
        for level, (whole, part, way) in enumerate(LEVELS):
            y = 0.7 + 1.6 * level
            ax.text(0.1, y + 0.4, whole, va="center", weight="bold")
            for i in range(4):
                colour = COLOURS[i] if i == 1 or level == 0 else PLAIN
                box(ax, 3.2 + 2.2 * i, y, f"{part} {i}", w=2.1, h=0.8, colour=colour)
            ax.text(12.2, y + 0.4, way, va="center")
            if level + 1 < len(LEVELS):
                for begin, end in ((5.4, 3.2), (7.5, 11.9)):
                    ax.plot((begin, end), (y + 0.8, y + 1.6), color=LINE, linewidth=0.7)


def look_ahead(path: Path) -> None:
    """How a tile gets what comes before it: a chain, a look back, a look at all totals."""
    totals = [3, 4, 2, 5, 1]
    before = [0, *accumulate(totals)]
    with picture(path, 9, 9.8) as ax:
        blocks = [COLOURS[i % 3] for i in range(6)]
        # A chain: each tile waits for the prefix of the one before.
        ax.text(0.1, 0.3, "Chained: a trip through L2 for each tile, one after the other")
        row(ax, 1.1, "prefix", [*before[1:], None], blocks)
        for i in range(5):
            arrow(ax, (3.05 + i, 1.1), (4.05 + i, 1.1), bend=-0.4)
        # Decoupled look-back: to the next prefix that is there, as far as that may be.
        ax.text(0.1, 2.6, "Look-back: tile 5 looks back until it meets a prefix")
        row(ax, 3.0, "total", [None, None, *totals[2:], None], blocks)
        row(ax, 3.9, "prefix", [before[1], before[2], None, None, None, None], blocks)
        row(ax, 5.4, "before tile 5", [None] * 5 + [before[2] + sum(totals[2:])], [PLAIN] * 6)
        for i in (1, 2, 3, 4):
            arrow(ax, (3.05 + i, 4.6 if i == 1 else 3.7), (8.05, 5.4))
        # What distscan does: all totals at once, in a fixed tree.
        ax.text(0.1, 7.0, "Look-ahead: every total at once, combined in one fixed tree")
        row(ax, 7.4, "total", [*totals, None], blocks)
        row(ax, 8.9, "before tile 5", [None] * 5 + [sum(totals)], [PLAIN] * 6)
        for i in range(5):
            arrow(ax, (3.05 + i, 8.1), (8.05, 8.9))
    assert before[2] + sum(totals[2:]) == sum(totals)


def strategies(path: Path) -> None:
    """What each strategy reads and writes of device memory, in shards."""
    told = {
        "single-pass": [("scan", ["read", "write"])],
        "reduce-scan": [("reduce", ["read"]), ("scan", ["read", "write"])],
        "scan-add": [("scan", ["read", "write"]), ("add", ["read", "write"])],
    }
    with picture(path, 12.5, 4.4) as ax:
        for number, (name, kernels) in enumerate(told.items()):
            y, x = 0.4 + 1.4 * number, 2.6
            ax.text(0.1, y + 0.35, name, va="center", weight="bold")
            for index, (kernel, moved) in enumerate(kernels):
                if index:
                    ax.text(x + 0.85, y + 0.35, "MPI_Exscan", ha="center", va="center", size=8)
                    x += 1.7
                ax.text(x, y - 0.1, kernel, size=8, style="italic")
                for what in moved:
                    colour = COLOURS[0] if what == "read" else COLOURS[1]
                    box(ax, x, y, f"{what} n", w=1.6, colour=colour)
                    x += 1.65
            count = sum(len(moved) for _, moved in kernels)
            ax.text(11.5, y + 0.35, f"{count} n", va="center", weight="bold")


def shards(path: Path, lengths: list[int], rows: list[tuple[str, list[Any]]]) -> None:
    """Draw rows of values that ranks share; a rank's have one colour."""
    ranks = [rank for rank, length in enumerate(lengths) for _ in range(length)]
    colours = [COLOURS[rank] for rank in ranks]
    with picture(path, 2.7 + len(ranks), 0.6 + 1.0 * len(rows)) as ax:
        for rank, length in enumerate(lengths):
            ax.text(2.6 + sum(lengths[:rank]) + length / 2, 0.3, f"rank {rank}", ha="center")
        for number, (label, values) in enumerate(rows):
            row(ax, 0.6 + number, label, values, colours)


def recipes(folder: Path) -> None:
    """The pictures of the recipes, each for the numbers that the page has."""
    x, lengths = [3, 1, 4, 1, 5], [3, 2]
    shards(folder / "scan.svg", lengths, [("x", x), ("scan(x)", list(accumulate(x)))])
    places = list(range(5))
    shards(folder / "offsets.svg", lengths, [("x", x), ("its place", places)])
    heads, scanned = [True, False, True, False, True], []
    for head, value in zip(heads, x, strict=True):
        scanned.append(value if head else scanned[-1] + value)
    flags = ["head" if head else None for head in heads]
    rows = [("x", x), ("segments", flags), ("scan", scanned)]
    shards(folder / "segments.svg", lengths, rows)
    kept = [value if value > 2 else None for value in x]
    count = list(accumulate(value > 2 for value in x))
    places = [n - 1 if value > 2 else None for n, value in zip(count, x, strict=True)]
    shards(folder / "compact.svg", lengths, [("x", x), ("x > 2", kept), ("its place", places)])


def beside_cub(path: Path) -> None:
    """How many times faster than CUB's scans, from the tables of docs/measured."""
    tables = {"from memory": "02-one-gpu-sizes", "in the cache": "02b-one-gpu-sizes-cached"}
    with rc_context({"svg.hashsalt": path.stem, "svg.fonttype": "path", "font.size": 10}):
        figure = Figure(figsize=(10.4, 5.2), layout="constrained")
        panels = figure.subplots(1, 2, sharey=True)
        for ax, (title, name) in zip(panels, tables.items(), strict=True):
            table = json.loads((MEASURED / f"{name}.json").read_text())
            for number, (label, *cells) in enumerate(table["rows"]):
                times = [faster for _, faster in cells]
                style = ("-", "--", ":")[number // 7], f"C{number % 7}", "osD^v"[number % 5]
                line, colour, marker = style
                ax.plot(times, line, color=colour, marker=marker, markersize=4, label=label)
            ax.axhline(1, color=LINE, linewidth=0.9)
            ax.set(title=f"elements {title}", yscale="log", yticks=[0.8, 1, 1.5, 2, 3, 5])
            ax.set_yticks([], minor=True)
            ax.yaxis.set_major_formatter("{x:g}")
            places = range(0, len(times), 2)
            ax.set_xticks(places, [table["columns"][1 + place] for place in places])
        panels[0].set_ylabel("CUB's time / distscan's")
        names = panels[0].get_legend_handles_labels()
        figure.legend(*names, loc="outside lower center", ncols=5, frameon=False)
        figure.savefig(path, format="svg", facecolor="white", metadata={"Date": None})


def write(folder: Path) -> None:
    """Draw all pictures into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    for scan in BLOCK_SCANS:
        rows = scan()
        assert rows[-1][1] == list(accumulate(VALUES)), scan.__name__
        steps(folder / f"{scan.__name__}.svg", rows)
    hierarchy(folder / "hierarchy.svg")
    look_ahead(folder / "look_ahead.svg")
    strategies(folder / "strategies.svg")
    recipes(folder)
    beside_cub(folder / "beside_cub.svg")


if __name__ == "__main__":
    write(Path(__file__).resolve().parent / "pictures")
