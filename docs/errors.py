"""The plot of errors over condition numbers, from a table of docs/measured.

``python docs/errors.py docs/measured/17-accuracy-fsum.json`` writes the SVG that the table's "plot"
names, beside it. ``launch/tools/accuracy.py fsum --json`` writes such tables. The plot is checked
in, so that it can be seen without a build.
"""

import json
import sys
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

# Colours by Okabe and Ito, which the colour-blind can tell apart.
LOOKS = {
    "distscan, fsum": {"color": "#D55E00", "marker": "o", "linewidth": 2.2, "zorder": 3},
    "distscan, sum": {"color": "#0072B2", "marker": "s"},
    "numpy.cumsum": {"color": "#009E73", "marker": "^", "markersize": 9},
    "torch.cumsum": {"color": "#CC79A7", "marker": "v", "markersize": 5},
    "cupy.cumsum": {"color": "#E69F00", "marker": "D"},
}
UNIT = {"float32": 2.0**-24, "float64": 2.0**-53}
LOWEST, HIGHEST = 3e-18, 1e3  # of the axis of errors; larger ones are drawn at its end


def write(path: Path) -> Path:
    """Draw the table of a file; return where the plot is."""
    table: dict[str, Any] = json.loads(path.read_text())
    target = path.parent / table["plot"]["file"]
    powers = [int(column.removeprefix("10^")) for column in table["columns"][3:]]
    style = {"svg.hashsalt": target.stem, "svg.fonttype": "path", "font.size": 10}
    with rc_context(style):
        figure = Figure(figsize=(10.4, 4.4), facecolor="white", layout="constrained")
        panels = figure.subplots(1, 2, sharey=True)
        lines = {}
        for ax, kind in zip(panels, UNIT, strict=True):
            lines |= _panel(ax, kind, powers, table["rows"])
        panels[0].set_ylabel("largest relative error of a prefix")
        names = [name for name in LOOKS if name in lines]
        handles = [lines[name] for name in names]
        figure.legend(handles, names, loc="outside lower center", ncols=5, frameon=False)
        figure.savefig(target, format="svg", facecolor="white", metadata={"Date": None})
    return target


def _panel(ax: Any, kind: str, powers: list[int], rows: list[list[Any]]) -> dict[str, Any]:
    """Draw one type. The columns of the table have equal distances."""
    lines: dict[str, Any] = {}
    for first, _, where, *cells in rows:
        name, _, of = first.rpartition(", ")
        points = [
            (place, min(float(cell), HIGHEST))
            for place, cell in enumerate(cells)
            if cell is not None
        ]
        if of == kind and name in LOOKS:
            label = {"linestyle": "-" if where == "CPU" else "--"}
            (lines[name],) = ax.plot(*zip(*points, strict=True), **label, **LOOKS[name])
            last = points[-1][0]
    ax.axhline(UNIT[kind], color="0.5", linewidth=0.8, linestyle=":")
    ax.axhline(1, color="0.5", linewidth=0.8, linestyle=":")
    ax.text(0, 1.4, "1: no digit is right", size=8)
    ax.text(0, UNIT[kind] / 8, "unit roundoff", size=8)
    ax.set_xticks(range(last + 1), [f"$10^{{{power}}}$" for power in powers[: last + 1]])
    ax.set(yscale="log", ylim=(LOWEST, 2 * HIGHEST), title=kind, xlabel="condition number")
    ax.grid(color="0.88", linewidth=0.6)
    ax.spines[["top", "right"]].set_visible(False)
    return lines


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(write(Path(name)))
