"""How objects show themselves in a notebook: a table as HTML."""

from collections.abc import Iterable, Sequence
from html import escape

# Pages of notebooks and of documentation centre tables, and leave no space between columns.
_LEFT = "text-align: left; padding: 0 1em 0 0"


def table(title: str, rows: Iterable[Sequence[object]]) -> str:
    """Return an HTML table; the first cell of each row is its name. All text is escaped."""
    lines = "".join(_row(row) for row in rows)
    caption = f'<caption style="{_LEFT}">{escape(title)}</caption>'
    return f'<table style="margin: 0">{caption}{lines}</table>'


def _row(cells: Sequence[object]) -> str:
    name, *values = (escape(str(cell)) for cell in cells)
    return f'<tr><th style="{_LEFT}">{name}</th>{"".join(map(_cell, values))}</tr>'


def _cell(value: str) -> str:
    return f'<td style="{_LEFT}">{value}</td>'
