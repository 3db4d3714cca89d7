"""How objects show themselves in a notebook: a table as HTML."""

from collections.abc import Iterable, Sequence
from html import escape


def table(title: str, rows: Iterable[Sequence[object]]) -> str:
    """Return an HTML table; the first cell of each row is its name. All text is escaped.

    >>> table("a < b", [("op", "sum")])
    '<table><caption>a &lt; b</caption><tr><th>op</th><td>sum</td></tr></table>'
    """
    lines = "".join(_row(row) for row in rows)
    return f"<table><caption>{escape(title)}</caption>{lines}</table>"


def _row(cells: Sequence[object]) -> str:
    name, *values = (escape(str(cell)) for cell in cells)
    return f"<tr><th>{name}</th>{''.join(f'<td>{value}</td>' for value in values)}</tr>"
