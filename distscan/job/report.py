"""The report of a job: for each phase the seconds, the bytes, the rate, and what bounds it."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .timeline import PHASES


class Report(NamedTuple):
    """The result of a job.

    ``seconds`` are the slowest rank's, 0 for a phase that did not run. Phases overlap. ``bytes``
    are those of all ranks. ``bounds`` names what a phase is bound by.
    """

    elements: int
    dtype_in: str
    dtype_out: str
    op: str
    ranks: int
    nodes: int
    backend: str
    device: str
    strategy: str
    total: Any
    output: str
    seconds: dict[str, float]
    bytes: dict[str, int]
    bounds: dict[str, str]


def report(
    measured: Sequence[tuple[dict[str, float], dict[str, int]]],
    *,
    places: tuple[str, str],
    **facts: Any,
) -> Report:
    """Return the report of a job, from the seconds and the bytes of each rank.

    ``places`` says where the input and the output are, such as "disk, ext4".
    """
    device = "GPU memory" if facts["backend"] == "cuda" else "memory"
    bounds = {
        "read": places[0],
        "copy_in": "bus",
        "reduce": device,
        "exscan": "network",
        "scan": device,
        "copy_out": "bus",
        "write": places[1],
    }
    seconds = {phase: max(each[phase] for each, _ in measured) for phase in PHASES}
    moved = {phase: sum(each[phase] for _, each in measured) for phase in PHASES}
    moved["all"] = measured[0][1]["all"]
    return Report(**facts, seconds=seconds, bytes=moved, bounds=bounds)


def plain(report: Report) -> dict[str, Any]:
    """Return a report in a form that JSON has."""
    return report._asdict() | {"total": _plain(report.total)}


def _plain(value: Any) -> Any:
    """Return a number in a form that JSON has: complex as a pair, NaN and infinities as text."""
    if isinstance(value, tuple | list | np.ndarray):  # a structure, or a field of several values
        return [_plain(each) for each in value]
    if isinstance(value, complex):
        return [_plain(value.real), _plain(value.imag)]
    if isinstance(value, np.generic):  # long double: Python has no such number
        return _plain(complex(value) if value.dtype.kind == "c" else float(value))
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def text(report: Report, *, checked: bool) -> str:
    """Return the report as text, several lines."""
    lines = [
        f"{report.op} of {report.elements} elements, {report.dtype_in} to {report.dtype_out}",
        f"{_count(report.ranks, 'rank')} on {_count(report.nodes, 'node')}, strategy "
        f"{report.strategy}, backend {report.backend} ({report.device})",
    ]
    for phase in PHASES:
        seconds, moved = report.seconds[phase], report.bytes[phase]
        if seconds == 0 and phase != "all":
            continue
        rate = (
            f"{moved / 1e9:9.2f} GB{moved / seconds / 1e9:8.2f} GB/s" if seconds and moved else ""
        )
        bound = f"  ({report.bounds[phase]})" if phase in report.bounds else ""
        if phase == "start":
            rate, bound = "", f"{seconds / report.seconds['all']:>9.0%} of all"
        lines.append(f"  {phase.replace('_', ' '):8}{seconds:9.4f} s{rate}{bound}")
    if report.total is not None:  # rows have several totals; an empty input may have none
        lines.append(f"total {report.total}")
    lines.append(f"{report.output}{' (checked)' if checked else ''}")
    return "\n".join(lines)


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"
