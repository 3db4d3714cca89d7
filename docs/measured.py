"""The tables of measurements, from the JSON files in docs/measured.

``python docs/measured.py`` writes docs/generated/measured.rst, which the page "Measured" includes;
the build of the docs calls it. A file with the key "page" becomes a file of its own, measured-NAME,
which that page includes. A new measurement replaces a file, and no prose: each file says its chip,
date, command and spread, and its driver where that is known.
A cell is a number, text, null, or [number, share].

A file with the key "report" has only a title and what it says: the rest is in the report that
``python -m distscan bench --json`` wrote, with ``--forms`` or ``--uses``. A file with the key
"reports" has a list of reports by size: each becomes a column.
"""

import json
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
KEYS = {"title", "chip", "date", "command", "says", "spread", "columns", "rows"}


def tables() -> dict[str, dict[str, Any]]:
    """Read all files, in the order of their names; by these."""
    return {path.stem: _checked(path) for path in sorted((DOCS / "measured").glob("*.json"))}


def _checked(path: Path) -> dict[str, Any]:
    table: dict[str, Any] = json.loads(path.read_text())
    if report := table.get("report"):
        found = json.loads((path.parent / report).read_text())
        table |= uses(found) if "clocks" in found else forms(found)
    if reports := table.get("reports"):
        table |= by_size([json.loads((path.parent / report).read_text()) for report in reports])
    if missing := KEYS - set(table):
        raise ValueError(f"{path.name} does not say its {', '.join(sorted(missing))}")
    if any(len(row) != len(table["columns"]) for row in table["rows"]):
        raise ValueError(f"{path.name} has a row that is not as long as its columns")
    return table


def forms(report: dict[str, Any]) -> dict[str, Any]:
    """Make a table of the forms in a report: share of the copy's speed, and times NumPy."""
    rows = {(row["type"], row["contender"]): row for row in report["results"]}
    names = [name for name in dict.fromkeys(name for _, name in rows) if name != "copy"]
    base = "numpy" if "numpy" in names else "by-hand"
    names.sort(key=lambda name: name != base)

    def text(title: str, name: str) -> str | None:
        row = rows.get((title, name))
        if row is None or row["share"] is None:
            return row and row["status"]
        times = "" if name == base or row["times"] is None else f", {row['times']:.1f} x"
        return f"{row['share']:.2f}{times}"

    def copied(copy: dict[str, Any]) -> float | None:
        time = copy["wall_us"]
        return time and round(copy["moved"] / time["median"] / 1e3, 1)

    ways = {way: [title for title, other in report["idioms"].items() if other == way]
            for way in report["idioms"].values()}  # fmt: skip
    notes = [f"* {'; '.join(titles)}: ``{way}``" for way, titles in ways.items()]
    alone = report["ranks"] == 1
    return _made(report) | {
        "columns": ["", "copy, GB/s", *names],
        "rows": [[title, copied(rows[title, "copy"]), *(text(title, name) for name in names)]
                 for title in report["idioms"]],
        "notes": ["NumPy's way, which is run as it stands here:", "", *notes] if alone else [],
    }  # fmt: skip


def uses(report: dict[str, Any]) -> dict[str, Any]:
    """Make a table of the uses in a report: microseconds of a call, the share of a copy, peers."""

    def us(row: dict[str, Any], clock: str) -> float | str:
        time = row[clock] or row["wall_us"]
        return round(time["median"], 1) if time else str(row["status"])

    rows = []
    for title, clock in report["clocks"].items():
        own = {row["contender"]: row for row in report["results"] if row["type"] == title}
        ours, copy = own.pop("distscan"), own.pop("copy", None)
        times = {name: us(row, clock) for name, row in own.items()}
        timed = sorted(times, key=lambda name: (isinstance(times[name], str), times[name]))
        share = None if ours["share"] is None else f"{ours['share']:.2f}"
        peers = ", ".join(f"{name} {times[name]}" for name in timed)
        rows.append([title, copy and us(copy, "device_us"), us(ours, clock), share, peers])
    columns = ["microseconds of a call", "copy of the bytes", "distscan", "share", "peers"]
    return _made(report) | {"columns": columns, "rows": rows}


