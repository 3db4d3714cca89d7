"""The report as a picture: share of the copy's speed against size, a panel for each type."""

from pathlib import Path
from typing import Any

from .contenders import CONTENDERS
from .report import Report, chips
from .suite import clock

# Colours by Okabe and Ito, and by Tol, that the colour-blind can tell apart. The copy is black.
_COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#999933",
            "#44AA99", "#332288", "#661100", "#6699CC", "#888888", "#DDCC77"]  # fmt: skip
_MARKERS = "osD^vP*Xh<p>d8"


def write(report: Report, path: Path) -> None:
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
        figure.suptitle(
            f"{report.op} scan, {chips(report)}\n"
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
