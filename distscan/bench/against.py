"""``--against FILE``: the comparison of this run with an earlier one.

Both runs have shares of the speed of their own copy. A machine that is slower in everything has the
same shares, so it does not fail.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from .report import Report, size_text

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


def setting(backend: str, ranks: int, op: str) -> dict[str, object]:
    """Return the facts that must be the same in two runs that are compared."""
    return {"backend": backend, "ranks": ranks, "op": op}


def read(path: Path, given: dict[str, object], planned: Iterable[Key]) -> Baseline:
    """Read a report of an earlier run.

    ``given`` is the setting of this run, and ``planned`` are the keys that it will measure. Raises
    ValueError if the file is not a report, or cannot be compared with this run.
    """
    try:
        found = json.loads(path.read_text())
        rows = [row for row in found["results"] if row["contender"] != "copy"]
        baseline = Baseline(
            str(path),
            str(found.get("date", "no date")),
            str(found["chip"]),
            str(found["command"]),
            setting(found["backend"], found["ranks"], found["op"]),
            {
                Key(row["type"], row["contender"], row["n"]): float(row["share"])
                for row in rows
                if row["share"]
            },
        )
    except OSError as error:
        raise ValueError(f"--against: {error.strerror}: {path}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"--against: {path} is no report that --json wrote") from error
    for name, value in given.items():
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
    lines += _named("only in the baseline", [key for key in baseline.shares if key not in here])
    lines += _named("only in this run", [key for key in rows if key not in baseline.shares])
    lines.append(f"{fell} of {compared} shares of distscan fell by more than {limit:g} %")
    return lines, fell > 0 or compared == 0


def _named(title: str, keys: Sequence[Key]) -> list[str]:
    """List the keys that only one of the runs has: a line for each contender and type."""
    found: dict[tuple[str, str], list[str]] = {}
    for key in keys:
        found.setdefault((key.contender, key.type), []).append(size_text(key.n))
    return [f"{title}: {' '.join(who)} {', '.join(sizes)}" for who, sizes in found.items()]