def by_size(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """Make a table of reports by size: milliseconds of a call, and the share of a copy's speed.

    The reports are of one machine, and of as many samples. Each has one type and one size, and
    becomes a column.
    """

    def cell(row: dict[str, Any], ranks: int) -> list[Any] | str:
        time = (row["device_us"] if ranks == 1 else None) or row["wall_us"]
        if time is None:
            return str(row["status"])
        ms = time["median"] / 1e3
        return [round(ms) if ms >= 100 else float(f"{ms:.3g}"), row["share"]]

    columns = [{row["contender"]: cell(row, report["ranks"]) for row in report["results"]}
               for report in reports]  # fmt: skip
    versions = {name: text for report in reports for name, text in report["versions"].items()}
    titles = [f"{report['op']}, {report['ranks']} rank{'s' * (report['ranks'] > 1)}"
              for report in reports]  # fmt: skip
    every_row = [row for report in reports for row in report["results"]]
    return _made(reports[0] | {"results": every_row}) | {
        "columns": ["", *titles],
        "rows": [
            [f"{name} {versions.get(name, '')}".rstrip(), *(each.get(name) for each in columns)]
            for name in dict.fromkeys(name for each in columns for name in each)
        ],
        "command": "; ".join(_made(report)["command"] for report in reports),
    }


def _made(report: dict[str, Any]) -> dict[str, Any]:
    """Return how a report was made."""
    ranks = "" if report["ranks"] == 1 else f", {report['ranks']} ranks"
    spreads = sorted(row["spread"] or 0 for row in report["results"] if row["contender"] != "copy")
    return {
        "chip": report["chip"] + ranks,
        "date": report["date"][:7],
        "command": f"mpirun -n {report['ranks']} " * bool(ranks) + report["command"],
        "spread": f"medians of {report['repeat']} samples, each between two copies; quartiles of a "
        f"share apart: {spreads[len(spreads) // 2]:.0%} of it as a rule, at most {spreads[-1]:.0%}",
    }


def cell(value: Any) -> str:
    """Write a cell: [533, 0.94] as 533 (0.94), [None, 0.9] as 0.90, None as nothing."""
    if isinstance(value, list):
        number, share = value
        return f"{share:.2f}" if number is None else f"{cell(number)} ({share:.2f})"
    return "" if value is None else str(value)


def rst(table: dict[str, Any]) -> str:
    """Write one table as a section of reStructuredText; on another page, of a lower level."""
    under = "~" if "page" in table else "-"
    lines = [table["title"], under * len(table["title"]), "", table["says"], ""]
    lines += [".. list-table::", "   :header-rows: 1", ""]
    for row in [table["columns"], *table["rows"]]:
        first, *others = [cell(value) for value in row]
        lines += [f"   * - {first}".rstrip(), *(f"     - {other}".rstrip() for other in others)]
    lines += ["", *table.get("notes", [])]
    if plot := table.get("plot"):
        lines += ["", f".. image:: measured/{plot['file']}", f"   :alt: {plot['alt']}"]
    driver = f", driver {table['driver']}" if "driver" in table else ""
    lines += ["", f"{table['chip']}{driver}, {table['date']}; {table['spread']}.", "", "::", ""]
    lines += [f"    {command}" for command in table["command"].split("; ")]
    return "\n".join([*lines, "", ""])


def write(folder: Path) -> None:
    """Write the tables to ``folder``: to measured.rst, or to files of their own."""
    folder.mkdir(parents=True, exist_ok=True)
    found = tables()
    for name, table in found.items():
        if "page" in table:
            (folder / f"measured-{name}.rst").write_text(rst(table))
    here = [rst(table) for table in found.values() if "page" not in table]
    (folder / "measured.rst").write_text("\n".join(here))


if __name__ == "__main__":
    write(DOCS / "generated")
