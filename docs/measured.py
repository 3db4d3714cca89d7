"""The tables of the page "Measured", from the JSON files in docs/measured.

``python docs/measured.py`` writes docs/generated/measured.rst; the build of the docs calls it. A
new measurement replaces a file, and no prose: each file says its chip, date, command and spread,
and its driver where that is known.
A cell is a number, text, null, or [number, share].
"""

import json
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
KEYS = {"title", "chip", "date", "command", "says", "spread", "columns", "rows"}


def tables() -> list[dict[str, Any]]:
    """Read all files, in the order of their names."""
    return [_checked(path) for path in sorted((DOCS / "measured").glob("*.json"))]


def _checked(path: Path) -> dict[str, Any]:
    table: dict[str, Any] = json.loads(path.read_text())
    if missing := KEYS - set(table):
        raise ValueError(f"{path.name} does not say its {', '.join(sorted(missing))}")
    if any(len(row) != len(table["columns"]) for row in table["rows"]):
        raise ValueError(f"{path.name} has a row that is not as long as its columns")
    return table


def cell(value: Any) -> str:
    """Write a cell: [533, 0.94] as 533 (0.94), [None, 0.9] as 0.90, None as nothing."""
    if isinstance(value, list):
        number, share = value
        return f"{share:.2f}" if number is None else f"{cell(number)} ({share:.2f})"
    return "" if value is None else str(value)


def rst(table: dict[str, Any]) -> str:
    """Write one table as a section of reStructuredText."""
    lines = [table["title"], "-" * len(table["title"]), "", table["says"], ""]
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
    """Write all tables to ``folder``/measured.rst."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "measured.rst").write_text("\n".join(map(rst, tables())))


if __name__ == "__main__":
    write(DOCS / "generated")
