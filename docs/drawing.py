"""What the pictures are drawn with: boxes in rows, arrows between rows."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

COLOURS = ["#cfe3f7", "#fbe3c4", "#d6efd0", "#ead7f1"]  # of ranks, warps or blocks
PLAIN, NEW, LINE = "#f4f4f4", "#cfe3f7", "#555555"
Move = tuple[int, int]  # from a place in one row to a place in the next


@contextmanager
def picture(path: Path, width: float, height: float) -> Iterator[Any]:
    """Give axes of ``width`` by ``height`` units, y downwards, and write them; no date in it."""
    with rc_context({"svg.hashsalt": path.stem, "svg.fonttype": "path", "font.size": 10}):
        figure = Figure(figsize=(width * 0.62, height * 0.62))
        ax = figure.add_axes((0, 0, 1, 1))
        ax.set(xlim=(0, width), ylim=(height, 0))
        ax.axis("off")
        yield ax
        figure.savefig(path, format="svg", facecolor="white", metadata={"Date": None})


def box(
    ax: Any, x: float, y: float, text: Any = "", *, w: float = 0.9, h: float = 0.7, colour: str
) -> None:
    """Draw a box with its upper left corner at (x, y)."""
    ax.add_patch(Rectangle((x, y), w, h, facecolor=colour, edgecolor=LINE, linewidth=0.8))
    ax.text(x + w / 2, y + h / 2, text, ha="center", va="center")


def arrow(
    ax: Any, begin: tuple[float, float], end: tuple[float, float], *, bend: float = 0
) -> None:
    """Draw an arrow from one point to another, straight if it does not ``bend``."""
    shape = {"arrowstyle": "-|>", "connectionstyle": f"arc3,rad={bend}", "shrinkA": 0}
    ax.annotate(
        "",
        xy=end,
        xytext=begin,
        arrowprops={**shape, "color": LINE, "linewidth": 0.9},
    )


def row(ax: Any, y: float, label: str, values: Sequence[Any], colours: Sequence[str]) -> None:
    """Draw values in boxes, from x = 2.6 on, and a label in front of them; None is no value."""
    ax.text(0.1, y + 0.35, label, va="center")
    for i, value in enumerate(values):
        box(ax, 2.6 + i, y, "" if value is None else value, colour=colours[i])


def steps(path: Path, rows: Sequence[tuple[str, Sequence[Any], Sequence[Move]]]) -> None:
    """Draw the steps of a block scan: who takes what from where; what is new has a colour."""
    with picture(path, 2.6 + len(rows[0][1]) + 0.1, 1.3 * len(rows)) as ax:
        for number, (label, values, moves) in enumerate(rows):
            y = 0.2 + 1.3 * number
            changed = {to for _, to in moves}
            row(ax, y, label, values, [NEW if i in changed else PLAIN for i in range(len(values))])
            for begin, end in moves:
                arrow(ax, (3.05 + begin, y - 0.6), (3.05 + end, y))
